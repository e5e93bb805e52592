// How fast memory can be read: what decoding one token at a time is held against.
#pragma once

#include <cstdint>

#include "pool.h"

namespace draftproof {

/// Bytes per second of a plain read of `bytes` of memory by all of a pool's threads; the best of
/// `rounds`.
double read_bandwidth(Pool& pool, int64_t bytes, int rounds);

}  // namespace draftproof
