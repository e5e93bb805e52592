#include "model.h"

#include <algorithm>
#include <cstring>

#include "scratch.h"

namespace draftproof {
namespace {

/// Split "blk.12.attn_q.weight" in 12 and "attn_q.weight"; false for other names.
bool split_layer(const std::string& name, int64_t* layer, std::string* rest) {
  if (name.compare(0, 4, "blk.") != 0) return false;
  const size_t dot = name.find('.', 4);
  if (dot == std::string::npos || dot == 4 || dot > 10) return false;
  int64_t number = 0;
  for (size_t i = 4; i < dot; ++i) {
    if (name[i] < '0' || name[i] > '9') return false;
    number = number * 10 + (name[i] - '0');
  }
  *layer = number;
  *rest = name.substr(dot + 1);
  return true;
}

[[noreturn]] void refuse_shape(const std::string& name, int64_t rows, int64_t cols,
                               int64_t want_rows, int64_t want_cols) {
  throw BadWeights(name + " is " + std::to_string(rows) + " x " + std::to_string(cols) + ", and " +
                   std::to_string(want_rows) + " x " + std::to_string(want_cols) + " was due");
}

struct LinearName {
  const char* stem;
  Linear Layer::* member;
  int64_t rows, cols;
};

struct NormName {
  const char* name;
  std::vector<float> Layer::* member;
  int64_t size;
  bool due;
};

std::vector<LinearName> linear_names(const Config& c) {
  const int64_t wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
  return {{"attn_q", &Layer::q, wide, c.hidden},
          {"attn_k", &Layer::k, narrow, c.hidden},
          {"attn_v", &Layer::v, narrow, c.hidden},
          {"attn_output", &Layer::output, c.hidden, wide},
          {"ffn_gate", &Layer::gate, c.feed_forward, c.hidden},
          {"ffn_up", &Layer::up, c.feed_forward, c.hidden},
          {"ffn_down", &Layer::down, c.hidden, c.feed_forward}};
}

std::vector<NormName> norm_names(const Config& c) {
  return {{"attn_norm.weight", &Layer::attention_norm, c.hidden, true},
          {"ffn_norm.weight", &Layer::feed_forward_norm, c.hidden, true},
          {"attn_q_norm.weight", &Layer::q_norm, c.head_dim, c.qk_norm},
          {"attn_k_norm.weight", &Layer::k_norm, c.head_dim, c.qk_norm},
          {"post_attention_norm.weight", &Layer::attention_post_norm, c.hidden, c.post_norms},
          {"post_ffw_norm.weight", &Layer::feed_forward_post_norm, c.hidden, c.post_norms}};
}

}  // namespace

Model::Model(Config config, std::shared_ptr<Pool> pool, const Kernels& kernels,
             int64_t cache_limit)
    : config_(std::move(config)),
      pool_(std::move(pool)),
      kernels_(kernels),
      shape_{static_cast<int64_t>(config_.layers.size()), config_.kv_heads,
             (config_.head_dim + 15) / 16 * 16},
      budget_(std::make_shared<Budget>(cache_limit)),
      weights_(std::make_shared<Weights>()),
      scratch_(std::make_shared<Scratch>()),
      buffers_(std::make_shared<BufferPool>()) {
  const Config& c = config_;
  if (c.hidden < 1 || c.heads < 1 || c.kv_heads < 1 || c.head_dim < 1 || c.feed_forward < 1 ||
      c.vocab < 1 || c.layers.empty() || c.ropes.empty() || c.heads % c.kv_heads != 0) {
    throw std::invalid_argument("a dimension is missing, or heads are no multiple of kv_heads");
  }
  for (const Rope& rope : c.ropes) {
    if (static_cast<int64_t>(rope.frequencies.size()) * 2 > c.head_dim ||
        rope.frequencies.size() != c.ropes[0].frequencies.size()) {
      throw std::invalid_argument("rotary frequencies do not fit the pairs of a head");
    }
  }
  for (const LayerConfig& layer : c.layers) {
    if (layer.window < 0 || layer.rope < 0 ||
        layer.rope >= static_cast<int64_t>(c.ropes.size())) {
      throw std::invalid_argument("a layer's window or rope is out of range");
    }
  }
  weights_->layers.resize(c.layers.size());
}

Model::Model(const Model& whole, int64_t layers)
    : config_(whole.config_),
      pool_(whole.pool()),
      kernels_(whole.kernels_),
      shape_(whole.shape_),
      budget_(whole.budget_),
      finished_(whole.finished_),
      weights_(whole.weights_),
      scratch_(whole.scratch_),
      buffers_(whole.buffers_) {
  config_.layers.resize(static_cast<size_t>(layers));
  shape_.layers = layers;
}

Model::~Model() = default;

std::unique_ptr<Model> Model::shallow(int64_t layers) const {
  if (!finished_) throw std::invalid_argument("the weights are not complete");
  if (layers < 1 || layers > shape_.layers) {
    throw std::invalid_argument("the first " + std::to_string(layers) + " layers of " +
                                std::to_string(shape_.layers) + " are no model");
  }
  return std::unique_ptr<Model>(new Model(*this, layers));
}

void Model::use_pool(std::shared_ptr<Pool> pool) {
  {
    std::lock_guard<std::mutex> turn(scratch_->turn);
    pool = std::atomic_exchange(&pool_, std::move(pool));
  }
  // The one before ends here, outside the turn, unless others use it.
}

/// Find the slot of a tensor: calls `slot.matrix` or `slot.vector` with what is due there.
template <class Visit>
bool Model::visit(const std::string& name, Visit&& slot) {
  const Config& c = config_;
  if (name == "token_embd.weight") return slot.matrix(weights_->embedding.weight, c.vocab, c.hidden);
  if (name == "output.weight") return slot.matrix(weights_->head.weight, c.vocab, c.hidden);
  if (name == "output_norm.weight") return slot.vector(weights_->output_norm, c.hidden);
  int64_t index;
  std::string rest;
  if (!split_layer(name, &index, &rest) || index >= shape_.layers) {
    return false;
  }
  Layer& layer = weights_->layers[index];
  for (const LinearName& linear : linear_names(c)) {
    Linear& member = layer.*linear.member;
    if (rest == std::string(linear.stem) + ".weight") {
      return slot.matrix(member.weight, linear.rows, linear.cols);
    }
    if (rest == std::string(linear.stem) + ".bias") return slot.vector(member.bias, linear.rows);
  }
  for (const NormName& norm : norm_names(c)) {
    if (norm.due && rest == norm.name) return slot.vector(layer.*norm.member, norm.size);
  }
  return false;
}

bool Model::set(const std::string& name, Type type, int64_t rows, int64_t cols,
                const uint8_t* source) {
  if (finished_) throw std::invalid_argument("the weights are complete");
  struct Slot {
    Model& model;
    const std::string& name;
    Type type;
    int64_t rows, cols;
    const uint8_t* source;

    bool matrix(Packed& to, int64_t want_rows, int64_t want_cols) {
      if (rows != want_rows || cols != want_cols) refuse_shape(name, rows, cols, want_rows, want_cols);
      if (cols % draftproof::info(type).block != 0) {
        throw BadWeights(name + " has rows of " + std::to_string(cols) + " weights, no multiple of a " +
                         draftproof::info(type).name + " block");
      }
      to = allocate_packed(type, rows, cols);
      const int64_t panels = to.panels(), step = 64;
      model.pool_->run((panels + step - 1) / step, [&](int64_t part, int) {
        fill_panels(to, source, part * step, std::min(panels, (part + 1) * step));
      });
      model.weight_bytes_ += to.bytes();
      return true;
    }

    bool vector(std::vector<float>& to, int64_t size) {
      if (rows != 1 || cols != size) refuse_shape(name, rows, cols, 1, size);
      if (cols % draftproof::info(type).block != 0) {
        throw BadWeights(name + " is stored as " + draftproof::info(type).name +
                         ", whose blocks its length does not fill");
      }
      to.resize(size);
      dequantize_source(type, source, size, to.data());
      model.weight_bytes_ += size * static_cast<int64_t>(sizeof(float));
      return true;
    }
  };
  return visit(name, Slot{*this, name, type, rows, cols, source});
}

void Model::finish() {
  std::string missing;
  const auto due = [&](bool there, const std::string& name) {
    if (!there) missing += (missing.empty() ? "" : ", ") + name;
  };
  due(weights_->embedding.weight.rows > 0, "token_embd.weight");
  due(!weights_->output_norm.empty(), "output_norm.weight");
  const std::vector<Layer>& layers = weights_->layers;
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    for (const LinearName& linear : linear_names(config_)) {
      const Linear& member = layers[i].*linear.member;
      due(member.weight.rows > 0, prefix + linear.stem + ".weight");
      const bool is_qkv = linear.member == &Layer::q || linear.member == &Layer::k ||
                          linear.member == &Layer::v;
      if (is_qkv && config_.qkv_bias) due(!member.bias.empty(), prefix + linear.stem + ".bias");
    }
    for (const NormName& norm : norm_names(config_)) {
      if (norm.due) due(!(layers[i].*norm.member).empty(), prefix + norm.name);
    }
    if (missing.size() > 200) break;
  }
  if (!missing.empty()) throw BadWeights("there are no weights for " + missing);
  finished_ = true;
}

Columns::Columns(std::vector<int32_t> panels, int64_t head_rows)
    : panels_(std::move(panels)), head_rows_(head_rows) {
  const int64_t all = (head_rows + PANEL - 1) / PANEL;
  if (panels_.empty()) throw std::invalid_argument("no columns of the logits are wanted");
  for (size_t i = 0; i < panels_.size(); ++i) {
    if (panels_[i] <= (i > 0 ? panels_[i - 1] : -1) || panels_[i] >= all) {
      throw std::invalid_argument("panel " + std::to_string(panels_[i]) + " does not rise, or is not"
                                  " one of the head's " + std::to_string(all));
    }
  }
}

int64_t Columns::count() const {
  const int64_t whole = static_cast<int64_t>(panels_.size() - 1) * PANEL;
  return whole + std::min(PANEL, head_rows_ - panels_.back() * PANEL);
}

int64_t Model::pass_bytes() const {
  int64_t bytes = head().weight.bytes();
  for (int64_t i = 0; i < shape_.layers; ++i) {
    for (const LinearName& linear : linear_names(config_)) {
      bytes += (weights_->layers[i].*linear.member).weight.bytes();
    }
  }
  return bytes;
}

void Sequence::rewind(int64_t length) {
  if (length < 0 || length > length_) {
    throw std::invalid_argument("a sequence of " + std::to_string(length_) +
                                " rows cannot be rewound to " + std::to_string(length));
  }
  length_ = length;
  parents_.clear();
}

void Sequence::keep(const std::vector<int32_t>& path) {
  int32_t parent = -1;
  for (const int32_t row : path) {
    if (row <= parent || row >= open_rows() || parents_[row] != parent) {
      throw std::invalid_argument("row " + std::to_string(row) +
                                  " does not continue the path through the open tree");
    }
    parent = row;
  }
  // Rows of a path come in order, so no slot is overwritten before it has moved.
  for (size_t i = 0; i < path.size(); ++i) {
    const int64_t to = length_ + static_cast<int64_t>(i);
    if (length_ + path[i] != to) cache_.copy(length_ + path[i], to);
  }
  length_ += static_cast<int64_t>(path.size());
  parents_.clear();
}

}  // namespace draftproof
