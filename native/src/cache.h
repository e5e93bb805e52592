// Keys and values of one sequence, in pages.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "memory.h"

namespace draftproof {

constexpr int64_t BLOCK = 16;  // positions whose keys lie side by side
constexpr int64_t PAGE = 64;   // positions of a page

/// What all caches of a model have in common.
struct CacheShape {
  int64_t layers = 0;
  int64_t heads = 0;  // of keys and values
  int64_t dim = 0;    // of a head, a multiple of 16

  /// Elements of fp16: of the keys, and as many of the values, of a layer's head in a page.
  int64_t head_size() const { return PAGE * dim; }
  int64_t page_bytes() const { return layers * heads * 2 * head_size() * 2; }
};

/// How many bytes all caches of a model may take together.
class Budget {
 public:
  explicit Budget(int64_t limit) : limit_(limit) {}
  int64_t limit() const { return limit_; }
  int64_t used() const { return used_.load(); }
  bool take(int64_t bytes);
  void give(int64_t bytes) { used_.fetch_sub(bytes); }

 private:
  int64_t limit_;
  std::atomic<int64_t> used_{0};
};

/// The budget is used up, or the system has no more memory.
struct CacheFull : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Slots for keys and values, fp16. Pages are added and kept until the end.
///
/// Within a page, for each layer and head: keys [PAGE / 16][dim][16], so that a vector holds 16
/// positions, then values [PAGE][dim].
class Cache {
 public:
  Cache(const CacheShape& shape, std::shared_ptr<Budget> budget)
      : shape_(shape), budget_(std::move(budget)) {}
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const CacheShape& shape() const { return shape_; }
  const std::shared_ptr<Budget>& budget() const { return budget_; }

  /// Room for `slots` slots. Throws CacheFull, and then has as much room as before.
  void reserve(int64_t slots);

  /// The 16 slots from `slot` on, a multiple of 16: keys [dim][16].
  uint16_t* keys(int64_t layer, int64_t head, int64_t slot) {
    return place(layer, head, slot) + slot % PAGE * shape_.dim;
  }
  /// One slot's value [dim]; the next slots of its page follow.
  uint16_t* values(int64_t layer, int64_t head, int64_t slot) {
    return place(layer, head, slot) + shape_.head_size() + slot % PAGE * shape_.dim;
  }

  /// Copy what is in a slot to another one, in every layer.
  void copy(int64_t from, int64_t to);

 private:
  uint16_t* place(int64_t layer, int64_t head, int64_t slot) {
    return pages_[slot / PAGE].as<uint16_t>() +
           (layer * shape_.heads + head) * 2 * shape_.head_size();
  }

  CacheShape shape_;
  std::shared_ptr<Budget> budget_;
  std::vector<Buffer> pages_;
};

}  // namespace draftproof
