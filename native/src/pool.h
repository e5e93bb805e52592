// Threads that share a loop.
#pragma once

#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace draftproof {

/// A fixed number of threads, the caller's among them. Between two loops they spin for a moment, since
/// a pass is hundreds of short loops, and then sleep.
class Pool {
 public:
  /// `threads` is at least 1. `processors` are what they are kept on, one for each and the caller's
  /// first, or none: then the system places them, as it does wherever it is not Linux. Throws
  /// std::system_error where the system has no more threads.
  explicit Pool(int threads, std::vector<int> processors = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  const std::vector<int>& processors() const { return processors_; }

  /// Call `body(part, thread)` for every part in [0, parts), each by whichever thread is free; returns
  /// when all are done. `body` must not throw. One loop at a time: other callers wait.
  template <class Body>
  void run(int64_t parts, Body&& body) {
    run_erased(
        parts, [](void* context, int64_t part, int thread) {
          (*static_cast<std::remove_reference_t<Body>*>(context))(part, thread);
        },
        &body);
  }

 private:
  using Call = void (*)(void* context, int64_t part, int thread);

  void run_erased(int64_t parts, Call call, void* context);
  bool forked() const;
  void stop();
  void take_parts(int thread);
  void work(int thread);
  uint64_t wait_for_loop(uint64_t seen);

  std::vector<int> processors_;  // empty where the system places the threads
  std::vector<std::thread> workers_;
  int process_;      // that the workers live in: a child that was forked has none of them
  std::mutex turn_;  // held by the caller whose loop runs

  // The loop that runs. Written by its caller before `loop_` goes up, read by workers after.
  Call call_ = nullptr;
  void* context_ = nullptr;
  // Neighbouring parts go to the same thread, as far as it comes: what a kernel fetches ahead at the
  // end of a part is the beginning of its next. A thread that is done takes the others' parts.
  struct alignas(64) Lane {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  std::vector<Lane> lanes_;
  alignas(64) std::atomic<int> busy_{0};         // workers that have not finished it
  alignas(64) std::atomic<uint64_t> loop_{0};    // its number
  std::atomic<bool> closing_{false};

  struct Sleep {
    std::mutex mutex;
    std::condition_variable wake;
  };
  std::unique_ptr<Sleep> sleep_ = std::make_unique<Sleep>();
  std::atomic<int> sleepers_{0};
};

/// Keeps the calling thread on a pool's first processor while it lives. Were it free while the workers
/// are not, it might share one of their processors until the system moves it, which takes as long as a
/// pass. Afterwards it may run where it might before: it is the program's thread, not the pool's. Does
/// nothing where the pool has no processors, or the thread may not run on the first.
class CallerPlace {
 public:
  explicit CallerPlace(const Pool& pool);
  ~CallerPlace();
  CallerPlace(const CallerPlace&) = delete;
  CallerPlace& operator=(const CallerPlace&) = delete;

 private:
#if defined(__linux__)
  bool placed_ = false;
  cpu_set_t before_;
#endif
};

}  // namespace draftproof
