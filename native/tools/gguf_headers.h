// Small GGUF files, made at random and then damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace draftproof {

/// The engine's numbers are the same everywhere; the library's distributions are not, so
/// remainders.
using Random = std::mt19937_64;
inline uint64_t below(Random& random, uint64_t limit) { return random() % limit; }

/// A count, length, dimension, offset, type or version in the file.
struct Field {
  size_t at;
  size_t width;
};

struct Header {
  std::vector<uint8_t> bytes;
  std::vector<Field> fields;
};

/// A whole file of up to a few kilobytes that must be accepted.
Header random_header(Random& random);

/// The bytes with one to four faults: flipped bits, numbers of note in any of the fields, pieces
/// cut off, cut out, doubled, or taken from `other`.
std::vector<uint8_t> damaged(const Header& header, const Header& other, Random& random);

}  // namespace draftproof
