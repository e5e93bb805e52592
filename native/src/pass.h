// One pass over some rows.
#pragma once

#include <initializer_list>
#include <unordered_map>
#include <vector>

#include "model.h"
#include "scratch.h"

namespace draftproof {

/// Where a row stands: found for the whole pass before anything is computed.
struct Place {
  int64_t slot = 0;      // in the sequence's cache
  int64_t position = 0;  // rows before it on its path
  int64_t base = 0;      // the chain's length
  std::vector<int64_t> path;  // slots from `base` on, where they are not the positions themselves

  /// Its path is the slots in order, so that whole blocks of the cache can be read.
  bool chain() const { return path.empty(); }
};

/// The steps of `Model::score`. Rows are taken in chunks, so that activations stay in the caches of
/// the processor and memory stays small; what a row gives does not depend on its chunk.
class Pass {
 public:
  /// Throws where a row cannot be scored, before anything is computed.
  Pass(Model& model, const std::vector<Row>& rows, const Columns* columns);

  /// Compute, and append the rows to their sequences.
  void run(float* logits);

 private:
  struct Job {
    const Linear* linear;
    float* out;
    const Columns* columns = nullptr;  // all of its output where null
  };
  struct Share;  // of a loop over panels: what a job needs there
  /// How activations are quantised. The input of queries and keys has a few large values beside many
  /// small ones, and attention magnifies their errors: there, what one row of bytes leaves over goes
  /// into a second row.
  enum class Precision { Plain, Fine };
  /// Rows that matrices read. Behind the quantised rows may lie as many of their remainders.
  struct Inputs : Activations {
    int64_t remainders = 0;
  };
  /// The rows of a sequence behind its chain's end: those of the open tree, then the pass's.
  struct Part {
    bool tree = false;
    std::vector<int32_t> parents;
    std::vector<int64_t> depths;  // rows before them on their path
  };
  struct Unit;  // of attention: neighbouring rows of a sequence, and a head of keys

  void place_rows();
  Part& part_of(const Row& row);
  void reserve();
  float* run_chunk(int64_t begin, int64_t end, float* logits);
  void embed();
  void rotate_tables();
  void attention_block(const Layer& layer, int64_t index);
  void feed_forward_block(const Layer& layer);
  float* head(float* logits);

  Inputs normed(const std::vector<float>& weight, std::initializer_list<const Linear*> readers,
                     Precision precision);
  Inputs activations(const float* values, int64_t rows, int64_t cols,
                          std::initializer_list<const Linear*> readers, bool quantize_now);
  void multiply(std::initializer_list<Job> jobs, const Inputs& x);
  static void multiply_run(const Share& share, int64_t panel, int64_t at, int64_t count);
  void add_projected(const std::vector<float>& post_norm);
  void rotate(float* head, const float* table) const;
  void store(int64_t layer, const LayerConfig& settings, int64_t row, uint16_t* half);
  void attend(int64_t layer, int64_t window);
  void attend_unit(const Unit& unit, int64_t layer, int64_t window, ThreadScratch& scratch);
  void quantize_remainder(const float* values, int64_t row, int64_t cols, float* remainder);
  void quantize_row(const float* values, int64_t row, int64_t cols, int64_t begin, int64_t end);

  const Row& row(int64_t i) const { return rows_[begin_ + i]; }
  const Place& place(int64_t i) const { return places_[begin_ + i]; }
  int64_t count() const { return end_ - begin_; }

  Model& model_;
  const Config& config_;
  const Weights& weights_;
  const Kernels& kernels_;
  Pool& pool_;
  Scratch& scratch_;
  const std::vector<Row>& rows_;
  const Columns* columns_;  // of the logits; all where null
  std::unordered_map<Sequence*, Part> parts_;
  std::vector<Place> places_;
  int64_t begin_ = 0, end_ = 0;  // the chunk
};

}  // namespace draftproof
