#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace draftproof {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{1} << 21;
// What a pool keeps at most: the logits of some dozens of rows.
constexpr size_t kPooled = 8;
constexpr size_t kPooledBytes = size_t{1} << 26;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/// Up to a quarter more, so that a buffer also serves what is a little larger than its first use.
size_t size_class(size_t bytes) {
  size_t step = 4096;
  while (step * 8 < bytes) step *= 2;
  return round_up(bytes, step);
}

}  // namespace

#if defined(__unix__) || defined(__APPLE__)

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  // Room to start on a huge page; what is never touched takes no memory.
  const size_t room = bytes >= kHugePage ? bytes + kHugePage : round_up(bytes, kAlignment);
  void* mapped = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  mapped_ = mapped;
  room_ = room;
  data_ = static_cast<uint8_t*>(mapped);
  if (bytes >= kHugePage) {
    data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(mapped), kHugePage));
#if defined(MADV_HUGEPAGE)
    madvise(data_, bytes, MADV_HUGEPAGE);
#endif
  }
}

Buffer::~Buffer() {
  if (mapped_ != nullptr) munmap(mapped_, room_);
}

#else

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  room_ = bytes + kAlignment;
  mapped_ = std::calloc(room_, 1);
  if (mapped_ == nullptr) throw std::bad_alloc();
  data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(mapped_), kAlignment));
}

Buffer::~Buffer() { std::free(mapped_); }

#endif

BufferPool::BufferPool() { buffers_.reserve(kPooled); }

Buffer BufferPool::take(size_t bytes) {
  const size_t size = size_class(std::max<size_t>(1, bytes));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t best = buffers_.size();
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const size_t room = buffers_[i].size();
      if (room < bytes || room > 2 * size) continue;
      if (best == buffers_.size() || room < buffers_[best].size()) best = i;
    }
    if (best < buffers_.size()) {
      Buffer buffer = std::move(buffers_[best]);
      buffers_.erase(buffers_.begin() + static_cast<std::ptrdiff_t>(best));
      bytes_ -= buffer.size();
      return buffer;
    }
  }
  return Buffer(size);
}

void BufferPool::give(Buffer buffer) noexcept {
  if (buffer.size() > kPooledBytes) return;
  std::lock_guard<std::mutex> lock(mutex_);
  while (buffers_.size() == kPooled || bytes_ + buffer.size() > kPooledBytes) {
    bytes_ -= buffers_.front().size();
    buffers_.erase(buffers_.begin());
  }
  bytes_ += buffer.size();
  buffers_.push_back(std::move(buffer));  // there is room: it never throws
}

}  // namespace draftproof
