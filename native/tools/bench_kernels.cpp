// What a pass over n rows costs in a model's linear layers alone.
//
//   bench_kernels [table] [q4_k_m | q4_0 | q8_0] [threads] [rounds] [n,n,...]
//
// The shapes are those of a model of 1.5 billion weights: 28 layers of width 1536, and its output head.
// The weights are random bytes, the scales small numbers. Every round measures a plain read of memory
// and each n in turn, so that what else the machine does falls on all alike; the figures are medians.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "kernels.h"
#include "packed.h"
#include "pool.h"

namespace draftproof {
namespace {

constexpr int kLayers = 28;
constexpr int64_t kWidth = 1536, kKeys = 256, kInner = 8960, kVocabulary = 151936;
constexpr int64_t kPart = 8;  // panels that a thread takes at a time

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Packed random_matrix(Type type, int64_t rows, int64_t cols, std::mt19937_64& random) {
  Packed packed = allocate_packed(type, rows, cols);
  const Layout& layout = packed.layout;
  const bool k = info(type).block == 256;
  const int64_t fp16 = (k ? layout.subscales : layout.panel_bytes) - layout.scales;
  for (int64_t p = 0; p < packed.panels(); ++p) {
    uint8_t* panel = packed.buffer.data() + p * layout.panel_bytes;
    for (int64_t i = 0; i < layout.panel_bytes; i += 8) {
      const uint64_t word = random();
      std::memcpy(panel + i, &word, sizeof word);
    }
    uint16_t* scales = reinterpret_cast<uint16_t*>(panel + layout.scales);
    // fp16 numbers of either sign near 0.001
    for (int64_t i = 0; i < fp16 / 2; ++i) scales[i] = (scales[i] & 0x83ff) | 0x1400;
  }
  return packed;
}

std::vector<Packed> random_model(const std::string& mix) {
  std::mt19937_64 random(1);
  std::vector<Packed> matrices;
  const auto add = [&](Type type, int64_t rows, int64_t cols) {
    if (mix == "q4_0") type = Type::Q4_0;
    if (mix == "q8_0") type = Type::Q8_0;
    matrices.push_back(random_matrix(type, rows, cols, random));
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    const Type mixed = layer % 2 == 0 ? Type::Q6_K : Type::Q4_K;
    add(Type::Q4_K, kWidth, kWidth);
    add(Type::Q4_K, kKeys, kWidth);
    add(mixed, kKeys, kWidth);
    add(Type::Q4_K, kWidth, kWidth);
    add(Type::Q4_K, kInner, kWidth);
    add(Type::Q4_K, kInner, kWidth);
    add(mixed, kWidth, kInner);
  }
  add(Type::Q6_K, kVocabulary, kWidth);
  return matrices;
}

// Random rows, quantised, for the widest matrix; narrower ones read the beginning of every array.
struct Rows {
  Rows(const Kernels& kernels, int64_t rows)
      : quants(rows * kInner), scales(rows * kInner / 32), scaled_sums(scales.size()),
        sums(rows * kInner / 8), out(rows * kVocabulary) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    std::vector<float> x(kInner);
    for (int64_t r = 0; r < rows; ++r) {
      for (float& value : x) value = normal(random);
      const int64_t groups = r * kInner / 32;
      kernels.quantize(x.data(), kInner, &quants[r * kInner], &scales[groups],
                       &scaled_sums[groups], &sums[4 * groups]);
    }
  }

  Activations view(int64_t rows, int64_t cols) const {
    Activations x;
    x.rows = rows;
    x.cols = cols;
    x.quants = quants.data();
    x.scales = scales.data();
    x.scaled_sums = scaled_sums.data();
    x.sums = sums.data();
    return x;
  }

  std::vector<int8_t> quants;
  std::vector<float> scales, scaled_sums;
  std::vector<int16_t> sums;
  std::vector<float> out;
};

void pass(const Kernels& kernels, const std::vector<Packed>& model, Pool& pool, Rows& rows,
          int64_t n) {
  for (const Packed& matrix : model) {
    const Activations x = rows.view(n, matrix.cols);
    const MatMul matmul = kernels.matmul(matrix.type);
    pool.run((matrix.panels() + kPart - 1) / kPart, [&](int64_t part, int) {
      const int64_t end = std::min(matrix.panels(), (part + 1) * kPart);
      matmul(matrix, part * kPart, end, x, rows.out.data(), matrix.rows);
    });
  }
}

int run(const Kernels& kernels, const std::string& mix, int threads, int rounds,
        const std::vector<int64_t>& counts) {
  const std::vector<Packed> model = random_model(mix);
  double bytes = 0;
  for (const Packed& matrix : model) bytes += static_cast<double>(matrix.bytes());
  Rows rows(kernels, *std::max_element(counts.begin(), counts.end()));
  Pool pool(threads);
  std::vector<double> reads;
  std::vector<std::vector<double>> times(counts.size());
  for (int round = 0; round < rounds; ++round) {
    reads.push_back(read_bandwidth(pool, 1 << 28, 1) / 1e9);
    for (size_t i = 0; i < counts.size(); ++i) {
      times[i].push_back(1e3 * seconds_of([&] { pass(kernels, model, pool, rows, counts[i]); }));
    }
  }
  const double best = *std::max_element(reads.begin(), reads.end());
  std::printf("%s, %s, %d threads: %.0f MB; plain read %.1f GB/s, at best %.1f\n", kernels.name,
              mix.c_str(), threads, bytes / 1e6, median(reads), best);
  std::printf("%5s %9s %9s %7s %9s %7s\n", "n", "ms", "least ms", "GB/s", "t(n)/t(1)", "rows/s");
  for (size_t i = 0; i < counts.size(); ++i) {
    const double middle = median(times[i]);
    const double least = *std::min_element(times[i].begin(), times[i].end());
    std::printf("%5d %9.2f %9.2f %7.1f %9.2f %7.0f\n", static_cast<int>(counts[i]), middle, least,
                bytes / middle / 1e6, middle / median(times[0]),
                1e3 * static_cast<double>(counts[i]) / middle);
  }
  double check = 0;
  for (const float value : rows.out) check += value;
  return std::isfinite(check) ? 0 : 1;
}

}  // namespace
}  // namespace draftproof

int main(int argc, char** argv) {
  using namespace draftproof;
  const Kernels* kernels = argc > 1 ? find_kernels(argv[1]) : &best_kernels();
  const std::string mix = argc > 2 ? argv[2] : "q4_k_m";
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const int rounds = argc > 4 ? std::atoi(argv[4]) : 5;
  std::vector<int64_t> counts = {1, 2, 3, 4, 6, 8, 12, 16, 64, 256};
  if (argc > 5) {
    counts.clear();
    for (char* at = argv[5]; *at != '\0'; at += *at == ',') {
      counts.push_back(std::strtoll(at, &at, 10));
    }
  }
  const bool known = mix == "q4_k_m" || mix == "q4_0" || mix == "q8_0";
  const bool positive = std::all_of(counts.begin(), counts.end(), [](int64_t n) { return n > 0; });
  if (kernels == nullptr || !known || threads < 1 || rounds < 1 || counts.empty() || !positive) {
    std::fprintf(stderr, "usage: bench_kernels [table] [q4_k_m | q4_0 | q8_0] [threads] [rounds] "
                         "[n,n,...]\nThe table must be one that runs on this processor.\n");
    return 2;
  }
  return run(*kernels, mix, threads, rounds, counts);
}
