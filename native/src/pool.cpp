#include "pool.h"

#include <utility>

#if !defined(_WIN32)
#include <unistd.h>
#endif

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace draftproof {
namespace {

constexpr int kSpins = 4000;  // tens of microseconds: longer than the gaps within a pass

inline void pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__) && !defined(_MSC_VER)
  asm volatile("yield");
#endif
}

int this_process() {
#if defined(_WIN32)
  return 0;  // nothing forks there
#else
  return getpid();
#endif
}

#if defined(__linux__)
/// Keep the calling thread on one processor; where that is none of its own, it stays where it is.
void stay_on(int processor) {
  if (processor >= CPU_SETSIZE) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  sched_setaffinity(0, sizeof one, &one);
}
#endif

}  // namespace

Pool::Pool(int threads, std::vector<int> processors)
    : process_(this_process()), lanes_(static_cast<size_t>(threads)) {
#if defined(__linux__)
  processors_ = std::move(processors);
#else
  static_cast<void>(processors);
#endif
  workers_.reserve(threads - 1);
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

bool Pool::forked() const { return process_ != this_process(); }

Pool::~Pool() { stop(); }

void Pool::stop() {
  if (forked()) {  // nothing to join or to wait for, and their destructors must not try
    new std::vector<std::thread>(std::move(workers_));
    sleep_.release();
    return;
  }
  closing_.store(true);
  loop_.fetch_add(1);
  {
    std::lock_guard<std::mutex> lock(sleep_->mutex);
  }
  sleep_->wake.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void Pool::run_erased(int64_t parts, Call call, void* context) {
  if (workers_.empty() || parts <= 1 || forked()) {
    for (int64_t part = 0; part < parts; ++part) call(context, part, 0);
    return;
  }
  std::lock_guard<std::mutex> turn(turn_);
  call_ = call;
  context_ = context;
  const int64_t threads = static_cast<int64_t>(lanes_.size());
  for (int64_t i = 0; i < threads; ++i) {
    lanes_[i].next.store(parts * i / threads, std::memory_order_relaxed);
    lanes_[i].end = parts * (i + 1) / threads;
  }
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  // Sequentially consistent, like the sleepers' count: either this thread sees a sleeper, or the
  // sleeper sees the new loop.
  loop_.fetch_add(1);
  if (sleepers_.load() > 0) {
    {
      std::lock_guard<std::mutex> lock(sleep_->mutex);
    }
    sleep_->wake.notify_all();
  }
  take_parts(0);
  for (int spins = 0; busy_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void Pool::take_parts(int thread) {
  const size_t threads = lanes_.size();
  for (size_t i = 0; i < threads; ++i) {
    Lane& lane = lanes_[(static_cast<size_t>(thread) + i) % threads];
    for (;;) {
      const int64_t part = lane.next.fetch_add(1, std::memory_order_relaxed);
      if (part >= lane.end) break;
      call_(context_, part, thread);
    }
  }
}

void Pool::work(int thread) {
#if defined(__linux__)
  if (!processors_.empty()) stay_on(processors_[static_cast<size_t>(thread)]);
#endif
  uint64_t seen = 0;
  for (;;) {
    seen = wait_for_loop(seen);
    if (closing_.load()) return;
    take_parts(thread);
    busy_.fetch_sub(1, std::memory_order_release);
  }
}

uint64_t Pool::wait_for_loop(uint64_t seen) {
  for (int spins = 0; spins < kSpins; ++spins) {
    const uint64_t loop = loop_.load(std::memory_order_acquire);
    if (loop != seen) return loop;
    pause();
  }
  std::unique_lock<std::mutex> lock(sleep_->mutex);
  sleepers_.fetch_add(1);
  sleep_->wake.wait(lock, [&] { return loop_.load() != seen; });
  sleepers_.fetch_sub(1);
  return loop_.load();
}

#if defined(__linux__)

CallerPlace::CallerPlace(const Pool& pool) {
  if (pool.processors().empty() || pool.processors()[0] >= CPU_SETSIZE) return;
  if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
  if (!CPU_ISSET(pool.processors()[0], &before_)) return;
  stay_on(pool.processors()[0]);
  placed_ = true;
}

CallerPlace::~CallerPlace() {
  if (placed_) sched_setaffinity(0, sizeof before_, &before_);
}

#else

CallerPlace::CallerPlace(const Pool&) {}
CallerPlace::~CallerPlace() = default;

#endif

}  // namespace draftproof
