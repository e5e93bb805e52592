// Memory that passes reuse.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "kernels.h"

namespace draftproof {

/// Quantised activations, written row by row.
struct QuantizedRows {
  std::vector<int8_t> quants;
  std::vector<float> scales, scaled_sums;
  std::vector<int16_t> sums;

  void reserve(int64_t rows, int64_t cols) {
    const auto grow = [](auto& vector, int64_t size) {
      if (static_cast<int64_t>(vector.size()) < size) vector.resize(size);
    };
    grow(quants, rows * cols);
    grow(scales, rows * (cols / GROUP + 1));
    grow(scaled_sums, rows * (cols / GROUP + 1));
    grow(sums, rows * (cols / 8 + 4));
  }
};

/// What one thread needs for attention.
struct ThreadScratch {
  std::vector<float> scores, output, sums, remainder;
  std::vector<uint16_t> keys, values;  // 16 positions of a path through a tree
};

struct Scratch {
  std::mutex turn;  // held by the pass that uses it
  std::vector<float> x, normed, q, k, v, attended, projected, gate, up, rotation;
  QuantizedRows quantized;
  std::vector<ThreadScratch> threads;
};

}  // namespace draftproof
