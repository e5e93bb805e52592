// Half-precision numbers without help from the processor.
//
// Internal linkage: a kernel file's copy must not be the one that other processors run.
#pragma once

#include <cstdint>
#include <cstring>

namespace draftproof {

static inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/// Exact. NaN becomes a quiet NaN.
static inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // Subnormals: the number in the low bits of 0.5, less 0.5. Never a float subnormal, which some
  // programs set the processor to flush to zero.
  const float small = float_of_bits(0x3f000000u | magnitude) - 0.5f;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 1u << 22 : 0u);
  const uint32_t bits = magnitude < 0x0400u   ? bits_of_float(small)
                        : magnitude < 0x7c00u ? normal
                                              : special;
  return float_of_bits(sign | bits);
}

/// Rounded to nearest, ties to even; from 65520 on, infinity. NaN stays NaN.
static inline uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of_float(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-14: added to 0.5, whose last bit is worth 2^-24, the number is rounded by the addition.
  const uint32_t small = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  const uint32_t half = magnitude < (113u << 23)   ? small
                        : magnitude < 0x477ff000u  ? normal
                        : magnitude <= 0x7f800000u ? 0x7c00u
                                                   : nan;
  return static_cast<uint16_t>(sign | half);
}

}  // namespace draftproof
