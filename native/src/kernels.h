// One table of functions, filled once for each instruction set.
//
// What every kernel owes: the bits of a row of the output depend on that row's input alone, never on
// how many rows are computed together, which they are, or which thread computes which panels. So each
// row goes through the same operations in the same order, whatever the tiling. Integer dot products
// are exact; floats are added in one fixed order. Different instruction sets may round differently.
//
// A kernel file is compiled for its instruction set alone. It must define nothing but its table with
// external linkage and use no templates or inline functions of the standard library: a linker keeps
// one copy of those, and it might keep the one that this processor cannot run.
#pragma once

#include <cstdint>

#include "packed.h"

namespace draftproof {

/// Rows of activations as the matrix kernels read them. Quantised matrices read signed bytes with one
/// scale per row and group of 32 columns, float matrices the values themselves.
struct Activations {
  int64_t rows = 0;
  int64_t cols = 0;
  const float* values = nullptr;       // [rows][cols]
  const int8_t* quants = nullptr;      // [rows][cols], in -127..127
  const float* scales = nullptr;       // [rows][cols / 32]
  const float* scaled_sums = nullptr;  // [rows][cols / 32]: scale times the sum of the group's quants
  const int16_t* sums = nullptr;       // [rows][cols / 16][2]: of 16 quants, those at columns 0 and 1
                                       // of each four, and those at 2 and 3
};

/// out[row * stride + i] = dot(weights row i, activations row), for the output rows of panels
/// [begin, end). Only output rows below `weights.rows` are written.
///
/// For a quantised matrix, a group of 32 columns (two of 16 for Q6_K) adds
///   float(integer dot) * (weight scale * activation scale)   by one fused multiply-add, and then,
/// where the format has a minimum,
///   weight minimum * scaled sum                              by another,
/// group after group, in order, starting from zero. Weight scale and minimum are the products of the
/// format's own parts in float32. For Q6_K a table may apply the integer scales to the two integer dots
/// and add these up first: one float(integer) * (d * activation scale) a group.
using MatMul = void (*)(const Packed& weights, int64_t begin, int64_t end, const Activations& x,
                        float* out, int64_t stride);

/// Below it 127 / max would overflow.
constexpr float kSmallestMaximum = 1e-36f;

struct Kernels {
  const char* name;

  MatMul (*matmul)(Type type);

  /// One row to signed bytes: scale = max |x| / 127 per 32 columns, rounded to nearest, ties to even.
  /// `cols` is a multiple of 32. A group of zeros has scale 0, and one whose largest |x| is below
  /// `kSmallestMaximum` may. A group with a NaN or an infinity has quants 0, a scale that is one of
  /// them and the scaled sum NaN, so that NaN reaches every output.
  void (*quantize)(const float* x, int64_t cols, int8_t* quants, float* scales, float* scaled_sums,
                   int16_t* sums);

  /// out = x / sqrt(mean(x^2) + epsilon) * weight. `out` may be `x`.
  void (*rms_norm)(const float* x, const float* weight, int64_t n, float epsilon, float* out);

  /// out = silu(gate) * up, and the same with the tanh form of gelu. Every element's bits depend on that
  /// element alone, whatever n or the alignment. `out` may be `gate`.
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);
  void (*gelu_mul)(const float* gate, const float* up, int64_t n, float* out);

  /// Scores of `heads` query vectors against 16 neighbouring positions:
  ///   out[h * out_stride + lane] = sum over d of query[h * dim + d] * keys[d * 16 + lane],
  /// in order of d. Keys are fp16.
  void (*attention_scores)(const float* query, int64_t heads, int64_t dim, const uint16_t* keys,
                           float* out, int64_t out_stride);

  /// Scores to weights, in place: exp(score - max) over `n` positions. `scores` has room up to the next
  /// multiple of 16, which is filled with zeros. Returns the sum of the weights.
  float (*softmax)(float* scores, int64_t n);

  /// For each of `heads` query vectors, in order of position p < positions (at most 16):
  ///   out[h * dim + d] += weights[h * weights_stride + p] * values[p * dim + d].
  /// Values are fp16; `dim` is a multiple of 16.
  void (*attention_values)(const float* weights, int64_t weights_stride, int64_t heads,
                           int64_t positions, const uint16_t* values, int64_t dim, float* out);

  /// Rounded to nearest, ties to even; and back.
  void (*to_half)(const float* x, int64_t n, uint16_t* out);
  void (*from_half)(const uint16_t* x, int64_t n, float* out);
};

/// The tables, or null where they are not built in or this processor cannot run them.
const Kernels* portable_kernels();  // never null
const Kernels* avx2_kernels();      // AVX2, FMA, F16C
const Kernels* avx512_kernels();    // AVX-512 F, BW, DQ, VL and VNNI

/// The fastest table that this processor runs.
const Kernels& best_kernels();

/// By name; null where there is none or it cannot run here.
const Kernels* find_kernels(const char* name);

}  // namespace draftproof
