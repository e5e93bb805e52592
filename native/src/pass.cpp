#include "pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace draftproof {
namespace {

constexpr int64_t kChunk = 256;        // rows computed together
constexpr int64_t kUnitRows = 8;       // rows that share a read of the cache
constexpr int64_t kParts = 12;           // of a product, for each thread: few, yet none waits long
constexpr int64_t kColumns = 2048;     // columns of activations that a thread takes at a time

bool is_float(Type type) {
  return type == Type::F32 || type == Type::F16 || type == Type::BF16;
}

void grow(std::vector<float>& vector, int64_t size) {
  if (static_cast<int64_t>(vector.size()) < size) vector.resize(size);
}

}  // namespace

void Model::score(const std::vector<Row>& rows, float* logits, const Columns* columns) {
  std::lock_guard<std::mutex> turn(scratch_->turn);
  if (!finished_) throw std::invalid_argument("the weights are not complete");
  if (columns != nullptr && columns->head_rows() != config_.vocab) {
    throw std::invalid_argument("the columns are those of another head");
  }
  if (rows.empty()) return;
  const CallerPlace place(*pool_);
  Pass(*this, rows, columns).run(logits);
}

Pass::Pass(Model& model, const std::vector<Row>& rows, const Columns* columns)
    : model_(model),
      config_(model.config_),
      weights_(*model.weights_),
      kernels_(model.kernels_),
      pool_(*model.pool_),
      scratch_(*model.scratch_),
      rows_(rows),
      columns_(columns) {
  place_rows();
  reserve();
}

/// What the pass adds to the row's sequence, so far.
Pass::Part& Pass::part_of(const Row& row) {
  const auto [found, fresh] = parts_.try_emplace(row.sequence);
  Part& part = found->second;
  if (fresh) {
    part.tree = row.tree;
    if (!row.tree && row.sequence->open_rows() > 0) {
      throw std::invalid_argument("a sequence has an open tree: keep a path or rewind first");
    }
    for (const int32_t parent : row.sequence->parents_) {
      part.parents.push_back(parent);
      part.depths.push_back(parent < 0 ? 0 : part.depths[parent] + 1);
    }
  }
  if (part.tree != row.tree) {
    throw std::invalid_argument("some rows of a sequence are a tree's and some its chain's");
  }
  return part;
}

void Pass::place_rows() {
  places_.resize(rows_.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (row.token < 0 || row.token >= config_.vocab) {
      throw std::invalid_argument("the token " + std::to_string(row.token) +
                                  " is outside the vocabulary");
    }
    Part& part = part_of(row);
    const int32_t number = static_cast<int32_t>(part.parents.size());
    if (row.parent < -1 || row.parent >= number) {
      throw std::invalid_argument("row " + std::to_string(i) +
                                  " has a parent that is no earlier row of its sequence, nor -1");
    }
    if (!row.tree && row.parent != number - 1) {
      throw std::invalid_argument("row " + std::to_string(i) +
                                  " of a chain does not follow the one before it");
    }
    part.parents.push_back(row.parent);
    part.depths.push_back(row.parent < 0 ? 0 : part.depths[row.parent] + 1);
    Place& place = places_[i];
    place.base = row.sequence->length();
    place.slot = place.base + number;
    place.position = place.base + part.depths[number];
    if (place.slot != place.position) {
      for (int32_t at = number; at >= 0; at = part.parents[at]) {
        place.path.push_back(place.base + at);
      }
      std::reverse(place.path.begin(), place.path.end());
    }
  }
}

void Pass::reserve() {
  int64_t longest = 0;
  for (const Place& place : places_) longest = std::max(longest, place.position + 1);
  for (const auto& [sequence, part] : parts_) {
    sequence->cache_.reserve(sequence->length() + static_cast<int64_t>(part.parents.size()));
  }

  const Config& c = config_;
  const int64_t rows = std::min<int64_t>(kChunk, rows_.size());
  const int64_t wide = c.heads * c.head_dim, narrow = c.kv_heads * c.head_dim;
  Scratch& s = scratch_;
  grow(s.x, rows * c.hidden);
  grow(s.normed, rows * c.hidden);
  grow(s.projected, rows * c.hidden);
  grow(s.q, 2 * rows * wide);  // with the remainders' rows
  grow(s.k, 2 * rows * narrow);
  grow(s.v, 2 * rows * narrow);
  grow(s.attended, rows * wide);
  grow(s.gate, rows * c.feed_forward);
  grow(s.up, rows * c.feed_forward);
  grow(s.rotation, rows * static_cast<int64_t>(c.ropes.size()) * c.head_dim);
  s.quantized.reserve(rows, std::max({wide, c.feed_forward, 2 * c.hidden}));
  s.threads.resize(pool_.threads());
  const int64_t group = c.heads / c.kv_heads, dim = model_.shape_.dim;
  for (ThreadScratch& thread : s.threads) {
    grow(thread.scores, kUnitRows * group * ((longest + BLOCK - 1) / BLOCK + 1) * BLOCK);
    grow(thread.output, kUnitRows * group * dim);
    grow(thread.sums, kUnitRows * group);
    grow(thread.remainder, c.hidden);
    thread.keys.resize(BLOCK * dim);
    thread.values.resize(BLOCK * dim);
  }
}

void Pass::run(float* logits) {
  const int64_t total = static_cast<int64_t>(rows_.size());
  for (int64_t begin = 0; begin < total; begin += kChunk) {
    logits = run_chunk(begin, std::min(total, begin + kChunk), logits);
  }
  // Only now, so that an error above would have left every sequence as it was.
  for (auto& [sequence, part] : parts_) {
    if (part.tree) {
      sequence->parents_ = std::move(part.parents);
    } else {
      sequence->length_ += static_cast<int64_t>(part.parents.size());
    }
  }
}

float* Pass::run_chunk(int64_t begin, int64_t end, float* logits) {
  begin_ = begin;
  end_ = end;
  embed();
  rotate_tables();
  for (int64_t i = 0; i < model_.shape_.layers; ++i) {
    attention_block(weights_.layers[i], i);
    feed_forward_block(weights_.layers[i]);
  }
  return head(logits);
}

void Pass::embed() {
  pool_.run(count(), [&](int64_t i, int) {
    float* x = scratch_.x.data() + i * config_.hidden;
    dequantize_row(weights_.embedding.weight, row(i).token, x);
    if (config_.embedding_scale != 1) {
      for (int64_t d = 0; d < config_.hidden; ++d) x[d] *= config_.embedding_scale;
    }
  });
}

/// Cosines and sines of every row's position, for each kind of rotation: [row][rope][2][head_dim / 2].
void Pass::rotate_tables() {
  const int64_t half = config_.head_dim / 2;
  const int64_t ropes = static_cast<int64_t>(config_.ropes.size());
  pool_.run(count() * ropes, [&](int64_t part, int) {
    const Rope& rope = config_.ropes[part % ropes];
    const float position = static_cast<float>(place(part / ropes).position);
    float* table = scratch_.rotation.data() + part * 2 * half;
    for (size_t i = 0; i < rope.frequencies.size(); ++i) {
      const float angle = position * rope.frequencies[i];
      table[i] = std::cos(angle) * rope.scale;
      table[half + i] = std::sin(angle) * rope.scale;
    }
  });
}

void Pass::attention_block(const Layer& layer, int64_t index) {
  const Config& c = config_;
  const LayerConfig& settings = c.layers[index];
  Scratch& s = scratch_;
  multiply({{&layer.q, s.q.data()}, {&layer.k, s.k.data()}, {&layer.v, s.v.data()}},
           normed(layer.attention_norm, {&layer.q, &layer.k, &layer.v}, Precision::Fine));
  pool_.run(count(), [&](int64_t i, int thread) {
    store(index, settings, i, s.threads[thread].keys.data());
  });
  attend(index, settings.window);
  multiply({{&layer.output, s.projected.data()}},
           activations(s.attended.data(), count(), c.heads * c.head_dim, {&layer.output}, true));
  add_projected(layer.attention_post_norm);
}

void Pass::feed_forward_block(const Layer& layer) {
  Scratch& s = scratch_;
  const int64_t wide = config_.feed_forward;
  multiply({{&layer.gate, s.gate.data()}, {&layer.up, s.up.data()}},
           normed(layer.feed_forward_norm, {&layer.gate, &layer.up}, Precision::Plain));

  const Inputs x = activations(s.gate.data(), count(), wide, {&layer.down}, false);
  const auto apply = config_.activation == Activation::Silu ? kernels_.silu_mul : kernels_.gelu_mul;
  const int64_t pieces = (wide + kColumns - 1) / kColumns;
  pool_.run(count() * pieces, [&](int64_t part, int) {
    const int64_t i = part / pieces, begin = part % pieces * kColumns;
    const int64_t end = std::min(wide, begin + kColumns);
    float* gate = s.gate.data() + i * wide;
    apply(gate + begin, s.up.data() + i * wide + begin, end - begin, gate + begin);
    if (x.quants != nullptr) quantize_row(gate, i, wide, begin, end);
  });
  multiply({{&layer.down, s.projected.data()}}, x);
  add_projected(layer.feed_forward_post_norm);
}

/// The logits of the chunk's kept rows.
float* Pass::head(float* logits) {
  const int64_t hidden = config_.hidden;
  Scratch& s = scratch_;
  int64_t kept = 0;
  for (int64_t i = 0; i < count(); ++i) {
    if (!row(i).keep) continue;
    kernels_.rms_norm(s.x.data() + i * hidden, weights_.output_norm.data(), hidden,
                      config_.norm_epsilon, s.normed.data() + kept * hidden);
    ++kept;
  }
  if (kept == 0) return logits;
  const Linear& head = model_.head();
  multiply({{&head, logits, columns_}}, activations(s.normed.data(), kept, hidden, {&head}, true));
  return logits + kept * (columns_ == nullptr ? config_.vocab : columns_->count());
}

/// The norm of every row, ready for the matrices that read it.
Pass::Inputs Pass::normed(const std::vector<float>& weight,
                         std::initializer_list<const Linear*> readers, Precision precision) {
  const int64_t hidden = config_.hidden;
  Scratch& s = scratch_;
  Inputs x = activations(s.normed.data(), count(), hidden, readers, false);
  const bool fine = precision == Precision::Fine && x.quants != nullptr;
  pool_.run(count(), [&](int64_t i, int thread) {
    float* out = s.normed.data() + i * hidden;
    kernels_.rms_norm(s.x.data() + i * hidden, weight.data(), hidden, config_.norm_epsilon, out);
    if (x.quants != nullptr) quantize_row(out, i, hidden, 0, hidden);
    if (fine) quantize_remainder(out, i, hidden, s.threads[thread].remainder.data());
  });
  if (fine) x.remainders = count();
  return x;
}

/// What quantising a row has left over becomes a row of its own, behind all others.
void Pass::quantize_remainder(const float* values, int64_t row, int64_t cols, float* remainder) {
  const QuantizedRows& q = scratch_.quantized;
  const int8_t* quants = q.quants.data() + row * cols;
  const float* scales = q.scales.data() + row * (cols / GROUP);
  for (int64_t d = 0; d < cols; ++d) {
    remainder[d] = values[d] - scales[d / GROUP] * static_cast<float>(quants[d]);
  }
  quantize_row(remainder, count() + row, cols, 0, cols);
}

/// `values` as the matrices read them; quantised where one of them is, now or by the caller.
Pass::Inputs Pass::activations(const float* values, int64_t rows, int64_t cols,
                              std::initializer_list<const Linear*> readers, bool quantize_now) {
  Inputs x;
  x.rows = rows;
  x.cols = cols;
  x.values = values;
  const bool quantized = std::any_of(readers.begin(), readers.end(), [](const Linear* linear) {
    return !is_float(linear->weight.type);
  });
  if (!quantized) return x;
  QuantizedRows& q = scratch_.quantized;
  x.quants = q.quants.data();
  x.scales = q.scales.data();
  x.scaled_sums = q.scaled_sums.data();
  x.sums = q.sums.data();
  if (quantize_now) {
    pool_.run(rows, [&](int64_t i, int) { quantize_row(values + i * cols, i, cols, 0, cols); });
  }
  return x;
}

/// Columns [begin, end) of a row; `values` is the row's first.
void Pass::quantize_row(const float* values, int64_t row, int64_t cols, int64_t begin,
                        int64_t end) {
  QuantizedRows& q = scratch_.quantized;
  const int64_t groups = row * (cols / GROUP) + begin / GROUP;
  kernels_.quantize(values + begin, end - begin, q.quants.data() + row * cols + begin,
                    q.scales.data() + groups, q.scaled_sums.data() + groups,
                    q.sums.data() + row * (cols / 8) + begin / 8);
}

struct Pass::Share {
  const Linear* linear;
  float* out;
  const Columns* columns;
  MatMul matmul;
  Activations x;        // with the remainders' rows
  int64_t rows;         // without them
  int64_t width;        // of a row of `out`
  int64_t panels, step, parts;
};

/// Several products of the same rows, as one loop over panels. Products of remainders are added to
/// those of their rows.
void Pass::multiply(std::initializer_list<Job> jobs, const Inputs& x) {
  std::vector<Share> shares;
  int64_t parts = 0;
  for (const Job& job : jobs) {
    const Packed& w = job.linear->weight;
    const Columns* columns = job.columns;
    const int64_t panels =
        columns == nullptr ? w.panels() : static_cast<int64_t>(columns->panels().size());
    const int64_t step = std::max<int64_t>(1, panels / (kParts * pool_.threads()));
    Share share = {job.linear, job.out, columns, kernels_.matmul(w.type), x, x.rows,
                   columns == nullptr ? w.rows : columns->count(),
                   panels,     step,    (panels + step - 1) / step};
    if (!is_float(w.type)) share.x.rows += x.remainders;
    parts += share.parts;
    shares.push_back(share);
  }
  pool_.run(parts, [&](int64_t part, int) {
    const Share* share = shares.data();
    for (; part >= share->parts; ++share) part -= share->parts;
    const int64_t begin = part * share->step;
    const int64_t end = std::min(share->panels, begin + share->step);
    if (share->columns == nullptr) return multiply_run(*share, begin, begin, end - begin);
    const std::vector<int32_t>& panels = share->columns->panels();
    for (int64_t at = begin; at < end;) {  // neighbours are multiplied together
      int64_t next = at + 1;
      while (next < end && panels[next] == panels[next - 1] + 1) ++next;
      multiply_run(*share, panels[at], at, next - at);
      at = next;
    }
  });
}

/// The product of `count` panels from `panel` on; those before it in `out` are `at`.
void Pass::multiply_run(const Share& share, int64_t panel, int64_t at, int64_t count) {
  const Packed& w = share.linear->weight;
  const std::vector<float>& bias = share.linear->bias;
  // A kernel writes panel p at p * PANEL.
  share.matmul(w, panel, panel + count, share.x, share.out + (at - panel) * PANEL, share.width);
  const int64_t first = panel * PANEL, size = std::min(w.rows - first, count * PANEL);
  for (int64_t i = 0; i < share.rows; ++i) {
    float* out = share.out + i * share.width + at * PANEL;
    if (share.x.rows > share.rows) {
      const float* more = out + share.rows * share.width;
      for (int64_t o = 0; o < size; ++o) out[o] += more[o];
    }
    if (!bias.empty()) {
      for (int64_t o = 0; o < size; ++o) out[o] += bias[first + o];
    }
  }
}

/// The residual connection, with the norm that Gemma has before it.
void Pass::add_projected(const std::vector<float>& post_norm) {
  const int64_t hidden = config_.hidden;
  pool_.run(count(), [&](int64_t i, int) {
    float* x = scratch_.x.data() + i * hidden;
    float* y = scratch_.projected.data() + i * hidden;
    if (!post_norm.empty()) {
      kernels_.rms_norm(y, post_norm.data(), hidden, config_.norm_epsilon, y);
    }
    for (int64_t d = 0; d < hidden; ++d) x[d] += y[d];
  });
}

void Pass::rotate(float* head, const float* table) const {
  const int64_t half = config_.head_dim / 2;
  const float* cosine = table;
  const float* sine = table + half;
  // Every rope of a model turns as many pairs; the rest of a head is left as it is.
  const int64_t pairs = static_cast<int64_t>(config_.ropes[0].frequencies.size());
  const int64_t first = config_.interleaved ? 2 : 1, apart = config_.interleaved ? 1 : pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    float& a = head[i * first];
    float& b = head[i * first + apart];
    const float x = a, y = b;
    a = x * cosine[i] - y * sine[i];
    b = y * cosine[i] + x * sine[i];
  }
}

/// Norms and rotation of a row's queries and keys; keys and values go to the cache. `half` has room for
/// a head.
void Pass::store(int64_t layer, const LayerConfig& settings, int64_t i, uint16_t* half) {
  const Config& c = config_;
  const Layer& weights = weights_.layers[layer];
  const int64_t dim = c.head_dim, ropes = static_cast<int64_t>(c.ropes.size());
  const float* table =
      scratch_.rotation.data() + (i * ropes + settings.rope) * 2 * (c.head_dim / 2);
  for (int64_t h = 0; h < c.heads; ++h) {
    float* q = scratch_.q.data() + (i * c.heads + h) * dim;
    if (c.qk_norm) kernels_.rms_norm(q, weights.q_norm.data(), dim, c.norm_epsilon, q);
    rotate(q, table);
    for (int64_t d = 0; d < dim; ++d) q[d] *= c.attention_scale;
  }
  Cache& cache = row(i).sequence->cache_;
  const int64_t slot = place(i).slot;
  for (int64_t h = 0; h < c.kv_heads; ++h) {
    float* k = scratch_.k.data() + (i * c.kv_heads + h) * dim;
    const float* v = scratch_.v.data() + (i * c.kv_heads + h) * dim;
    if (c.qk_norm) kernels_.rms_norm(k, weights.k_norm.data(), dim, c.norm_epsilon, k);
    rotate(k, table);
    kernels_.to_half(k, dim, half);
    uint16_t* keys = cache.keys(layer, h, slot / BLOCK * BLOCK) + slot % BLOCK;
    for (int64_t d = 0; d < dim; ++d) keys[d * BLOCK] = half[d];
    kernels_.to_half(v, dim, cache.values(layer, h, slot));
  }
}

struct Pass::Unit {
  int64_t begin, end;    // rows of the chunk
  int64_t kv_head;
  int64_t first, heads;  // query heads, within those of the key head
};

void Pass::attend(int64_t layer, int64_t window) {
  const Config& c = config_;
  const int64_t group = c.heads / c.kv_heads;
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (int64_t i = 0; i < count();) {
    int64_t end = i + 1;
    while (end < count() && end - i < kUnitRows && row(end).sequence == row(i).sequence) ++end;
    runs.emplace_back(i, end);
    i = end;
  }
  // With fewer runs and key heads than threads, the query heads are shared out too.
  const int64_t units = static_cast<int64_t>(runs.size()) * c.kv_heads;
  const int64_t splits = units < pool_.threads() ? std::min<int64_t>(group, pool_.threads()) : 1;
  pool_.run(units * splits, [&](int64_t part, int thread) {
    const int64_t split = part % splits, unit = part / splits;
    const auto [begin, end] = runs[unit / c.kv_heads];
    const int64_t first = group * split / splits, last = group * (split + 1) / splits;
    attend_unit({begin, end, unit % c.kv_heads, first, last - first}, layer, window,
                scratch_.threads[thread]);
  });
}

void Pass::attend_unit(const Unit& unit, int64_t layer, int64_t window, ThreadScratch& scratch) {
  const Config& c = config_;
  const int64_t dim = c.head_dim, room = model_.shape_.dim, heads = unit.heads;
  const int64_t head = unit.kv_head * (c.heads / c.kv_heads) + unit.first;
  Cache& cache = row(unit.begin).sequence->cache_;

  struct Span {
    int64_t start, first, end;  // positions attended to; `first` is the start of the start's block
  };
  Span spans[kUnitRows];
  int64_t lowest = std::numeric_limits<int64_t>::max(), highest = 0;
  for (int64_t i = unit.begin; i < unit.end; ++i) {
    const int64_t end = place(i).position + 1;
    const int64_t start = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    spans[i - unit.begin] = {start, start / BLOCK * BLOCK, end};
    lowest = std::min(lowest, start / BLOCK * BLOCK);
    highest = std::max(highest, end);
  }
  const int64_t stride = (highest - lowest + BLOCK - 1) / BLOCK * BLOCK;
  const auto scores = [&](int64_t i, int64_t position) {
    return scratch.scores.data() + (i - unit.begin) * heads * stride + position -
           spans[i - unit.begin].first;
  };
  const auto output = [&](int64_t i) {
    return scratch.output.data() + (i - unit.begin) * heads * room;
  };
  // The slots of a row's path that are not where its positions say are brought there.
  const auto gather_keys = [&](int64_t i, int64_t block) -> const uint16_t* {
    const Place& at = place(i);
    const uint16_t* keys = cache.keys(layer, unit.kv_head, block);
    if (at.chain() || block + BLOCK <= at.base) return keys;
    std::memcpy(scratch.keys.data(), keys, BLOCK * room * sizeof(uint16_t));
    for (int64_t p = std::max(block, at.base); p < std::min(block + BLOCK, at.position + 1); ++p) {
      const int64_t slot = at.path[p - at.base];
      const uint16_t* from = cache.keys(layer, unit.kv_head, slot / BLOCK * BLOCK) + slot % BLOCK;
      for (int64_t d = 0; d < dim; ++d) {
        scratch.keys[d * BLOCK + p - block] = from[d * BLOCK];
      }
    }
    return scratch.keys.data();
  };
  const auto gather_values = [&](int64_t i, int64_t block) -> const uint16_t* {
    const Place& at = place(i);
    const uint16_t* values = cache.values(layer, unit.kv_head, block);
    if (at.chain() || block + BLOCK <= at.base) return values;
    std::memcpy(scratch.values.data(), values, BLOCK * room * sizeof(uint16_t));
    for (int64_t p = std::max(block, at.base); p < std::min(block + BLOCK, at.position + 1); ++p) {
      std::memcpy(scratch.values.data() + (p - block) * room,
                  cache.values(layer, unit.kv_head, at.path[p - at.base]), room * sizeof(uint16_t));
    }
    return scratch.values.data();
  };

  for (int64_t block = lowest; block < highest; block += BLOCK) {
    for (int64_t i = unit.begin; i < unit.end; ++i) {
      const Span& span = spans[i - unit.begin];
      if (block < span.first || block >= span.end) continue;
      kernels_.attention_scores(scratch_.q.data() + (i * c.heads + head) * dim, heads, dim,
                                gather_keys(i, block), scores(i, block), stride);
    }
  }
  for (int64_t i = unit.begin; i < unit.end; ++i) {
    const Span& span = spans[i - unit.begin];
    for (int64_t h = 0; h < heads; ++h) {
      float* line = scores(i, span.first) + h * stride;
      for (int64_t p = span.first; p < span.start; ++p) {
        line[p - span.first] = -std::numeric_limits<float>::infinity();
      }
      scratch.sums[(i - unit.begin) * heads + h] = kernels_.softmax(line, span.end - span.first);
    }
  }
  std::fill_n(scratch.output.data(), (unit.end - unit.begin) * heads * room, 0.0f);
  for (int64_t block = lowest; block < highest; block += BLOCK) {
    for (int64_t i = unit.begin; i < unit.end; ++i) {
      const Span& span = spans[i - unit.begin];
      if (block < span.first || block >= span.end) continue;
      kernels_.attention_values(scores(i, block), stride, heads,
                                std::min(BLOCK, span.end - block), gather_values(i, block), room,
                                output(i));
    }
  }
  for (int64_t i = unit.begin; i < unit.end; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* from = output(i) + h * room;
      float* to = scratch_.attended.data() + (i * c.heads + head + h) * dim;
      const float whole = scratch.sums[(i - unit.begin) * heads + h];
      for (int64_t d = 0; d < dim; ++d) to[d] = from[d] / whole;
    }
  }
}

}  // namespace draftproof
