#include "cache.h"

#include <cstring>
#include <new>
#include <string>

namespace draftproof {

bool Budget::take(int64_t bytes) {
  int64_t used = used_.load();
  do {
    if (used + bytes > limit_) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

Cache::~Cache() { budget_->give(static_cast<int64_t>(pages_.size()) * shape_.page_bytes()); }

void Cache::reserve(int64_t slots) {
  const size_t before = pages_.size();
  const size_t needed = static_cast<size_t>((slots + PAGE - 1) / PAGE);
  if (needed <= before) return;
  const int64_t bytes = static_cast<int64_t>(needed - before) * shape_.page_bytes();
  if (!budget_->take(bytes)) {
    throw CacheFull(std::to_string(slots) + " positions need " + std::to_string(bytes) +
                    " more bytes of keys and values, and " + std::to_string(budget_->used()) +
                    " of at most " + std::to_string(budget_->limit()) + " are in use");
  }
  try {
    pages_.reserve(needed);
    while (pages_.size() < needed) pages_.emplace_back(shape_.page_bytes());
  } catch (const std::bad_alloc&) {
    pages_.resize(before);
    budget_->give(bytes);
    throw CacheFull("the system has no " + std::to_string(bytes) +
                    " bytes left for keys and values");
  }
}

void Cache::copy(int64_t from, int64_t to) {
  const int64_t dim = shape_.dim;
  for (int64_t layer = 0; layer < shape_.layers; ++layer) {
    for (int64_t head = 0; head < shape_.heads; ++head) {
      const uint16_t* source = keys(layer, head, from / BLOCK * BLOCK) + from % BLOCK;
      uint16_t* target = keys(layer, head, to / BLOCK * BLOCK) + to % BLOCK;
      for (int64_t d = 0; d < dim; ++d) target[d * BLOCK] = source[d * BLOCK];
      std::memcpy(values(layer, head, to), values(layer, head, from), dim * sizeof(uint16_t));
    }
  }
}

}  // namespace draftproof
