#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "memory.h"

namespace draftproof {

double read_bandwidth(Pool& pool, int64_t bytes, int rounds) {
  constexpr int64_t kPart = 1 << 20;  // bytes
  const int64_t parts = std::max<int64_t>(1, bytes / kPart);
  Buffer buffer(static_cast<size_t>(parts * kPart));
  uint64_t* words = buffer.as<uint64_t>();
  constexpr int64_t kWords = kPart / 8;
  pool.run(parts, [&](int64_t part, int) {
    std::fill_n(words + part * kWords, kWords, static_cast<uint64_t>(part));
  });
  std::atomic<uint64_t> total{0};
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(parts, [&](int64_t part, int) {
      const uint64_t* at = words + part * kWords;
      uint64_t sums[16] = {};  // independent, so that reading is the limit
      for (int64_t i = 0; i < kWords; i += 16) {
        for (int64_t k = 0; k < 16; ++k) sums[k] += at[i + k];
      }
      for (const uint64_t sum : sums) total.fetch_add(sum, std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(parts * kPart) / seconds.count());
  }
  return total.load() == 1 ? 0 : best;  // the sum is used, so the reads stay
}

}  // namespace draftproof
