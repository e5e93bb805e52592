// A decoder of the Llama family, and passes over rows of any number of its sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "packed.h"
#include "pool.h"

namespace draftproof {

/// Rotary position embedding of some layers: the angle of pair i at position p is p * frequencies[i].
struct Rope {
  std::vector<float> frequencies;
  float scale = 1;  // of cosine and sine
};

struct LayerConfig {
  int64_t window = 0;  // positions that are attended to, the row's own among them; 0 for all
  int64_t rope = 0;    // index in Config::ropes
};

enum class Activation { Silu, Gelu };

struct Config {
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t feed_forward = 0;
  int64_t vocab = 0;
  float norm_epsilon = 0;
  float attention_scale = 0;
  float embedding_scale = 1;
  Activation activation = Activation::Silu;
  bool interleaved = false;  // rotation of neighbouring pairs rather than of halves
  bool qkv_bias = false;     // what the weights must hold besides those of every architecture
  bool qk_norm = false;
  bool post_norms = false;
  std::vector<Rope> ropes;
  std::vector<LayerConfig> layers;
};

/// The weights do not fit the configuration; the sentence names the tensor.
struct BadWeights : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A matrix, and what is added to its product.
struct Linear {
  Packed weight;
  std::vector<float> bias;
};

struct Layer {
  Linear q, k, v, output, gate, up, down;
  // Norms; empty where the architecture has none.
  std::vector<float> attention_norm, q_norm, k_norm, attention_post_norm;
  std::vector<float> feed_forward_norm, feed_forward_post_norm;
};

struct Weights {
  Linear embedding;  // also the head, where that has no weights of its own
  Linear head;
  std::vector<float> output_norm;
  std::vector<Layer> layers;
};

/// One sequence. Its rows are a chain until a pass opens a tree, which further passes may add to; then
/// `keep` or `rewind` must choose.
class Sequence {
 public:
  Sequence(const CacheShape& shape, std::shared_ptr<Budget> budget)
      : cache_(shape, std::move(budget)) {}

  int64_t length() const { return length_; }
  /// Rows of a tree that hang from the chain's end and of which none has been chosen yet.
  int64_t open_rows() const { return static_cast<int64_t>(parents_.size()); }

  /// Forget all but the first `length` rows of the chain, and an open tree. Constant time.
  void rewind(int64_t length);
  /// Append a path of the open tree, given by its rows from the root down, and forget the rest.
  void keep(const std::vector<int32_t>& path);

 private:
  friend class Model;
  friend class Pass;
  Cache cache_;
  int64_t length_ = 0;
  std::vector<int32_t> parents_;  // of the open tree's rows, whose slots follow the chain's
};

/// A row of a pass.
struct Row {
  int32_t token = 0;
  Sequence* sequence = nullptr;
  // An earlier row: its number among those of the sequence's open tree and of the pass, the tree's
  // first; or -1 for the chain's end.
  int32_t parent = -1;
  bool keep = false;  // whether its logits are wanted
  bool tree = false;  // whether it joins the open tree, or opens one, rather than continue the chain
};

/// The columns of the logits that are wanted, where not all are: whole panels of the head, which then
/// lie side by side.
class Columns {
 public:
  /// `panels` rise, and a head with `head_rows` output rows has them. Throws std::invalid_argument.
  Columns(std::vector<int32_t> panels, int64_t head_rows);

  const std::vector<int32_t>& panels() const { return panels_; }
  int64_t head_rows() const { return head_rows_; }
  /// Logits of a row: 16 for a panel, fewer for the head's last one.
  int64_t count() const;

 private:
  std::vector<int32_t> panels_;
  int64_t head_rows_;
};

class Model {
 public:
  /// `cache_limit` is in bytes, for all sequences together.
  Model(Config config, std::shared_ptr<Pool> pool, const Kernels& kernels, int64_t cache_limit);
  ~Model();

  /// The first `layers` layers, at least 1, under the same norm and head: the same weights in the same
  /// memory, which only the whole model counts. Sequences are not shared, their limit is. Throws
  /// std::invalid_argument.
  std::unique_ptr<Model> shallow(int64_t layers) const;

  /// Take a tensor by its GGUF name; `source` is read during the call only. False where no part of the
  /// model has that name. Throws BadWeights where it has another shape.
  bool set(const std::string& name, Type type, int64_t rows, int64_t cols, const uint8_t* source);
  /// Allow passes, and no further tensors. Throws BadWeights naming those that lack.
  void finish();

  /// Compute with these threads from the next pass on. A shallow model keeps those that it has.
  void use_pool(std::shared_ptr<Pool> pool);

  /// The product that gives the logits: the head, or the embedding where they are tied.
  const Linear& head() const {
    return weights_->head.weight.rows > 0 ? weights_->head : weights_->embedding;
  }

  const Config& config() const { return config_; }
  const Kernels& kernels() const { return kernels_; }
  /// What computes; another one may from the next pass on.
  std::shared_ptr<Pool> pool() const { return std::atomic_load(&pool_); }
  const CacheShape& cache_shape() const { return shape_; }
  const Budget& budget() const { return *budget_; }
  /// Where the logits of passes may be put.
  const std::shared_ptr<BufferPool>& buffers() const { return buffers_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  /// Bytes of weights that a pass over few rows reads.
  int64_t pass_bytes() const;

  std::unique_ptr<Sequence> open() const {
    return std::make_unique<Sequence>(shape_, budget_);
  }
  /// Whether a sequence can be one of the model's.
  bool owns(const Sequence& sequence) const {
    return sequence.cache_.budget() == budget_ && sequence.cache_.shape().layers == shape_.layers;
  }

  /// Score rows in one pass and append them to their sequences. `logits` has room for the kept rows in
  /// order, [kept][vocab] or, with `columns`, [kept][columns->count()]. Where it throws (CacheFull,
  /// std::invalid_argument), nothing was appended.
  void score(const std::vector<Row>& rows, float* logits, const Columns* columns = nullptr);

 private:
  friend class Pass;

  Model(const Model& whole, int64_t layers);

  template <class Visit>
  bool visit(const std::string& name, Visit&& slot);

  Config config_;
  std::shared_ptr<Pool> pool_;  // replaced by whoever has the turn
  const Kernels& kernels_;
  CacheShape shape_;
  std::shared_ptr<Budget> budget_;
  int64_t weight_bytes_ = 0;
  bool finished_ = false;

  std::shared_ptr<Weights> weights_;
  std::shared_ptr<struct Scratch> scratch_;  // one pass at a time
  std::shared_ptr<BufferPool> buffers_;
};

}  // namespace draftproof
