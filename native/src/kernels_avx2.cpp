// Kernels for AVX2, FMA and F16C.
//
// Quantised matrices: a group of a panel, 16 output rows x 32 columns, is expanded to bytes in two
// halves of 8 output rows. Four rows of activations are multiplied at a time, or five where there are
// no more: a word of four columns is broadcast once for both halves, and the 16-bit sums stay in
// registers.
// Such a sum cannot overflow: a vector adds two products of at most 15 or 31 times 127 to it, and 8
// or 4 vectors are added up before sums are widened (30480, 31496).
//
// Where a format subtracts an offset from its values, the sum may wrap around, for without the
// offset's part it fits again: 8 vectors of values from -16 on or 4 of values from -32 on give 32512
// at most.
//
// Q6_K: its sums are widened by multiplying them by the scale of their 16 columns, so a group's dot
// products, scaled, stay integers; they are below 2^24.
#include "kernels.h"

#if defined(__AVX2__) && (defined(_MSC_VER) || (defined(__FMA__) && defined(__F16C__)))

#include <immintrin.h>
#include <string.h>

#if defined(_MSC_VER)
#include <intrin.h>
#define INLINE static __forceinline
#define INLINE_MEMBER __forceinline
#define UNROLL
#define KEEP(v)
#define IN_MEMORY(v)
#else
#include <cpuid.h>
#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
// A chain of sums stays in its order, and what fits no register is read where it is used: a
// compiler that rearranges either runs out of registers.
#define KEEP(v) asm("" : "+x"(v))
#define IN_MEMORY(v) asm volatile("" : : "r"(&(v)) : "memory")
#endif

namespace draftproof {
namespace {

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// ---- Loads -------------------------------------------------------------------------------------

INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
INLINE __m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

INLINE __m256i broadcast32(const void* p) {
  int32_t value;
  memcpy(&value, p, sizeof value);
  return _mm256_set1_epi32(value);
}

INLINE __m256 halves(const void* p) { return _mm256_cvtph_ps(load128(p)); }

// Writes the output rows that the matrix has.
INLINE void store_panel(const float (*sums)[PANEL], int64_t rows, const Packed& weights, int64_t p,
                        float* out, int64_t stride) {
  const int64_t count = smaller(PANEL, weights.rows - p * PANEL);
  for (int64_t r = 0; r < rows; ++r) {
    memcpy(out + r * stride + p * PANEL, sums[r], static_cast<size_t>(count) * sizeof(float));
  }
}

// ---- Quantised matrices ------------------------------------------------------------------------

constexpr bool is_k(Type t) { return t == Type::Q4_K || t == Type::Q5_K || t == Type::Q6_K; }

constexpr int bits_of(Type t) {
  return t == Type::Q8_0                                          ? 8
         : t == Type::Q6_K                                        ? 6
         : t == Type::Q5_0 || t == Type::Q5_1 || t == Type::Q5_K ? 5
                                                                  : 4;
}

constexpr bool has_minimum(Type t) {
  return t == Type::Q4_1 || t == Type::Q5_1 || t == Type::Q4_K || t == Type::Q5_K;
}

// What is subtracted from the unsigned value, as a power of two; -1 where nothing is.
constexpr int offset_bits_of(Type t) {
  return t == Type::Q4_0 ? 3 : t == Type::Q5_0 ? 4 : t == Type::Q6_K ? 5 : -1;
}

constexpr int64_t group_bytes_of(Type t) { return 64 * bits_of(t); }

// Bits of `v`, moved to the left (or right) into the mask.
INLINE __m256i moved(__m256i v, int left, int mask) {
  v = left < 0 ? _mm256_srli_epi16(v, -left) : left > 0 ? _mm256_slli_epi16(v, left) : v;
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}

// Vector j of a group, the rows of one half: bytes, unsigned but for Q8_0.
template <Type T>
INLINE __m256i expand(const uint8_t* group, int j, int half) {
  group += 32 * half;
  if constexpr (bits_of(T) == 8) return load256(group + 64 * j);
  const __m256i low = moved(load256(group + 64 * (j / 2)), -4 * (j % 2), 15);
  if constexpr (bits_of(T) == 5) {
    return _mm256_or_si256(low, moved(load256(group + 256), 4 - j, 16));
  } else if constexpr (bits_of(T) == 6) {
    return _mm256_or_si256(low, moved(load256(group + 256 + 64 * (j / 4)), 4 - 2 * (j % 4), 48));
  }
  return low;
}

// The values of a group where they are used once: expanded on the way.
template <Type T>
struct Direct {
  const uint8_t* group;
  INLINE_MEMBER __m256i operator()(int j, int half) const { return expand<T>(group, j, half); }
};

// Where more rows follow: kept for them as well.
template <Type T>
struct Kept {
  const uint8_t* group;
  __m256i (*values)[2];
  INLINE_MEMBER __m256i operator()(int j, int half) const {
    return values[j][half] = expand<T>(group, j, half);
  }
};

// And read again.
struct Expanded {
  const __m256i (*values)[2];
  INLINE_MEMBER __m256i operator()(int j, int half) const { return values[j][half]; }
};

// What belongs to a group of a panel besides its values, for two halves of 8 output rows.
template <Type T>
struct Scales {
  __m256 scale[2];
  __m256 minimum[2];
  __m256 block_scale[2];  // their parts that a block of the format has in common
  __m256 block_minimum[2];
  __m256i subscale[2][2];  // Q6_K: for 16 columns each, a row's scale twice as int16
};

INLINE __m128i load64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

// Those of group g; `to` holds those of the group before it.
template <Type T>
INLINE void load_scales(const uint8_t* panel, const Layout& layout, int64_t g, Scales<T>& to) {
  constexpr int64_t scale_bytes = has_minimum(T) ? 64 : 32;
  const uint8_t* scales = panel + layout.scales + (is_k(T) ? g / 8 : g) * scale_bytes;
  const uint8_t* subscales = panel + layout.subscales + 32 * g;
  UNROLL for (int h = 0; h < 2; ++h) {
    if (!is_k(T) || g % 8 == 0) {
      to.block_scale[h] = halves(scales + 16 * h);
      if constexpr (has_minimum(T)) to.block_minimum[h] = halves(scales + 32 + 16 * h);
    }
    to.scale[h] = to.block_scale[h];
    if constexpr (has_minimum(T)) to.minimum[h] = to.block_minimum[h];
    if constexpr (T == Type::Q4_K || T == Type::Q5_K) {
      const __m256i scale = _mm256_cvtepu8_epi32(load64(subscales + 8 * h));
      const __m256i minimum = _mm256_cvtepu8_epi32(load64(subscales + 16 + 8 * h));
      to.scale[h] = _mm256_mul_ps(to.scale[h], _mm256_cvtepi32_ps(scale));
      to.minimum[h] = _mm256_mul_ps(to.minimum[h], _mm256_cvtepi32_ps(minimum));
    }
    if constexpr (T == Type::Q6_K) {
      const __m128i first = load64(subscales + 8 * h);
      const __m128i second = load64(subscales + 16 + 8 * h);
      to.subscale[0][h] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(first, first));
      to.subscale[1][h] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(second, second));
    }
  }
}

INLINE __m256i widen(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

// Products of vectors [BEGIN, END) with ROWS rows, added up in pairs of columns, for both halves.
template <int BEGIN, int END, int ROWS, class Values>
INLINE void pairs(const Values& values, const int8_t* x, int64_t stride, __m256i (*sums)[2]) {
  UNROLL for (int j = BEGIN; j < END; ++j) {
    const __m256i low = values(j, 0), high = values(j, 1);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const __m256i four = broadcast32(x + r * stride + 4 * j);
      const __m256i a = _mm256_maddubs_epi16(low, four);
      const __m256i b = _mm256_maddubs_epi16(high, four);
      sums[r][0] = j == BEGIN ? a : _mm256_add_epi16(sums[r][0], a);
      sums[r][1] = j == BEGIN ? b : _mm256_add_epi16(sums[r][1], b);
      KEEP(sums[r][0]);
      KEEP(sums[r][1]);
    }
  }
}

// The same less the offset's part, for 16 or 32 columns.
template <Type T, int BEGIN, int END, int ROWS, class Values>
INLINE void centred_pairs(const Values& values, const int8_t* x, int64_t stride,
                          const int16_t* x_sums, __m256i (*sums)[2]) {
  pairs<BEGIN, END, ROWS>(values, x, stride, sums);
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const int16_t* of_x = x_sums + r * (stride / 8) + BEGIN / 2;
    __m256i offset = broadcast32(of_x);
    if constexpr (END - BEGIN == 8) offset = _mm256_add_epi16(offset, broadcast32(of_x + 2));
    offset = _mm256_slli_epi16(offset, offset_bits_of(T));
    sums[r][0] = _mm256_sub_epi16(sums[r][0], offset);
    sums[r][1] = _mm256_sub_epi16(sums[r][1], offset);
  }
}

// 16-bit sums times a factor for each half, added up in pairs.
template <int ROWS>
INLINE void scale_all(__m256i (*sums)[2], const __m256i* factors) {
  UNROLL for (int r = 0; r < ROWS; ++r) {
    sums[r][0] = _mm256_madd_epi16(sums[r][0], factors[0]);
    sums[r][1] = _mm256_madd_epi16(sums[r][1], factors[1]);
  }
}

template <int ROWS>
INLINE void widen_all(__m256i (*sums)[2]) {
  const __m256i ones[2] = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
  scale_all<ROWS>(sums, ones);
}

template <int ROWS>
INLINE void add_all(__m256i (*sums)[2], const __m256i (*more)[2]) {
  UNROLL for (int r = 0; r < ROWS; ++r) {
    sums[r][0] = _mm256_add_epi32(sums[r][0], more[r][0]);
    sums[r][1] = _mm256_add_epi32(sums[r][1], more[r][1]);
  }
}

// The integer dot products of a group's output rows with 32 columns of ROWS rows; for Q6_K those of
// 16 columns times their scale, added up.
template <Type T, int ROWS, class Values>
INLINE void dots(const Values& values, const Scales<T>& w, const int8_t* x, int64_t stride,
                 const int16_t* x_sums, __m256i (*out)[2]) {
  constexpr int bits = bits_of(T);
  if constexpr (bits == 8) {
    UNROLL for (int r = 0; r < ROWS; ++r) out[r][0] = out[r][1] = _mm256_setzero_si256();
    UNROLL for (int j = 0; j < 8; ++j) {
      const __m256i low = values(j, 0), high = values(j, 1);
      const __m256i abs_low = _mm256_abs_epi8(low), abs_high = _mm256_abs_epi8(high);
      UNROLL for (int r = 0; r < ROWS; ++r) {
        const __m256i four = broadcast32(x + r * stride + 4 * j);
        const __m256i a = widen(_mm256_maddubs_epi16(abs_low, _mm256_sign_epi8(four, low)));
        const __m256i b = widen(_mm256_maddubs_epi16(abs_high, _mm256_sign_epi8(four, high)));
        out[r][0] = _mm256_add_epi32(out[r][0], a);
        out[r][1] = _mm256_add_epi32(out[r][1], b);
        KEEP(out[r][0]);
        KEEP(out[r][1]);
      }
    }
  } else if constexpr (T == Type::Q6_K) {
    __m256i more[ROWS][2];
    centred_pairs<T, 0, 4, ROWS>(values, x, stride, x_sums, out);
    scale_all<ROWS>(out, w.subscale[0]);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      KEEP(out[r][0]);
      KEEP(out[r][1]);
    }
    centred_pairs<T, 4, 8, ROWS>(values, x, stride, x_sums, more);
    scale_all<ROWS>(more, w.subscale[1]);
    add_all<ROWS>(out, more);
  } else if constexpr (offset_bits_of(T) >= 0) {
    centred_pairs<T, 0, 8, ROWS>(values, x, stride, x_sums, out);
    widen_all<ROWS>(out);
  } else {
    pairs<0, bits == 5 ? 4 : 8, ROWS>(values, x, stride, out);
    widen_all<ROWS>(out);
    if constexpr (bits == 5) {
      __m256i more[ROWS][2];
      pairs<4, 8, ROWS>(values, x, stride, more);
      widen_all<ROWS>(more);
      add_all<ROWS>(out, more);
    }
  }
}

// Where a group of the activations begins.
struct Columns {
  const int8_t* quants;
  const float* scales;
  const float* scaled_sums;
  const int16_t* sums;
  int64_t cols;

  INLINE_MEMBER Columns(const Activations& x, int64_t row, int64_t g)
      : quants(x.quants + row * x.cols + g * GROUP),
        scales(x.scales + row * (x.cols / GROUP) + g),
        scaled_sums(x.scaled_sums + row * (x.cols / GROUP) + g),
        sums(x.sums + row * (x.cols / 8) + 4 * g),
        cols(x.cols) {}

  INLINE_MEMBER void skip(int64_t rows) {
    quants += rows * cols;
    scales += rows * (cols / GROUP);
    scaled_sums += rows * (cols / GROUP);
    sums += rows * (cols / 8);
  }
};

template <Type T, int ROWS, class Values>
INLINE void add_rows(const Values& values, const Scales<T>& w, const Columns& x,
                     float (*sums)[PANEL]) {
  __m256i dot[ROWS][2];
  dots<T, ROWS>(values, w, x.quants, x.cols, x.sums, dot);
  const int64_t groups = x.cols / GROUP;
  UNROLL for (int r = 0; r < ROWS; ++r) {
    const __m256 scale = _mm256_broadcast_ss(x.scales + r * groups);
    UNROLL for (int h = 0; h < 2; ++h) {
      const __m256 product = _mm256_cvtepi32_ps(dot[r][h]);
      __m256 sum = _mm256_load_ps(sums[r] + 8 * h);
      sum = _mm256_fmadd_ps(product, _mm256_mul_ps(w.scale[h], scale), sum);
      if constexpr (has_minimum(T)) {
        const __m256 scaled_sum = _mm256_broadcast_ss(x.scaled_sums + r * groups);
        sum = is_k(T) ? _mm256_fnmadd_ps(w.minimum[h], scaled_sum, sum)
                      : _mm256_fmadd_ps(w.minimum[h], scaled_sum, sum);
      }
      _mm256_store_ps(sums[r] + 8 * h, sum);
    }
  }
}

constexpr int64_t kFew = 5;           // rows that one use of a group's values serves
constexpr int64_t kTile = 16;         // rows of activations that a group's values serve
constexpr int64_t kAhead = 16384;     // bytes to fetch in advance
constexpr int64_t kCached = 3 << 16;  // bytes of activations that stay in the second-level cache

// FIRST rows, and `blocks` times 4 more. The first tile of a panel fetches in advance.
template <Type T, int FIRST, bool MORE>
void tile(const Packed& weights, const uint8_t* panel, const Activations& x, int64_t row,
          int64_t blocks, bool fetch, float (*sums)[PANEL]) {
  constexpr int64_t step = group_bytes_of(T) + 64;  // with each group some of the scales
  memset(sums, 0, static_cast<size_t>(FIRST + 4 * blocks) * sizeof sums[0]);
  Scales<T> w = {};
  for (int64_t g = 0; g < x.cols / GROUP; ++g) {
    if (fetch) {
      const char* ahead = reinterpret_cast<const char*>(panel) + g * step + kAhead;
      UNROLL for (int64_t i = 0; i < step; i += 64) _mm_prefetch(ahead + i, _MM_HINT_T0);
    }
    load_scales<T>(panel, weights.layout, g, w);
    const uint8_t* group = panel + g * group_bytes_of(T);
    Columns at(x, row, g);
    if constexpr (!MORE) {
      add_rows<T, FIRST>(Direct<T>{group}, w, at, sums);
    } else {
      __m256i values[8][2];
      add_rows<T, FIRST>(Kept<T>{group, values}, w, at, sums);
      at.skip(FIRST);
      float(*to)[PANEL] = sums + FIRST;
      for (int64_t block = 0; block < blocks; ++block) {
        IN_MEMORY(values);
        IN_MEMORY(w);
        add_rows<T, 4>(Expanded{values}, w, at, to);
        at.skip(4);
        to += 4;
      }
    }
  }
}

// Output rows of panels [begin, end) for rows [first, last).
template <Type T>
void multiply_rows(const Packed& weights, int64_t begin, int64_t end, const Activations& x,
                   int64_t first, int64_t last, float* out, int64_t stride) {
  using Tile = void (*)(const Packed&, const uint8_t*, const Activations&, int64_t, int64_t, bool,
                        float(*)[PANEL]);
  static constexpr Tile few[kFew] = {tile<T, 1, false>, tile<T, 2, false>, tile<T, 3, false>,
                                     tile<T, 4, false>, tile<T, 5, false>};
  static constexpr Tile many[4] = {tile<T, 1, true>, tile<T, 2, true>, tile<T, 3, true>,
                                   tile<T, 4, true>};
  alignas(64) float sums[kTile][PANEL];
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t row = first; row < last; row += kTile) {
      const int64_t rows = smaller(kTile, last - row);
      const int64_t blocks = rows <= kFew ? 0 : (rows - 1) / 4;
      const Tile function = rows <= kFew ? few[rows - 1] : many[rows - 1 - 4 * blocks];
      function(weights, weights.panel(p), x, row, blocks, row == first, sums);
      store_panel(sums, rows, weights, p, out + row * stride, stride);
    }
  }
}

template <Type T>
void matmul_quantised(const Packed& weights, int64_t begin, int64_t end, const Activations& x,
                      float* out, int64_t stride) {
  // So many rows stay in the cache from panel to panel; of wide rows too few to be worth it.
  const int64_t tiles = kCached / (kTile * x.cols);
  const int64_t step = tiles >= 4 ? tiles * kTile : x.rows;
  for (int64_t row = 0; row < x.rows; row += step) {
    multiply_rows<T>(weights, begin, end, x, row, smaller(row + step, x.rows), out, stride);
  }
}

// ---- Float matrices ----------------------------------------------------------------------------

constexpr int64_t kFloatTile = 6;  // 12 sums of 8 fill the registers

template <Type T>
INLINE void load_column(const uint8_t* panel, int64_t column, __m256& low, __m256& high) {
  if constexpr (T == Type::F32) {
    low = _mm256_load_ps(reinterpret_cast<const float*>(panel + column * 64));
    high = _mm256_load_ps(reinterpret_cast<const float*>(panel + column * 64 + 32));
  } else if constexpr (T == Type::F16) {
    low = halves(panel + column * 32);
    high = halves(panel + column * 32 + 16);
  } else {
    const __m256i first = _mm256_cvtepu16_epi32(load128(panel + column * 32));
    const __m256i second = _mm256_cvtepu16_epi32(load128(panel + column * 32 + 16));
    low = _mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
    high = _mm256_castsi256_ps(_mm256_slli_epi32(second, 16));
  }
}

template <Type T, int ROWS>
void float_tile(const uint8_t* panel, int64_t cols, const float* x, float (*sums)[PANEL]) {
  __m256 low[ROWS], high[ROWS];
  UNROLL for (int r = 0; r < ROWS; ++r) low[r] = high[r] = _mm256_setzero_ps();
  constexpr int64_t width = T == Type::F32 ? 64 : 32;
  for (int64_t column = 0; column < cols; ++column) {
    __m256 a, b;
    load_column<T>(panel, column, a, b);
    _mm_prefetch(reinterpret_cast<const char*>(panel) + column * width + kAhead, _MM_HINT_T0);
    UNROLL for (int r = 0; r < ROWS; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * cols + column);
      low[r] = _mm256_fmadd_ps(a, value, low[r]);
      high[r] = _mm256_fmadd_ps(b, value, high[r]);
    }
  }
  UNROLL for (int r = 0; r < ROWS; ++r) {
    _mm256_store_ps(sums[r], low[r]);
    _mm256_store_ps(sums[r] + 8, high[r]);
  }
}

template <Type T>
void matmul_float(const Packed& weights, int64_t begin, int64_t end, const Activations& x,
                  float* out, int64_t stride) {
  using Tile = void (*)(const uint8_t*, int64_t, const float*, float(*)[PANEL]);
  static constexpr Tile tiles[kFloatTile] = {float_tile<T, 1>, float_tile<T, 2>, float_tile<T, 3>,
                                             float_tile<T, 4>, float_tile<T, 5>, float_tile<T, 6>};
  alignas(64) float sums[kFloatTile][PANEL];
  for (int64_t p = begin; p < end; ++p) {
    for (int64_t row = 0; row < x.rows; row += kFloatTile) {
      const int64_t rows = smaller(kFloatTile, x.rows - row);
      tiles[rows - 1](weights.panel(p), weights.cols, x.values + row * x.cols, sums);
      store_panel(sums, rows, weights, p, out + row * stride, stride);
    }
  }
}

MatMul matmul(Type type) {
  switch (type) {
    case Type::F32: return matmul_float<Type::F32>;
    case Type::F16: return matmul_float<Type::F16>;
    case Type::BF16: return matmul_float<Type::BF16>;
    case Type::Q4_0: return matmul_quantised<Type::Q4_0>;
    case Type::Q4_1: return matmul_quantised<Type::Q4_1>;
    case Type::Q5_0: return matmul_quantised<Type::Q5_0>;
    case Type::Q5_1: return matmul_quantised<Type::Q5_1>;
    case Type::Q8_0: return matmul_quantised<Type::Q8_0>;
    case Type::Q4_K: return matmul_quantised<Type::Q4_K>;
    case Type::Q5_K: return matmul_quantised<Type::Q5_K>;
    case Type::Q6_K: return matmul_quantised<Type::Q6_K>;
  }
  return nullptr;
}

// ---- Sums and tails ----------------------------------------------------------------------------

INLINE float sum_of(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}


// All bits in the lanes below n.
INLINE __m256i lanes_below(int64_t n) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(smaller(n, 8))), lanes);
}

// The last lanes of a row that does not fill its vector are zeros, and are not written.
INLINE __m256 load_some(const float* p, int64_t n) {
  return n >= 8 ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, lanes_below(n));
}

INLINE void store_some(float* p, int64_t n, __m256 v) {
  if (n >= 8) {
    _mm256_storeu_ps(p, v);
  } else {
    _mm256_maskstore_ps(p, lanes_below(n), v);
  }
}

// ---- Rows --------------------------------------------------------------------------------------

void quantize(const float* x, int64_t cols, int8_t* quants, float* scales, float* scaled_sums,
              int16_t* sums) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  for (int64_t g = 0; g < cols / GROUP; ++g) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
    UNROLL for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + g * GROUP + 8 * i);
      // Magnitudes order like integers, with infinity and NaN above all numbers.
      largest = _mm256_max_epi32(largest, _mm256_castps_si256(_mm256_andnot_ps(sign, v[i])));
    }
    __m128i four = _mm256_extracti128_si256(largest, 1);
    four = _mm_max_epi32(four, _mm256_castsi256_si128(largest));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    const float scale = _mm_cvtss_f32(_mm_castsi128_ps(four)) / 127.0f;
    if (_mm_cvtsi128_si32(four) >= 0x7f800000 || scale == 0.0f) {
      // Zero times infinity or NaN is NaN, so that every output of this row becomes one.
      memset(quants + g * GROUP, 0, GROUP);
      scales[g] = scale;
      scaled_sums[g] = 0.0f * scale;
      memset(sums + 4 * g, 0, 4 * sizeof *sums);
      continue;
    }
    __m256i whole[4];
    const __m256 divisor = _mm256_set1_ps(scale);
    UNROLL for (int i = 0; i < 4; ++i) {
      // A scale that is a denormal number may be rounded far down.
      __m256 q = _mm256_div_ps(v[i], divisor);
      q = _mm256_min_ps(_mm256_max_ps(q, _mm256_set1_ps(-127.0f)), _mm256_set1_ps(127.0f));
      whole[i] = _mm256_cvtps_epi32(q);
    }
    const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(whole[0], whole[1]),
                                              _mm256_packs_epi32(whole[2], whole[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes = _mm256_permutevar8x32_epi32(packed, order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants + g * GROUP), bytes);
    // Sums of two bytes; then every 32 bits of a half hold both sums of its 16.
    __m256i twos = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    twos = _mm256_add_epi16(twos, _mm256_shuffle_epi32(twos, 0x4e));
    twos = _mm256_add_epi16(twos, _mm256_shuffle_epi32(twos, 0xb1));
    const int32_t of_first = _mm256_extract_epi32(twos, 0);
    const int32_t of_second = _mm256_extract_epi32(twos, 4);
    memcpy(sums + 4 * g, &of_first, sizeof of_first);
    memcpy(sums + 4 * g + 2, &of_second, sizeof of_second);
    const __m256i sixteens = widen(twos);
    const int total = _mm256_extract_epi32(sixteens, 0) + _mm256_extract_epi32(sixteens, 4);
    scales[g] = scale;
    scaled_sums[g] = scale * static_cast<float>(total);
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  __m256 squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 v = load_some(x + i, n - i);
    __m256& sum = squares[(i / 8) % 2];
    sum = _mm256_fmadd_ps(v, v, sum);
  }
  const float mean = sum_of(_mm256_add_ps(squares[0], squares[1])) / static_cast<float>(n);
  const __m256 root = _mm256_sqrt_ps(_mm256_set1_ps(mean + epsilon));
  const __m256 factor = _mm256_div_ps(_mm256_set1_ps(1.0f), root);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 scaled = _mm256_mul_ps(load_some(x + i, n - i), factor);
    store_some(out + i, n - i, _mm256_mul_ps(scaled, load_some(weight + i, n - i)));
  }
}

// e^x: 2^n e^r with |r| <= log(2) / 2 and a polynomial for e^r whose relative error is below 2^-23.
INLINE __m256 exponential(__m256 x) {
  // Beyond these it is 0 and infinity; NaN stays.
  x = _mm256_min_ps(_mm256_set1_ps(89.0f), _mm256_max_ps(_mm256_set1_ps(-105.0f), x));
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // log(2) in two parts, the first short enough for an exact product.
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
  __m256 p = _mm256_set1_ps(1.0f / 5040);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
  // 2^n in two factors: it may leave the range of a float's exponent.
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i part = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i rest = _mm256_sub_epi32(whole, part);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(part, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

// x / (1 + e^-y)
INLINE __m256 gated(__m256 x, __m256 y) {
  const __m256 one = _mm256_set1_ps(1.0f);
  const __m256 negative = _mm256_xor_ps(y, _mm256_set1_ps(-0.0f));
  return _mm256_div_ps(x, _mm256_add_ps(one, exponential(negative)));
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 x = load_some(gate + i, n - i);
    store_some(out + i, n - i, _mm256_mul_ps(gated(x, x), load_some(up + i, n - i)));
  }
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 8) {
    // 0.5 x (1 + tanh(u)) = x / (1 + e^(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
    const __m256 x = load_some(gate + i, n - i);
    const __m256 square = _mm256_mul_ps(x, x);
    const __m256 cubic =
        _mm256_fmadd_ps(square, _mm256_set1_ps(0.044715f), _mm256_set1_ps(1.0f));
    const __m256 y = _mm256_mul_ps(_mm256_mul_ps(x, cubic), _mm256_set1_ps(1.59576912f));
    store_some(out + i, n - i, _mm256_mul_ps(gated(x, y), load_some(up + i, n - i)));
  }
}

float softmax(float* scores, int64_t n) {
  const __m256 lowest = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000 | INT32_MIN));
  __m256 largest = lowest;
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 inside = _mm256_castsi256_ps(lanes_below(n - i));
    const __m256 v = _mm256_blendv_ps(lowest, _mm256_loadu_ps(scores + i), inside);
    largest = _mm256_max_ps(largest, v);
  }
  largest = _mm256_max_ps(largest, _mm256_permute2f128_ps(largest, largest, 1));
  largest = _mm256_max_ps(largest, _mm256_permute_ps(largest, 0x4e));
  largest = _mm256_max_ps(largest, _mm256_permute_ps(largest, 0xb1));
  __m256 sum = _mm256_setzero_ps();
  for (int64_t i = 0; i < n; i += 16) {
    UNROLL for (int64_t k = i; k < i + 16; k += 8) {
      const __m256 inside = _mm256_castsi256_ps(lanes_below(n - k));
      const __m256 v = exponential(_mm256_sub_ps(_mm256_loadu_ps(scores + k), largest));
      const __m256 weight = _mm256_and_ps(v, inside);
      _mm256_storeu_ps(scores + k, weight);
      sum = _mm256_add_ps(sum, weight);
    }
  }
  return sum_of(sum);
}

// ---- Attention ---------------------------------------------------------------------------------

template <int HEADS>
void scores_of(const float* query, int64_t dim, const uint16_t* keys, float* out, int64_t stride) {
  __m256 low[HEADS], high[HEADS];
  UNROLL for (int h = 0; h < HEADS; ++h) low[h] = high[h] = _mm256_setzero_ps();
  for (int64_t d = 0; d < dim; ++d) {
    const __m256 a = halves(keys + d * 16);
    const __m256 b = halves(keys + d * 16 + 8);
    UNROLL for (int h = 0; h < HEADS; ++h) {
      const __m256 q = _mm256_broadcast_ss(query + h * dim + d);
      low[h] = _mm256_fmadd_ps(q, a, low[h]);
      high[h] = _mm256_fmadd_ps(q, b, high[h]);
    }
  }
  UNROLL for (int h = 0; h < HEADS; ++h) {
    _mm256_storeu_ps(out + h * stride, low[h]);
    _mm256_storeu_ps(out + h * stride + 8, high[h]);
  }
}

template <int HEADS>
void values_of(const float* weights, int64_t weights_stride, int64_t positions,
               const uint16_t* values, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += 16) {
    __m256 low[HEADS], high[HEADS];
    UNROLL for (int h = 0; h < HEADS; ++h) {
      low[h] = _mm256_loadu_ps(out + h * dim + d);
      high[h] = _mm256_loadu_ps(out + h * dim + d + 8);
    }
    for (int64_t p = 0; p < positions; ++p) {
      const __m256 a = halves(values + p * dim + d);
      const __m256 b = halves(values + p * dim + d + 8);
      UNROLL for (int h = 0; h < HEADS; ++h) {
        const __m256 weight = _mm256_broadcast_ss(weights + h * weights_stride + p);
        low[h] = _mm256_fmadd_ps(weight, a, low[h]);
        high[h] = _mm256_fmadd_ps(weight, b, high[h]);
      }
    }
    UNROLL for (int h = 0; h < HEADS; ++h) {
      _mm256_storeu_ps(out + h * dim + d, low[h]);
      _mm256_storeu_ps(out + h * dim + d + 8, high[h]);
    }
  }
}

// Up to 6 heads at a time, in parts of nearly equal size.
INLINE int64_t part_of(int64_t heads) {
  const int64_t parts = (heads + 5) / 6;
  return (heads + parts - 1) / parts;
}

void attention_scores(const float* query, int64_t heads, int64_t dim, const uint16_t* keys,
                      float* out, int64_t out_stride) {
  using Function = void (*)(const float*, int64_t, const uint16_t*, float*, int64_t);
  static constexpr Function functions[6] = {scores_of<1>, scores_of<2>, scores_of<3>,
                                            scores_of<4>, scores_of<5>, scores_of<6>};
  while (heads > 0) {
    const int64_t part = part_of(heads);
    functions[part - 1](query, dim, keys, out, out_stride);
    query += part * dim;
    out += part * out_stride;
    heads -= part;
  }
}

void attention_values(const float* weights, int64_t weights_stride, int64_t heads,
                      int64_t positions, const uint16_t* values, int64_t dim, float* out) {
  using Function = void (*)(const float*, int64_t, int64_t, const uint16_t*, int64_t, float*);
  static constexpr Function functions[6] = {values_of<1>, values_of<2>, values_of<3>,
                                            values_of<4>, values_of<5>, values_of<6>};
  while (heads > 0) {
    const int64_t part = part_of(heads);
    functions[part - 1](weights, weights_stride, positions, values, dim, out);
    weights += part * weights_stride;
    out += part * dim;
    heads -= part;
  }
}

// ---- Halves ------------------------------------------------------------------------------------

void to_half(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(load_some(x + i, n - i), _MM_FROUND_TO_NEAREST_INT);
    memcpy(out + i, &half, static_cast<size_t>(smaller(8, n - i)) * sizeof(uint16_t));
  }
}

void from_half(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 8) {
    __m128i half = _mm_setzero_si128();
    memcpy(&half, x + i, static_cast<size_t>(smaller(8, n - i)) * sizeof(uint16_t));
    store_some(out + i, n - i, _mm256_cvtph_ps(half));
  }
}

// ---- Choice ------------------------------------------------------------------------------------

// With the system's consent to 256-bit registers.
bool runs_here() {
#if defined(_MSC_VER)
  int leaf1[4], leaf7[4];
  __cpuid(leaf1, 0);
  if (leaf1[0] < 7) return false;
  __cpuid(leaf1, 1);
  __cpuidex(leaf7, 7, 0);
  constexpr int needed = 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29;  // FMA, OSXSAVE, AVX, F16C
  if ((leaf1[2] & needed) != needed || (leaf7[1] & 1 << 5) == 0) return false;
  return (_xgetbv(0) & 6) == 6;
#else
  unsigned a, b, c, d;  // clang's __builtin_cpu_supports may not know F16C
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_F16C) == 0) return false;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
}

constexpr Kernels kTable = {"avx2",   matmul,   quantize,         rms_norm,
                            silu_mul, gelu_mul, attention_scores, softmax,
                            attention_values, to_half, from_half};

}  // namespace

const Kernels* avx2_kernels() {
  static const bool runs = runs_here();
  return runs ? &kTable : nullptr;
}

}  // namespace draftproof

#else

namespace draftproof {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace draftproof

#endif
