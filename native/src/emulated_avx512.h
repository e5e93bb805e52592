// AVX-512 in plain code, for testing the table for it on processors without: SIMDe's, and what that
// library lacks. Slow; never part of a package.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <math.h>
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>
#include <string.h>

#include "half.h"

namespace draftproof {
namespace emulated {

template <class T, int n>
struct Lanes {
  T lane[n];
};

template <class Vector, class T, int n>
static inline Lanes<T, n> lanes(Vector v) {
  static_assert(sizeof(Vector) == sizeof(Lanes<T, n>), "a vector of another size");
  Lanes<T, n> all;
  memcpy(&all, &v, sizeof all);
  return all;
}

template <class Vector, class T, int n>
static inline Vector vector(const Lanes<T, n>& all) {
  static_assert(sizeof(Vector) == sizeof all, "a vector of another size");
  Vector v;
  memcpy(&v, &all, sizeof v);
  return v;
}

/// Every lane by itself.
template <class To, class From, int n, class Out, class In, class Function>
static inline Out map(In v, Function function) {
  const Lanes<From, n> from = lanes<In, From, n>(v);
  Lanes<To, n> to;
  for (int i = 0; i < n; i++) to.lane[i] = function(from.lane[i]);
  return vector<Out>(to);
}

// The first 16 bytes of a vector of bytes are all that is there.
static inline __m512i widen_u8(__m128i v) {
  return map<int32_t, uint8_t, 16, __m512i>(v, [](uint8_t x) { return int32_t{x}; });
}
static inline __m512i widen_i8(__m128i v) {
  return map<int32_t, int8_t, 16, __m512i>(v, [](int8_t x) { return int32_t{x}; });
}
static inline __m512i widen_u16(__m256i v) {
  return map<int32_t, uint16_t, 16, __m512i>(v, [](uint16_t x) { return int32_t{x}; });
}
static inline __m128i narrow_i32(__m512i v) {
  return map<int8_t, int32_t, 16, __m128i>(v, [](int32_t x) { return static_cast<int8_t>(x); });
}
static inline __m512 float_of_int(__m512i v) {
  return map<float, int32_t, 16, __m512>(v, [](int32_t x) { return static_cast<float>(x); });
}
static inline __m512i nearest_int(__m512 v) {
  return map<int32_t, float, 16, __m512i>(v, [](float x) {
    return fabsf(x) < 2147483648.0f ? static_cast<int32_t>(nearbyintf(x)) : INT32_MIN;
  });
}
static inline __m512 nearest(__m512 v) {
  return map<float, float, 16, __m512>(v, [](float x) { return nearbyintf(x); });
}
static inline __m512 float_of_half(__m256i v) {
  return map<float, uint16_t, 16, __m512>(v, half_to_float);
}
static inline __m256i half_of_float(__m512 v) {
  return map<uint16_t, float, 16, __m256i>(v, float_to_half);
}

static inline __m512 scale_by_power(__m512 v, __m512 n) {
  const auto x = lanes<__m512, float, 16>(v), power = lanes<__m512, float, 16>(n);
  Lanes<float, 16> out;
  for (int i = 0; i < 16; i++) {
    const float p = power.lane[i];
    out.lane[i] = p != p ? p : ldexpf(x.lane[i], static_cast<int>(floorf(fmaxf(fminf(p, 999), -999))));
  }
  return vector<__m512>(out);
}

// Fused whatever the compiler makes of SIMDe's.
template <bool minus>
static inline __m512 fused(__m512 a, __m512 b, __m512 c) {
  const auto x = lanes<__m512, float, 16>(a), y = lanes<__m512, float, 16>(b);
  auto out = lanes<__m512, float, 16>(c);
  for (int i = 0; i < 16; i++) {
    out.lane[i] = fmaf(minus ? -x.lane[i] : x.lane[i], y.lane[i], out.lane[i]);
  }
  return vector<__m512>(out);
}

// Not a byte beyond the chosen lanes is read or written.
static inline __m512 load_chosen(uint32_t mask, const float* p) {
  Lanes<float, 16> out = {};
  for (int i = 0; i < 16; i++) {
    if (mask >> i & 1) memcpy(&out.lane[i], p + i, sizeof(float));
  }
  return vector<__m512>(out);
}
static inline void store_chosen(float* p, uint32_t mask, __m512 v) {
  const auto all = lanes<__m512, float, 16>(v);
  for (int i = 0; i < 16; i++) {
    if (mask >> i & 1) memcpy(p + i, &all.lane[i], sizeof(float));
  }
}

static inline __m512 larger(__m512 a, __m512 b) {
  const auto x = lanes<__m512, float, 16>(a);
  auto out = lanes<__m512, float, 16>(b);
  for (int i = 0; i < 16; i++) out.lane[i] = x.lane[i] > out.lane[i] ? x.lane[i] : out.lane[i];
  return vector<__m512>(out);
}
static inline __m512 lesser(__m512 a, __m512 b) {
  const auto x = lanes<__m512, float, 16>(a);
  auto out = lanes<__m512, float, 16>(b);
  for (int i = 0; i < 16; i++) out.lane[i] = x.lane[i] < out.lane[i] ? x.lane[i] : out.lane[i];
  return vector<__m512>(out);
}

// Bit i of the table is the answer for the three bits of i.
static inline __m512i ternary_logic(__m512i a, __m512i b, __m512i c, int table) {
  const auto x = lanes<__m512i, uint32_t, 16>(a), y = lanes<__m512i, uint32_t, 16>(b),
             z = lanes<__m512i, uint32_t, 16>(c);
  Lanes<uint32_t, 16> out = {};
  for (int i = 0; i < 16; i++) {
    for (int bits = 0; bits < 8; bits++) {
      if ((table >> bits & 1) == 0) continue;
      out.lane[i] |= (bits & 4 ? x.lane[i] : ~x.lane[i]) & (bits & 2 ? y.lane[i] : ~y.lane[i]) &
                     (bits & 1 ? z.lane[i] : ~z.lane[i]);
    }
  }
  return vector<__m512i>(out);
}

}  // namespace emulated
}  // namespace draftproof

#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_roundscale_ps
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph
#undef _mm512_scalef_ps
#undef _mm512_fmadd_ps
#undef _mm512_fnmadd_ps
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_max_ps
#undef _mm512_min_ps
#undef _mm512_ternarylogic_epi32
#define _mm512_cvtepu8_epi32 emulated::widen_u8
#define _mm512_cvtepi8_epi32 emulated::widen_i8
#define _mm512_cvtepu16_epi32 emulated::widen_u16
#define _mm512_cvtepi32_epi8 emulated::narrow_i32
#define _mm512_cvtepi32_ps emulated::float_of_int
#define _mm512_cvtps_epi32 emulated::nearest_int
#define _mm512_roundscale_ps(v, nearest_even) emulated::nearest(v)
#define _mm512_cvtph_ps emulated::float_of_half
#define _mm512_cvtps_ph(v, nearest_even) emulated::half_of_float(v)
#define _mm512_scalef_ps emulated::scale_by_power
#define _mm512_fmadd_ps emulated::fused<false>
#define _mm512_fnmadd_ps emulated::fused<true>
#define _mm512_maskz_loadu_ps emulated::load_chosen
#define _mm512_mask_storeu_ps emulated::store_chosen
#define _mm512_max_ps emulated::larger
#define _mm512_min_ps emulated::lesser
#define _mm512_ternarylogic_epi32 emulated::ternary_logic
