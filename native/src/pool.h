// Threads that share a loop.
#pragma once

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
  /// `threads` is at least 1. Throws std::system_error where the system has no more.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

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
  void take_parts(int thread);
  void work(int thread);
  uint64_t wait_for_loop(uint64_t seen);

  std::vector<std::thread> workers_;
  int process_;       // that the workers live in: a child that was forked has none of them
  std::mutex turn_;  // held by the caller whose loop runs

  // The loop that runs. Written by its caller before `loop_` goes up, read by workers after.
  Call call_ = nullptr;
  void* context_ = nullptr;
  int64_t parts_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
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

}  // namespace draftproof
