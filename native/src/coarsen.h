// Fewer bits per weight than a file has: for drafts, which may be wrong.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.h"
#include "types.h"

namespace draftproof {

/// Whether a matrix has more bits per weight than Q4_0, and columns that it can take.
bool coarsens(Type type, int64_t rows, int64_t cols);

/// A matrix of the file in Q4_0, to the reference's bits: of each 32 weights, the one of the largest
/// magnitude is met exactly, at -8 times the scale.
std::vector<uint8_t> coarsened(Type type, int64_t rows, int64_t cols, const uint8_t* source,
                               Pool& pool);

}  // namespace draftproof
