#include "memory.h"

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

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

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

}  // namespace draftproof
