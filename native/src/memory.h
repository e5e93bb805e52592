// Aligned memory, in huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace draftproof {

/// Memory from the system, zeroed, aligned to 64 bytes; freed at the end. Moves, never copies.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);  // throws std::bad_alloc
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    std::swap(room_, other.room_);
  }
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* mapped_ = nullptr;  // what the system gave, and how much of it
  size_t room_ = 0;
};

/// Freed buffers, handed out again: the system would give new memory page by page, zeroed. Any thread
/// may use it.
class BufferPool {
 public:
  BufferPool();

  /// At least `bytes` and not many times as much, with anything in them. Throws std::bad_alloc.
  Buffer take(size_t bytes);
  /// Keep a buffer that was taken, or free it where enough are kept.
  void give(Buffer buffer) noexcept;

 private:
  std::mutex mutex_;
  std::vector<Buffer> buffers_;  // in the order in which they were given
  size_t bytes_ = 0;
};

}  // namespace draftproof
