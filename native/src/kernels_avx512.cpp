// Kernels for AVX-512 with VNNI.
//
// The weights of 16 rows x 32 columns are expanded once, into 8 registers of unsigned bytes, and serve
// up to 8 rows of activations. For each of those there remain 8 dot products, whose second operand is
// a word broadcast from memory, a conversion, and two or three float operations. That is about what a
// processor does in the time that memory takes to deliver the weights.
//
// A value's zero (8 for Q4_0, 32 for Q6_K, 128 for Q8_0 after its sign bit is flipped) costs nothing:
// the integer sum starts at minus zero times the sum of the activations.
#include "kernels.h"

#if defined(DRAFTPROOF_EMULATE)
#include "emulated_avx512.h"
#define DRAFTPROOF_AVX512
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VL__) && (defined(_MSC_VER) || defined(__AVX512VNNI__))
#include <immintrin.h>
#define DRAFTPROOF_AVX512
#endif

#if defined(DRAFTPROOF_AVX512)

#include <string.h>

#include "exp_series.h"

#if defined(DRAFTPROOF_EMULATE)
#define INLINE static inline
#define UNROLL
#elif defined(_MSC_VER)
#include <intrin.h>
#define INLINE static __forceinline
#define UNROLL
#elif defined(__clang__)
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define DRAFTPROOF_GCC_X86
// GCC's own intrinsics start from registers left undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace draftproof {
namespace {

constexpr int kTile = 8;              // rows of activations that share expanded weights
constexpr int64_t kAhead = 4096;      // bytes by which weights are asked for before they are needed
constexpr int64_t kBlock = 256 << 10;  // bytes of weights that stay in cache while rows pass by

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE __m512i load512(const void* p) { return _mm512_loadu_si512(p); }
INLINE __m512 halves(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
INLINE __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

INLINE __m512i broadcast_int(const void* p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return _mm512_set1_epi32(word);
}

// sum + unsigned bytes `v` times the four signed bytes at `word`. GCC does not know that this
// instruction can broadcast its operand itself.
INLINE __m512i add_dot(__m512i sum, __m512i v, const uint8_t* word) {
#if defined(DRAFTPROOF_GCC_X86)
  typedef int32_t __attribute__((may_alias, aligned(1))) Word;
  __asm__("vpdpbusd %2%{1to16%}, %1, %0"
          : "+v"(sum)
          : "v"(v), "m"(*reinterpret_cast<const Word*>(word)));
  return sum;
#else
  return _mm512_dpbusd_epi32(sum, v, broadcast_int(word));
#endif
}

// A vector that is used twice: left alone, GCC loads it twice.
INLINE __m512i load_once(const void* p) {
  __m512i v = load512(p);
#if defined(DRAFTPROOF_GCC_X86)
  __asm__("" : "+v"(v));
#endif
  return v;
}
INLINE __m512 broadcast_float(const void* p) {
  float value;
  memcpy(&value, p, sizeof value);
  return _mm512_set1_ps(value);
}

INLINE void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0); }

INLINE __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1u);
}
INLINE __m512 load_lanes(const float* p, int64_t n) {
  return n >= 16 ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(first_lanes(n), p);
}
INLINE void store_lanes(float* p, int64_t n, __m512 v) {
  if (n >= 16) {
    _mm512_storeu_ps(p, v);
  } else {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
  }
}

// ---- Formats -----------------------------------------------------------------------------------

constexpr bool is_float(Type t) {
  return t == Type::F32 || t == Type::F16 || t == Type::BF16;
}
constexpr bool is_k(Type t) { return t == Type::Q4_K || t == Type::Q5_K || t == Type::Q6_K; }
constexpr bool has_minimum(Type t) {
  return t == Type::Q4_1 || t == Type::Q5_1 || t == Type::Q4_K || t == Type::Q5_K;
}
constexpr bool has_two_scales(Type t) { return t == Type::Q6_K; }
constexpr int bits_of(Type t) {
  return t == Type::Q8_0                                          ? 8
         : t == Type::Q6_K                                        ? 6
         : t == Type::Q5_0 || t == Type::Q5_1 || t == Type::Q5_K ? 5
                                                                  : 4;
}
constexpr int zero_of(Type t) {
  return t == Type::Q4_0 ? 8 : t == Type::Q5_0 ? 16 : t == Type::Q6_K ? 32 : t == Type::Q8_0 ? 128 : 0;
}
constexpr int64_t group_bytes_of(Type t) { return 64 * bits_of(t); }
constexpr int64_t scale_bytes_of(Type t) { return has_minimum(t) ? 64 : 32; }  // of a block's halves

// 8 vectors of unsigned bytes, as the packed layout numbers them.
template <Type T>
INLINE void expand(const uint8_t* group, __m512i* v) {
  if constexpr (bits_of(T) == 8) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    UNROLL for (int j = 0; j < 8; ++j) v[j] = _mm512_xor_si512(sign, load512(group + 64 * j));
    return;
  }
  const __m512i low = _mm512_set1_epi8(0x0f);
  UNROLL for (int p = 0; p < 4; ++p) {
    const __m512i pair = load_once(group + 64 * p);
    v[2 * p] = _mm512_and_si512(low, pair);
    v[2 * p + 1] = _mm512_and_si512(low, _mm512_srli_epi16(pair, 4));
  }
  // Ternary logic 0xf8: v | (mask & moved).
  if constexpr (bits_of(T) == 5) {
    const __m512i mask = _mm512_set1_epi8(0x10);
    const __m512i high = load_once(group + 256);
    v[0] = _mm512_ternarylogic_epi32(v[0], mask, _mm512_slli_epi16(high, 4), 0xf8);
    v[1] = _mm512_ternarylogic_epi32(v[1], mask, _mm512_slli_epi16(high, 3), 0xf8);
    v[2] = _mm512_ternarylogic_epi32(v[2], mask, _mm512_slli_epi16(high, 2), 0xf8);
    v[3] = _mm512_ternarylogic_epi32(v[3], mask, _mm512_slli_epi16(high, 1), 0xf8);
    v[4] = _mm512_ternarylogic_epi32(v[4], mask, high, 0xf8);
    v[5] = _mm512_ternarylogic_epi32(v[5], mask, _mm512_srli_epi16(high, 1), 0xf8);
    v[6] = _mm512_ternarylogic_epi32(v[6], mask, _mm512_srli_epi16(high, 2), 0xf8);
    v[7] = _mm512_ternarylogic_epi32(v[7], mask, _mm512_srli_epi16(high, 3), 0xf8);
  }
  if constexpr (bits_of(T) == 6) {
    const __m512i mask = _mm512_set1_epi8(0x30);
    UNROLL for (int h = 0; h < 2; ++h) {
      const __m512i high = load_once(group + 256 + 64 * h);
      __m512i* four = v + 4 * h;
      four[0] = _mm512_ternarylogic_epi32(four[0], mask, _mm512_slli_epi16(high, 4), 0xf8);
      four[1] = _mm512_ternarylogic_epi32(four[1], mask, _mm512_slli_epi16(high, 2), 0xf8);
      four[2] = _mm512_ternarylogic_epi32(four[2], mask, high, 0xf8);
      four[3] = _mm512_ternarylogic_epi32(four[3], mask, _mm512_srli_epi16(high, 2), 0xf8);
    }
  }
}

struct Scales {
  __m512 scale[2];  // the second for formats with a scale for each half
  __m512 minimum;   // subtracted for Q4_K and Q5_K, added for Q4_1 and Q5_1
};

// Whole scales of a block of one group; of a group within a block of 8, from the block's `d`, `m`.
template <Type T>
INLINE Scales scales_of(__m512 d, __m512 m, const uint8_t* subscales) {
  Scales s = {{d, d}, m};
  if constexpr (has_two_scales(T)) {
    s.scale[0] =
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(subscales))));
    s.scale[1] =
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load128(subscales + 16))));
  } else if constexpr (is_k(T)) {
    s.scale[0] =
        _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load128(subscales))));
    s.minimum =
        _mm512_mul_ps(m, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load128(subscales + 16))));
  }
  return s;
}

// ---- Tiles of activations ----------------------------------------------------------------------
//
// M rows, group after group, so that one pointer with constant offsets reaches everything:
//   quants [M][32], scales [M], then either scaled sums [M] or starts of the integer sums [M], for a
//   format with two scales [2][M].

constexpr int64_t tile_bytes_of(Type t, int rows) {
  return rows * (GROUP + 4 + (has_two_scales(t) ? 8 : 4));
}

// Enough for 8 rows of 47,000 columns; wider matrices take fewer rows at a time.
constexpr int64_t kScratch = 512 << 10;
alignas(64) thread_local uint8_t scratch[kScratch];

template <Type T, int M>
INLINE void fill_tile(const Activations& x, int64_t row, uint8_t* tile) {
  const int64_t groups = x.cols / GROUP;
  for (int64_t g = 0; g < groups; ++g, tile += tile_bytes_of(T, M)) {
    uint8_t* scales = tile + GROUP * M;
    for (int m = 0; m < M; ++m) {
      const int64_t at = (row + m) * groups + g;
      memcpy(tile + GROUP * m, x.quants + at * GROUP, GROUP);
      memcpy(scales + 4 * m, x.scales + at, 4);
      if constexpr (has_minimum(T)) {
        memcpy(scales + 4 * (M + m), x.scaled_sums + at, 4);
      } else {
        const int16_t* of_x = x.sums + 4 * at;
        const int32_t first = -zero_of(T) * (of_x[0] + of_x[1]);
        const int32_t second = -zero_of(T) * (of_x[2] + of_x[3]);
        const int32_t start = has_two_scales(T) ? first : first + second;
        memcpy(scales + 4 * (M + m), &start, 4);
        if constexpr (has_two_scales(T)) memcpy(scales + 4 * (2 * M + m), &second, 4);
      }
    }
  }
}

// ---- Quantised matrices ------------------------------------------------------------------------

// sum += vectors [BEGIN, END) times their words. Few rows: two sums, so as not to wait for one; the
// sum is exact either way.
template <int M, int BEGIN, int END>
INLINE __m512i dot(const __m512i* v, const uint8_t* words, __m512i sum) {
  if constexpr (M < 4 && END - BEGIN == 8) {
    __m512i other = _mm512_setzero_si512();
    UNROLL for (int j = BEGIN; j < END; j += 2) {
      sum = add_dot(sum, v[j], words + 4 * j);
      other = add_dot(other, v[j + 1], words + 4 * j + 4);
    }
    return _mm512_add_epi32(sum, other);
  }
  UNROLL for (int j = BEGIN; j < END; ++j) {
    sum = add_dot(sum, v[j], words + 4 * j);
  }
  return sum;
}

INLINE __m512 scaled_add(__m512i dot, __m512 scale, const uint8_t* activation_scale, __m512 sum) {
  const __m512 both = _mm512_mul_ps(scale, broadcast_float(activation_scale));
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, sum);
}

// One group of weights for all rows of the tile.
template <Type T, int M>
INLINE void add_group(const __m512i* v, const Scales& s, const uint8_t* tile, __m512* sums) {
  const uint8_t* scales = tile + GROUP * M;
  const uint8_t* second = scales + 4 * M;
  UNROLL for (int m = 0; m < M; ++m) {
    const uint8_t* words = tile + GROUP * m;
    if constexpr (has_two_scales(T)) {
      const __m512i low = dot<M, 0, 4>(v, words, broadcast_int(second + 4 * m));
      const __m512i high = dot<M, 4, 8>(v, words, broadcast_int(second + 4 * (M + m)));
      sums[m] = scaled_add(low, s.scale[0], scales + 4 * m, sums[m]);
      sums[m] = scaled_add(high, s.scale[1], scales + 4 * m, sums[m]);
    } else if constexpr (has_minimum(T)) {
      const __m512i all = dot<M, 0, 8>(v, words, _mm512_setzero_si512());
      sums[m] = scaled_add(all, s.scale[0], scales + 4 * m, sums[m]);
      const __m512 scaled_sum = broadcast_float(second + 4 * m);
      sums[m] = is_k(T) ? _mm512_fnmadd_ps(s.minimum, scaled_sum, sums[m])
                        : _mm512_fmadd_ps(s.minimum, scaled_sum, sums[m]);
    } else {
      const __m512i all = dot<M, 0, 8>(v, words, broadcast_int(second + 4 * m));
      sums[m] = scaled_add(all, s.scale[0], scales + 4 * m, sums[m]);
    }
  }
}

// A panel times a tile. `next` is the panel that will be read after it.
template <Type T, int M>
INLINE void multiply_panel(const Layout& layout, const uint8_t* panel, const uint8_t* next,
                           int64_t groups, const uint8_t* tile, int64_t lanes, float* out,
                           int64_t stride) {
  constexpr int64_t group_bytes = group_bytes_of(T);
  constexpr int lines = bits_of(T);
  constexpr int64_t span = is_k(T) ? 8 : 1;
  constexpr int64_t ahead = kAhead / group_bytes;
  __m512 sums[M];
  UNROLL for (int m = 0; m < M; ++m) sums[m] = _mm512_setzero_ps();

  const uint8_t* scales = panel + layout.scales;
  const uint8_t* subscales = panel + layout.subscales;
  for (int64_t first = 0; first < groups; first += span, scales += scale_bytes_of(T)) {
    const __m512 d = halves(scales);
    const __m512 m = has_minimum(T) ? halves(scales + 32) : d;
    for (int64_t g = first; g < first + span; ++g) {
      const bool here = g + ahead < groups;
      const uint8_t* far = here ? panel : next;
      const int64_t far_group = here ? g + ahead : g + ahead - groups;
      UNROLL for (int line = 0; line < lines; ++line) {
        prefetch(far + far_group * group_bytes + 64 * line);
      }
      prefetch(far + layout.scales + far_group / span * scale_bytes_of(T));
      if constexpr (is_k(T)) prefetch(far + layout.subscales + far_group * 32);

      __m512i v[8];
      expand<T>(panel + g * group_bytes, v);
      add_group<T, M>(v, scales_of<T>(d, m, subscales), tile, sums);
      tile += tile_bytes_of(T, M);
      subscales += 32;
    }
  }
  UNROLL for (int m = 0; m < M; ++m) store_lanes(out + m * stride, lanes, sums[m]);
}

template <Type T, int M>
void multiply_tile(const Packed& w, int64_t begin, int64_t end, const Activations& x, int64_t row,
                   float* out, int64_t stride) {
  fill_tile<T, M>(x, row, scratch);
  for (int64_t p = begin; p < end; ++p) {
    const uint8_t* next = w.panel(p + 1 < end ? p + 1 : p);
    multiply_panel<T, M>(w.layout, w.panel(p), next, w.cols / GROUP, scratch, w.rows - p * PANEL,
                         out + row * stride + p * PANEL, stride);
  }
}

// ---- Float matrices ----------------------------------------------------------------------------

template <Type T>
INLINE __m512 load_column(const uint8_t* p) {
  if constexpr (T == Type::F32) return _mm512_loadu_ps(reinterpret_cast<const float*>(p));
  if constexpr (T == Type::F16) return halves(p);
  const __m256i column = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(column), 16));
}

// Even columns in one sum, odd ones in another.
template <Type T, int M>
void multiply_tile_floats(const Packed& w, int64_t begin, int64_t end, const Activations& x,
                          int64_t row, float* out, int64_t stride) {
  constexpr int64_t column_bytes = PANEL * (T == Type::F32 ? 4 : 2);
  const float* values = x.values + row * x.cols;
  for (int64_t p = begin; p < end; ++p) {
    const uint8_t* panel = w.panel(p);
    __m512 even[M], odd[M];
    UNROLL for (int m = 0; m < M; ++m) even[m] = odd[m] = _mm512_setzero_ps();
    int64_t c = 0;
    for (; c + 1 < x.cols; c += 2, panel += 2 * column_bytes) {
      prefetch(panel + kAhead);
      if constexpr (column_bytes == 64) prefetch(panel + kAhead + 64);
      const __m512 first = load_column<T>(panel);
      const __m512 second = load_column<T>(panel + column_bytes);
      UNROLL for (int m = 0; m < M; ++m) {
        even[m] = _mm512_fmadd_ps(first, broadcast_float(values + m * x.cols + c), even[m]);
        odd[m] = _mm512_fmadd_ps(second, broadcast_float(values + m * x.cols + c + 1), odd[m]);
      }
    }
    if (c < x.cols) {
      const __m512 last = load_column<T>(panel);
      UNROLL for (int m = 0; m < M; ++m) {
        even[m] = _mm512_fmadd_ps(last, broadcast_float(values + m * x.cols + c), even[m]);
      }
    }
    float* first_out = out + row * stride + p * PANEL;
    UNROLL for (int m = 0; m < M; ++m) {
      store_lanes(first_out + m * stride, w.rows - p * PANEL, _mm512_add_ps(even[m], odd[m]));
    }
  }
}

// ---- The loops around -------------------------------------------------------------------------

template <Type T, int M>
void multiply_rows(const Packed& w, int64_t begin, int64_t end, const Activations& x, int64_t row,
                   float* out, int64_t stride) {
  if constexpr (is_float(T)) {
    multiply_tile_floats<T, M>(w, begin, end, x, row, out, stride);
  } else {
    multiply_tile<T, M>(w, begin, end, x, row, out, stride);
  }
}

// Tiles of nearly equal size, since a small one costs more for each row; several of them go over a
// block of panels while it is in cache.
template <Type T>
void matmul_of(const Packed& w, int64_t begin, int64_t end, const Activations& x, float* out,
               int64_t stride) {
  int64_t most = kTile;
  if constexpr (!is_float(T)) {
    most = smaller(most, kScratch / (w.cols / GROUP * tile_bytes_of(T, 1)));
    if (most == 0) return portable_kernels()->matmul(T)(w, begin, end, x, out, stride);
  }
  const int64_t tiles = (x.rows + most - 1) / most;
  const int64_t panels = kBlock / w.layout.panel_bytes > 0 ? kBlock / w.layout.panel_bytes : 1;
  const int64_t step = tiles > 1 ? panels : end - begin;
  for (int64_t p = begin; p < end; p += step) {
    const int64_t last = smaller(end, p + step);
    int64_t row = 0;
    for (int64_t t = 0; t < tiles; ++t) {
      const int64_t rows = (x.rows - row + tiles - t - 1) / (tiles - t);
      switch (rows) {
        case 1: multiply_rows<T, 1>(w, p, last, x, row, out, stride); break;
        case 2: multiply_rows<T, 2>(w, p, last, x, row, out, stride); break;
        case 3: multiply_rows<T, 3>(w, p, last, x, row, out, stride); break;
        case 4: multiply_rows<T, 4>(w, p, last, x, row, out, stride); break;
        case 5: multiply_rows<T, 5>(w, p, last, x, row, out, stride); break;
        case 6: multiply_rows<T, 6>(w, p, last, x, row, out, stride); break;
        case 7: multiply_rows<T, 7>(w, p, last, x, row, out, stride); break;
        case 8: multiply_rows<T, 8>(w, p, last, x, row, out, stride); break;
      }
      row += rows;
    }
  }
}

MatMul matmul(Type type) {
  switch (type) {
    case Type::F32: return matmul_of<Type::F32>;
    case Type::F16: return matmul_of<Type::F16>;
    case Type::BF16: return matmul_of<Type::BF16>;
    case Type::Q4_0: return matmul_of<Type::Q4_0>;
    case Type::Q4_1: return matmul_of<Type::Q4_1>;
    case Type::Q5_0: return matmul_of<Type::Q5_0>;
    case Type::Q5_1: return matmul_of<Type::Q5_1>;
    case Type::Q8_0: return matmul_of<Type::Q8_0>;
    case Type::Q4_K: return matmul_of<Type::Q4_K>;
    case Type::Q5_K: return matmul_of<Type::Q5_K>;
    case Type::Q6_K: return matmul_of<Type::Q6_K>;
  }
  return nullptr;
}

// ---- Activations -------------------------------------------------------------------------------

INLINE __m256 upper(__m512 v) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)); }

// Lanes 8 apart, then 4, 2, 1.
INLINE float sum_of_lanes(__m512 v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), upper(v));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}

INLINE float maximum_of_lanes(__m512 v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), upper(v));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

INLINE int32_t maximum_of_ints(__m512i v) {
  const __m256i eight = _mm256_max_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

void quantize(const float* x, int64_t cols, int8_t* quants, float* scales, float* scaled_sums,
              int16_t* sums) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int64_t g = 0; g < cols / GROUP; ++g) {
    const __m512 low = _mm512_loadu_ps(x + g * GROUP);
    const __m512 high = _mm512_loadu_ps(x + g * GROUP + 16);
    // As integers, NaN is above infinity and infinity above the rest.
    const int32_t largest = maximum_of_ints(
        _mm512_max_epi32(_mm512_and_si512(magnitude, _mm512_castps_si512(low)),
                         _mm512_and_si512(magnitude, _mm512_castps_si512(high))));
    float maximum;
    memcpy(&maximum, &largest, sizeof maximum);
    if (largest >= 0x7f800000 || !(maximum >= kSmallestMaximum)) {
      const int32_t nan = 0x7fc00000;
      scales[g] = 0.0f;
      if (largest >= 0x7f800000) memcpy(&scales[g], &nan, sizeof nan);
      scaled_sums[g] = scales[g];
      memset(quants + g * GROUP, 0, GROUP);
      memset(sums + 4 * g, 0, 4 * sizeof *sums);
      continue;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / maximum);
    const __m128i first = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)));
    const __m128i second = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)));
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants + g * GROUP), all);
    // Sums of two bytes; then every 32 bits of a half hold both sums of its 16.
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), all);
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    const int32_t of_first = _mm256_extract_epi32(pairs, 0);
    const int32_t of_second = _mm256_extract_epi32(pairs, 4);
    memcpy(sums + 4 * g, &of_first, sizeof of_first);
    memcpy(sums + 4 * g + 2, &of_second, sizeof of_second);
    const __m256i whole = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const int total = _mm256_extract_epi32(whole, 0) + _mm256_extract_epi32(whole, 4);
    scales[g] = maximum / 127.0f;
    scaled_sums[g] = scales[g] * static_cast<float>(total);
  }
}

void rms_norm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 32) {
    const __m512 first = load_lanes(x + i, n - i);
    even = _mm512_fmadd_ps(first, first, even);
    if (i + 16 >= n) break;
    const __m512 second = load_lanes(x + i + 16, n - i - 16);
    odd = _mm512_fmadd_ps(second, second, odd);
  }
  const float mean = sum_of_lanes(_mm512_add_ps(even, odd)) / static_cast<float>(n);
  const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(mean + epsilon)));
  const __m512 scale = _mm512_set1_ps(1.0f / root);
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 scaled = _mm512_mul_ps(load_lanes(x + i, n - i), scale);
    store_lanes(out + i, n - i, _mm512_mul_ps(scaled, load_lanes(weight + i, n - i)));
  }
}

// Beyond the bounds 2^n over- or underflows by itself. NaN stays NaN: maximum and minimum give their
// second operand then.
INLINE __m512 exponential(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-104.0f), x);
  x = _mm512_min_ps(_mm512_set1_ps(89.0f), x);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2E)), 0x08);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2High), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Low), r);
  __m512 series = _mm512_fmadd_ps(r, _mm512_set1_ps(kExp6), _mm512_set1_ps(kExp5));
  series = _mm512_fmadd_ps(r, series, _mm512_set1_ps(kExp4));
  series = _mm512_fmadd_ps(r, series, _mm512_set1_ps(kExp3));
  series = _mm512_fmadd_ps(r, series, _mm512_set1_ps(kExp2));
  const __m512 tail = _mm512_fmadd_ps(_mm512_mul_ps(r, r), series, r);
  return _mm512_scalef_ps(_mm512_add_ps(_mm512_set1_ps(1.0f), tail), n);
}

// gate * sigmoid(t) * up
INLINE __m512 gated(__m512 gate, __m512 t, __m512 up) {
  const __m512 minus = _mm512_sub_ps(_mm512_setzero_ps(), t);
  const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exponential(minus));
  return _mm512_mul_ps(_mm512_div_ps(gate, below), up);
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 g = load_lanes(gate + i, n - i);
    store_lanes(out + i, n - i, gated(g, g, load_lanes(up + i, n - i)));
  }
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 g = load_lanes(gate + i, n - i);
    const __m512 square = _mm512_mul_ps(g, g);
    const __m512 slope = _mm512_fmadd_ps(square, _mm512_set1_ps(kGeluB), _mm512_set1_ps(kGeluA));
    store_lanes(out + i, n - i, gated(g, _mm512_mul_ps(g, slope), load_lanes(up + i, n - i)));
  }
}

// ---- Attention ---------------------------------------------------------------------------------

template <int H>
INLINE void scores_of_heads(const float* query, int64_t dim, const uint16_t* keys, float* out,
                            int64_t out_stride) {
  __m512 sums[H];
  UNROLL for (int h = 0; h < H; ++h) sums[h] = _mm512_setzero_ps();
  for (int64_t d = 0; d < dim; ++d) {
    const __m512 column = halves(keys + d * 16);
    UNROLL for (int h = 0; h < H; ++h) {
      sums[h] = _mm512_fmadd_ps(broadcast_float(query + h * dim + d), column, sums[h]);
    }
  }
  UNROLL for (int h = 0; h < H; ++h) _mm512_storeu_ps(out + h * out_stride, sums[h]);
}

void attention_scores(const float* query, int64_t heads, int64_t dim, const uint16_t* keys,
                      float* out, int64_t out_stride) {
  while (heads > 0) {
    const int64_t some = smaller(heads, 8);
    switch (some) {
      case 1: scores_of_heads<1>(query, dim, keys, out, out_stride); break;
      case 2: scores_of_heads<2>(query, dim, keys, out, out_stride); break;
      case 3: scores_of_heads<3>(query, dim, keys, out, out_stride); break;
      case 4: scores_of_heads<4>(query, dim, keys, out, out_stride); break;
      case 5: scores_of_heads<5>(query, dim, keys, out, out_stride); break;
      case 6: scores_of_heads<6>(query, dim, keys, out, out_stride); break;
      case 7: scores_of_heads<7>(query, dim, keys, out, out_stride); break;
      case 8: scores_of_heads<8>(query, dim, keys, out, out_stride); break;
    }
    query += some * dim;
    out += some * out_stride;
    heads -= some;
  }
}

float softmax(float* scores, int64_t n) {
  const __m512 lowest = _mm512_set1_ps(-3.402823466e+38f);
  __m512 most = lowest;
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 some = load_lanes(scores + i, n - i);
    most = _mm512_max_ps(_mm512_mask_mov_ps(lowest, first_lanes(n - i), some), most);
  }
  const __m512 maximum = _mm512_set1_ps(maximum_of_lanes(most));
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 16) {
    const __m512 shifted = _mm512_sub_ps(load_lanes(scores + i, n - i), maximum);
    const __m512 weights = _mm512_maskz_mov_ps(first_lanes(n - i), exponential(shifted));
    _mm512_storeu_ps(scores + i, weights);
    sum = _mm512_add_ps(sum, weights);
  }
  return sum_of_lanes(sum);
}

template <int H>
INLINE void values_for_heads(const float* weights, int64_t weights_stride, int64_t positions,
                             const uint16_t* values, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; d += 16) {
    __m512 sums[H];
    UNROLL for (int h = 0; h < H; ++h) sums[h] = _mm512_loadu_ps(out + h * dim + d);
    for (int64_t p = 0; p < positions; ++p) {
      const __m512 value = halves(values + p * dim + d);
      UNROLL for (int h = 0; h < H; ++h) {
        const __m512 weight = broadcast_float(weights + h * weights_stride + p);
        sums[h] = _mm512_fmadd_ps(weight, value, sums[h]);
      }
    }
    UNROLL for (int h = 0; h < H; ++h) _mm512_storeu_ps(out + h * dim + d, sums[h]);
  }
}

void attention_values(const float* weights, int64_t weights_stride, int64_t heads,
                      int64_t positions, const uint16_t* values, int64_t dim, float* out) {
  while (heads > 0) {
    const int64_t some = smaller(heads, 8);
    switch (some) {
      case 1: values_for_heads<1>(weights, weights_stride, positions, values, dim, out); break;
      case 2: values_for_heads<2>(weights, weights_stride, positions, values, dim, out); break;
      case 3: values_for_heads<3>(weights, weights_stride, positions, values, dim, out); break;
      case 4: values_for_heads<4>(weights, weights_stride, positions, values, dim, out); break;
      case 5: values_for_heads<5>(weights, weights_stride, positions, values, dim, out); break;
      case 6: values_for_heads<6>(weights, weights_stride, positions, values, dim, out); break;
      case 7: values_for_heads<7>(weights, weights_stride, positions, values, dim, out); break;
      case 8: values_for_heads<8>(weights, weights_stride, positions, values, dim, out); break;
    }
    weights += some * weights_stride;
    out += some * dim;
    heads -= some;
  }
}

void to_half(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i += 16) {
    const __m256i half = _mm512_cvtps_ph(load_lanes(x + i, n - i), _MM_FROUND_TO_NEAREST_INT);
    if (n - i >= 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), half);
    } else {
      uint16_t rest[16];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest), half);
      memcpy(out + i, rest, static_cast<size_t>(n - i) * 2);
    }
  }
}

void from_half(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 16) {
    uint16_t rest[16] = {};
    if (n - i < 16) memcpy(rest, x + i, static_cast<size_t>(n - i) * 2);
    store_lanes(out + i, n - i, halves(n - i >= 16 ? x + i : rest));
  }
}

constexpr Kernels kTable = {"avx512", matmul,           quantize, rms_norm,
                            silu_mul, gelu_mul,         attention_scores,
                            softmax,  attention_values, to_half,  from_half};

// Whether the processor has the instructions and the system saves the registers.
bool runs_here() {
#if defined(DRAFTPROOF_EMULATE)
  return true;
#elif defined(_MSC_VER)
  int leaf[4];
  __cpuid(leaf, 0);
  if (leaf[0] < 7) return false;
  __cpuid(leaf, 1);
  if ((leaf[2] & (1 << 27)) == 0 || (_xgetbv(0) & 0xe6) != 0xe6) return false;
  __cpuidex(leaf, 7, 0);
  const unsigned f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
  const unsigned all = f | dq | bw | vl;
  return (static_cast<unsigned>(leaf[1]) & all) == all && (leaf[2] & (1 << 11)) != 0;
#else
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
#endif
}

}  // namespace

const Kernels* avx512_kernels() { return runs_here() ? &kTable : nullptr; }

}  // namespace draftproof

#else

namespace draftproof {
const Kernels* avx512_kernels() { return nullptr; }
}  // namespace draftproof

#endif
