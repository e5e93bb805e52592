#include "coarsen.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "packed.h"

namespace draftproof {
namespace {

constexpr int64_t kBlockBytes = 18;  // of 32 weights: the scale in 16 bits, and 4 bits each
constexpr int64_t kRows = 64;        // that a thread takes at a time

void quantize_block(const float* x, const Kernels& kernels, uint8_t* out) {
  float largest = 0;
  for (int64_t i = 0; i < GROUP; ++i) {
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  }
  const float scale = largest / -8;
  float inverse = scale != 0 ? 1 / scale : 0;
  if (!std::isfinite(inverse)) inverse = 0;  // so small a scale is 0 in 16 bits
  uint16_t half;
  kernels.to_half(&scale, 1, &half);
  std::memcpy(out, &half, sizeof half);
  const auto step = [&](float value) {
    return static_cast<uint8_t>(std::min(15.0f, std::max(0.0f, value * inverse + 8.5f)));
  };
  for (int64_t i = 0; i < GROUP / 2; ++i) {
    out[2 + i] = static_cast<uint8_t>(step(x[i]) | step(x[i + GROUP / 2]) << 4);
  }
}

}  // namespace

bool coarsens(Type type, int64_t rows, int64_t cols) {
  const bool coarse = type == Type::Q4_0 || type == Type::Q4_1 || type == Type::Q4_K;
  return !coarse && rows > 1 && cols % GROUP == 0;
}

std::vector<uint8_t> coarsened(Type type, int64_t rows, int64_t cols, const uint8_t* source,
                               Pool& pool) {
  const int64_t stored = row_bytes(type, cols), bytes = cols / GROUP * kBlockBytes;
  const Kernels& kernels = best_kernels();
  std::vector<uint8_t> out(static_cast<size_t>(rows * bytes));
  pool.run((rows + kRows - 1) / kRows, [&](int64_t part, int) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t row = part * kRows; row < std::min(rows, (part + 1) * kRows); ++row) {
      dequantize_source(type, source + row * stored, cols, values.data());
      for (int64_t i = 0; i < cols / GROUP; ++i) {
        quantize_block(values.data() + i * GROUP, kernels, out.data() + row * bytes + i * kBlockBytes);
      }
    }
  });
  return out;
}

}  // namespace draftproof
