// The kernels in plain C++: what every other table is tested against, and what runs where there is no
// other. Loops over the 16 rows of a panel are left to the compiler to vectorise.
#include <cmath>
#include <cstring>
#include <limits>

#include "exp_series.h"
#include "half.h"
#include "kernels.h"

namespace draftproof {
namespace {

constexpr int kLanes = static_cast<int>(PANEL);
constexpr int kTile = 8;  // rows of activations that share an expanded group of weights

// ---- A group of weights, expanded: value[4 r + i] of vector j is row r's at column 4 j + i.

struct Group {
  int8_t values[8][64];  // the format's zero subtracted
  float scale[2][kLanes];
  float minimum[kLanes];
};

uint8_t low_bits(const uint8_t* quants, int j, int b) {
  return static_cast<uint8_t>((quants[64 * (j / 2) + b] >> (j % 2 * 4)) & 0x0f);
}

template <int bits>
void expand_values(const uint8_t* quants, int zero, Group& group) {
  for (int j = 0; j < 8; j++) {
    for (int b = 0; b < 64; b++) {
      int value = 0;
      if constexpr (bits == 8) {
        value = static_cast<int8_t>(quants[64 * j + b]);
      } else {
        value = low_bits(quants, j, b);
        if constexpr (bits == 5) value |= ((quants[256 + b] >> j) & 1) << 4;
        if constexpr (bits == 6) value |= ((quants[256 + 64 * (j / 4) + b] >> (j % 4 * 2)) & 3) << 4;
      }
      group.values[j][b] = static_cast<int8_t>(value - zero);
    }
  }
}

void load_halves(const uint8_t* bytes, float* out) {
  for (int r = 0; r < kLanes; r++) {
    uint16_t half;
    std::memcpy(&half, bytes + 2 * r, sizeof half);
    out[r] = half_to_float(half);
  }
}

// What tells the formats apart: bits of a value, its zero, and how scales are stored.
enum class Scales { One, Two, TwoSixBits, OneHalves };

template <Type type>
struct Format;
template <int bits_, int zero_, Scales scales_>
struct Shape {
  static constexpr int bits = bits_, zero = zero_;
  static constexpr Scales scales = scales_;
};
template <> struct Format<Type::Q4_0> : Shape<4, 8, Scales::One> {};
template <> struct Format<Type::Q4_1> : Shape<4, 0, Scales::Two> {};
template <> struct Format<Type::Q5_0> : Shape<5, 16, Scales::One> {};
template <> struct Format<Type::Q5_1> : Shape<5, 0, Scales::Two> {};
template <> struct Format<Type::Q8_0> : Shape<8, 0, Scales::One> {};
template <> struct Format<Type::Q4_K> : Shape<4, 0, Scales::TwoSixBits> {};
template <> struct Format<Type::Q5_K> : Shape<5, 0, Scales::TwoSixBits> {};
template <> struct Format<Type::Q6_K> : Shape<6, 32, Scales::OneHalves> {};

template <Type type>
constexpr bool has_minimum() {
  return Format<type>::scales == Scales::Two || Format<type>::scales == Scales::TwoSixBits;
}

template <Type type>
void expand(const Packed& weights, const uint8_t* panel, int64_t g, Group& group) {
  using F = Format<type>;
  expand_values<F::bits>(panel + g * weights.layout.group_bytes, F::zero, group);
  const uint8_t* scales = panel + weights.layout.scales;
  const uint8_t* subscales = panel + weights.layout.subscales + g * 2 * PANEL;
  if constexpr (F::scales == Scales::One) {
    load_halves(scales + g * 2 * PANEL, group.scale[0]);
  }
  if constexpr (F::scales == Scales::Two) {
    load_halves(scales + g * 4 * PANEL, group.scale[0]);
    load_halves(scales + g * 4 * PANEL + 2 * PANEL, group.minimum);
  }
  if constexpr (F::scales == Scales::TwoSixBits) {
    load_halves(scales + g / 8 * 4 * PANEL, group.scale[0]);
    load_halves(scales + g / 8 * 4 * PANEL + 2 * PANEL, group.minimum);
    for (int r = 0; r < kLanes; r++) {
      group.scale[0][r] *= static_cast<float>(subscales[r]);
      group.minimum[r] *= -static_cast<float>(subscales[PANEL + r]);
    }
  }
  if constexpr (F::scales == Scales::OneHalves) {
    float d[kLanes];
    load_halves(scales + g / 8 * 2 * PANEL, d);
    for (int h = 0; h < 2; h++) {
      for (int r = 0; r < kLanes; r++) {
        group.scale[h][r] = d[r] * static_cast<float>(static_cast<int8_t>(subscales[h * PANEL + r]));
      }
    }
  }
}

// dot[r] = the group's vectors [begin, end) of row r times the quants.
void integer_dot(const Group& group, const int8_t* quants, int begin, int end, int32_t* dot) {
  for (int r = 0; r < kLanes; r++) dot[r] = 0;
  for (int j = begin; j < end; j++) {
    for (int r = 0; r < kLanes; r++) {
      const int8_t* values = group.values[j] + 4 * r;
      const int8_t* x = quants + 4 * j;
      dot[r] += values[0] * x[0] + values[1] * x[1] + values[2] * x[2] + values[3] * x[3];
    }
  }
}

void scaled_add(const int32_t* dot, const float* scale, float activation_scale, float* sums) {
  for (int r = 0; r < kLanes; r++) {
    sums[r] = std::fma(static_cast<float>(dot[r]), scale[r] * activation_scale, sums[r]);
  }
}

// ---- Matrix products.

int64_t minimum_of(int64_t a, int64_t b) { return a < b ? a : b; }

void store_panel(const Packed& weights, int64_t p, int64_t row, int64_t rows,
                 const float (*sums)[kLanes], float* out, int64_t stride) {
  const int64_t lanes = minimum_of(PANEL, weights.rows - p * PANEL);
  for (int64_t m = 0; m < rows; m++) {
    std::memcpy(out + (row + m) * stride + p * PANEL, sums[m],
                static_cast<size_t>(lanes) * sizeof(float));
  }
}

template <Type type>
void matmul_quantised(const Packed& weights, int64_t begin, int64_t end, const Activations& x,
                      float* out, int64_t stride) {
  constexpr bool halves = Format<type>::scales == Scales::OneHalves;
  const int64_t groups = weights.cols / GROUP;
  for (int64_t p = begin; p < end; p++) {
    for (int64_t row = 0; row < x.rows; row += kTile) {
      const int64_t rows = minimum_of(kTile, x.rows - row);
      float sums[kTile][kLanes] = {};
      for (int64_t g = 0; g < groups; g++) {
        Group group;
        expand<type>(weights, weights.panel(p), g, group);
        for (int64_t m = 0; m < rows; m++) {
          const int8_t* quants = x.quants + (row + m) * x.cols + g * GROUP;
          const int64_t at = (row + m) * groups + g;
          int32_t dot[kLanes];
          integer_dot(group, quants, 0, halves ? 4 : 8, dot);
          scaled_add(dot, group.scale[0], x.scales[at], sums[m]);
          if constexpr (halves) {
            integer_dot(group, quants, 4, 8, dot);
            scaled_add(dot, group.scale[1], x.scales[at], sums[m]);
          }
          if constexpr (has_minimum<type>()) {
            for (int r = 0; r < kLanes; r++) {
              sums[m][r] = std::fma(group.minimum[r], x.scaled_sums[at], sums[m][r]);
            }
          }
        }
      }
      store_panel(weights, p, row, rows, sums, out, stride);
    }
  }
}

template <Type type>
void load_column(const uint8_t* panel, int64_t c, float* out) {
  if constexpr (type == Type::F32) {
    std::memcpy(out, panel + c * PANEL * 4, PANEL * 4);
  } else if constexpr (type == Type::F16) {
    load_halves(panel + c * PANEL * 2, out);
  } else {
    for (int r = 0; r < kLanes; r++) {
      uint16_t bits;
      std::memcpy(&bits, panel + (c * PANEL + r) * 2, sizeof bits);
      out[r] = float_of_bits(static_cast<uint32_t>(bits) << 16);
    }
  }
}

template <Type type>
void matmul_floats(const Packed& weights, int64_t begin, int64_t end, const Activations& x, float* out,
                   int64_t stride) {
  for (int64_t p = begin; p < end; p++) {
    for (int64_t row = 0; row < x.rows; row += kTile) {
      const int64_t rows = minimum_of(kTile, x.rows - row);
      float sums[kTile][kLanes] = {};
      for (int64_t c = 0; c < weights.cols; c++) {
        float column[kLanes];
        load_column<type>(weights.panel(p), c, column);
        for (int64_t m = 0; m < rows; m++) {
          const float value = x.values[(row + m) * x.cols + c];
          for (int r = 0; r < kLanes; r++) sums[m][r] = std::fma(column[r], value, sums[m][r]);
        }
      }
      store_panel(weights, p, row, rows, sums, out, stride);
    }
  }
}

MatMul matmul(Type type) {
  switch (type) {
    case Type::F32: return matmul_floats<Type::F32>;
    case Type::F16: return matmul_floats<Type::F16>;
    case Type::BF16: return matmul_floats<Type::BF16>;
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

// ---- Activations.

// To the nearest whole number, ties to even, for |x| < 2^22: the sum has no bits left for a fraction.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

void quantize(const float* x, int64_t cols, int8_t* quants, float* scales, float* scaled_sums,
              int16_t* sums) {
  for (int64_t g = 0; g < cols / GROUP; g++) {
    const float* values = x + g * GROUP;
    uint32_t largest = 0;  // as bits, where NaN is above infinity and infinity above the rest
    for (int64_t i = 0; i < GROUP; i++) {
      const uint32_t magnitude = bits_of_float(values[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    const float maximum = float_of_bits(largest);
    const bool finite = largest < 0x7f800000u;
    const bool some = finite && maximum >= kSmallestMaximum;
    const float inverse = some ? 127.0f / maximum : 0.0f;
    int total[2][2] = {};
    for (int64_t i = 0; i < GROUP; i++) {
      const float value = some ? values[i] * inverse : 0.0f;
      const int quant = static_cast<int>((value + kRounder) - kRounder);
      quants[g * GROUP + i] = static_cast<int8_t>(quant);
      total[i / 16][i % 4 / 2] += quant;
    }
    scales[g] = some ? maximum / 127.0f
                     : finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    int all = 0;
    for (int i = 0; i < 4; i++) {
      sums[4 * g + i] = static_cast<int16_t>(total[i / 2][i % 2]);
      all += total[i / 2][i % 2];
    }
    scaled_sums[g] = scales[g] * static_cast<float>(all);
  }
}

// Lanes 8 apart, then 4, 2, 1.
float sum_of_lanes(float* lanes) {
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int r = 0; r < step; r++) lanes[r] += lanes[r + step];
  }
  return lanes[0];
}

void rms_norm(const float* x, const float* weight, int64_t n, float epsilon, float* out) {
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; i++) lanes[i % kLanes] += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum_of_lanes(lanes) / static_cast<float>(n) + epsilon);
  for (int64_t i = 0; i < n; i++) out[i] = x[i] * scale * weight[i];
}

float exponential(float x) {
  const float shifted = x * kLog2E + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  const float series = kExp2 + r * (kExp3 + r * (kExp4 + r * (kExp5 + r * kExp6)));
  const float mantissa = 1.0f + (r + r * r * series);
  const float power = float_of_bits((bits_of_float(shifted) + 127u) << 23);  // 2^n
  const float inside = mantissa * power;
  return x > kExpHighest ? std::numeric_limits<float>::infinity() : x < kExpLowest ? 0.0f : inside;
}

void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

void gelu_mul(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) {
    const float g = gate[i];
    out[i] = g / (1.0f + exponential(-(g * (kGeluA + kGeluB * (g * g))))) * up[i];
  }
}

// ---- Attention.

void attention_scores(const float* query, int64_t heads, int64_t dim, const uint16_t* keys, float* out,
                      int64_t out_stride) {
  for (int64_t h = 0; h < heads; h++) {
    for (int r = 0; r < kLanes; r++) out[h * out_stride + r] = 0.0f;
  }
  for (int64_t d = 0; d < dim; d++) {
    float column[kLanes];
    for (int r = 0; r < kLanes; r++) column[r] = half_to_float(keys[d * kLanes + r]);
    for (int64_t h = 0; h < heads; h++) {
      const float value = query[h * dim + d];
      float* scores = out + h * out_stride;
      for (int r = 0; r < kLanes; r++) scores[r] = std::fma(value, column[r], scores[r]);
    }
  }
}

float softmax(float* scores, int64_t n) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < n; i++) maximum = scores[i] > maximum ? scores[i] : maximum;
  float lanes[kLanes] = {};
  for (int64_t i = 0; i < n; i++) {
    scores[i] = exponential(scores[i] - maximum);
    lanes[i % kLanes] += scores[i];
  }
  for (int64_t i = n; i % kLanes != 0; i++) scores[i] = 0.0f;
  return sum_of_lanes(lanes);
}

void attention_values(const float* weights, int64_t weights_stride, int64_t heads, int64_t positions,
                      const uint16_t* values, int64_t dim, float* out) {
  for (int64_t p = 0; p < positions; p++) {
    for (int64_t first = 0; first < dim; first += kLanes) {
      float value[kLanes];
      for (int r = 0; r < kLanes; r++) value[r] = half_to_float(values[p * dim + first + r]);
      for (int64_t h = 0; h < heads; h++) {
        const float weight = weights[h * weights_stride + p];
        float* sums = out + h * dim + first;
        for (int r = 0; r < kLanes; r++) sums[r] = std::fma(weight, value[r], sums[r]);
      }
    }
  }
}

void to_half(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; i++) out[i] = float_to_half(x[i]);
}

void from_half(const uint16_t* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = half_to_float(x[i]);
}

}  // namespace

const Kernels* portable_kernels() {
  static const Kernels table = {"portable", matmul,           quantize, rms_norm,
                                silu_mul,   gelu_mul,         attention_scores,
                                softmax,    attention_values, to_half,  from_half};
  return &table;
}

}  // namespace draftproof
