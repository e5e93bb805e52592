#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "bandwidth.h"
#include "bindings.h"
#include "coarsen.h"
#include "gguf.h"
#include "model.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {
namespace {

/// Models that use equally many threads on the same processors share them: target and draft take
/// turns.
std::shared_ptr<Pool> pool_of(int threads, const std::vector<int>& processors = {}) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::vector<int>>, std::weak_ptr<Pool>> pools;
  if (threads < 1 || threads > 1024) throw std::invalid_argument("threads must be in 1..1024");
  if (!processors.empty() && processors.size() != static_cast<size_t>(threads)) {
    throw std::invalid_argument("there must be a processor for each thread, or none");
  }
  for (const int processor : processors) {
    if (processor < 0) throw std::invalid_argument("a processor's number is negative");
  }
  std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<Pool>& known = pools[{threads, processors}];
  std::shared_ptr<Pool> pool = known.lock();
  if (pool == nullptr) {
    pool = std::make_shared<Pool>(threads, processors);
    known = pool;
  }
  return pool;
}

const Kernels& kernels_of(const std::optional<std::string>& name) {
  if (!name.has_value()) return best_kernels();
  const Kernels* kernels = find_kernels(name->c_str());
  if (kernels == nullptr) throw std::invalid_argument("no kernels " + *name + " run here");
  return *kernels;
}

using Frequencies = std::pair<std::vector<float>, float>;  // and the scale
using WindowAndRope = std::pair<int64_t, int64_t>;

void make_model(Model* self, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim,
                int64_t feed_forward, int64_t vocab, float norm_epsilon, float attention_scale,
                float embedding_scale, bool gelu, bool interleaved, bool qkv_bias, bool qk_norm,
                bool post_norms, const std::vector<Frequencies>& ropes,
                const std::vector<WindowAndRope>& layers, int threads,
                const std::optional<std::string>& kernels, int64_t cache_bytes) {
  Config config;
  config.hidden = hidden;
  config.heads = heads;
  config.kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.feed_forward = feed_forward;
  config.vocab = vocab;
  config.norm_epsilon = norm_epsilon;
  config.attention_scale = attention_scale;
  config.embedding_scale = embedding_scale;
  config.activation = gelu ? Activation::Gelu : Activation::Silu;
  config.interleaved = interleaved;
  config.qkv_bias = qkv_bias;
  config.qk_norm = qk_norm;
  config.post_norms = post_norms;
  for (const auto& [frequencies, scale] : ropes) config.ropes.push_back({frequencies, scale});
  for (const auto& [window, rope] : layers) config.layers.push_back({window, rope});
  new (self) Model(std::move(config), pool_of(threads), kernels_of(kernels), cache_bytes);
}

bool set_array(Model& model, const std::string& name, const std::string& type, int64_t rows,
               int64_t cols, nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig> source) {
  for (uint32_t code = 0; code < 64; ++code) {
    const TypeInfo* found = find_type(code);
    if (found == nullptr || type != found->name) continue;
    if (rows < 1 || cols < 1 || cols % found->block != 0 ||
        static_cast<int64_t>(source.size()) != rows * row_bytes(found->type, cols)) {
      throw std::invalid_argument(name + ": the bytes are not those of its shape");
    }
    nb::gil_scoped_release free;
    return model.set(name, found->type, rows, cols, source.data());
  }
  throw std::invalid_argument("no number format is called " + type);
}

bool set_from_file(Model& model, const GgufFile& file, const std::string& name, bool coarse) {
  nb::gil_scoped_release free;
  const Tensor& tensor = file.contents().tensor(name);
  if (tensor.dimensions > 2) {
    throw BadWeights(name + " has " + std::to_string(tensor.dimensions) + " dimensions");
  }
  Type type = static_cast<Type>(tensor.type);
  const int64_t rows = static_cast<int64_t>(tensor.rows());
  const int64_t cols = static_cast<int64_t>(tensor.cols());
  const uint8_t* data = file.tensor_data(tensor);
  std::vector<uint8_t> fewer;
  if (coarse && coarsens(type, rows, cols)) {
    fewer = coarsened(type, rows, cols, data, *model.pool());
    type = Type::Q4_0;
    data = fewer.data();
  }
  const bool used = model.set(name, type, rows, cols, data);
  file.forget(tensor);
  return used;
}

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flags = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

void make_columns(Columns* self, Ints panels, int64_t head_rows) {
  new (self) Columns({panels.data(), panels.data() + panels.size()}, head_rows);
}

/// Memory that goes back to its pool once no array lies in it.
struct Borrowed {
  Borrowed(std::shared_ptr<BufferPool> from, size_t bytes)
      : pool(std::move(from)), buffer(pool->take(bytes)) {}
  ~Borrowed() { pool->give(std::move(buffer)); }

  std::shared_ptr<BufferPool> pool;
  Buffer buffer;
};

Logits score(Model& model, const std::vector<Sequence*>& sequences, Ints owners, Ints tokens,
             Ints parents, Flags keep, std::optional<Flags> trees, const Columns* columns) {
  const size_t count = tokens.size();
  if (owners.size() != count || parents.size() != count || keep.size() != count) {
    throw std::invalid_argument("owners, tokens, parents and keep differ in length");
  }
  if (trees.has_value() && trees->size() != sequences.size()) {
    throw std::invalid_argument("sequences and trees differ in length");
  }
  for (const Sequence* sequence : sequences) {
    if (sequence == nullptr || !model.owns(*sequence)) {
      throw std::invalid_argument("a sequence belongs to another model");
    }
  }
  std::vector<Row> rows(count);
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (owners(i) < 0 || static_cast<size_t>(owners(i)) >= sequences.size()) {
      throw std::invalid_argument("a row's owner is no index of the sequences");
    }
    const bool tree = trees.has_value() && (*trees)(owners(i));
    rows[i] = {tokens(i), sequences[owners(i)], parents(i), keep(i), tree};
    kept += keep(i);
  }
  const size_t width =
      static_cast<size_t>(columns == nullptr ? model.config().vocab : columns->count());
  auto logits = std::make_unique<Borrowed>(model.buffers(), kept * width * sizeof(float));
  float* data = logits->buffer.as<float>();
  {
    nb::gil_scoped_release free;
    model.score(rows, data, columns);
  }
  nb::capsule owner(logits.get(), [](void* borrowed) noexcept {
    delete static_cast<Borrowed*>(borrowed);
  });
  logits.release();
  return Logits(data, {kept, width}, owner);
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::exception<CacheFull>(module, "CacheFull", PyExc_MemoryError);
  nb::exception<BadWeights>(module, "BadWeights", PyExc_ValueError);

  nb::class_<Sequence>(module, "Sequence",
                       "One sequence's keys and values. Not for use from two threads at once.")
      .def_prop_ro("length", &Sequence::length, "Rows of the chain.")
      .def_prop_ro("open_rows", &Sequence::open_rows, "Rows of a tree not yet chosen from.")
      .def("rewind", &Sequence::rewind, "length"_a,
           "Forget all but the first `length` rows, and an open tree; constant time.")
      .def("keep", &Sequence::keep, "path"_a,
           "Append a path of the open tree, by its rows from the root, and forget the rest.");

  nb::class_<Columns>(module, "Columns",
                      "The columns of the logits that are wanted, by panels of PANEL neighbours.")
      .def("__init__", &make_columns, "panels"_a, "head_rows"_a,
           "`panels` rise; a head of `head_rows` rows has them. Raises ValueError.")
      .def_prop_ro("count", &Columns::count, "Logits of a row.");

  nb::class_<Model>(module, "Model", "A decoder of the Llama family.")
      .def("__init__", &make_model, nb::kw_only(), "hidden"_a, "heads"_a, "kv_heads"_a,
           "head_dim"_a, "feed_forward"_a, "vocab"_a, "norm_epsilon"_a, "attention_scale"_a,
           "embedding_scale"_a, "gelu"_a, "interleaved"_a, "qkv_bias"_a, "qk_norm"_a,
           "post_norms"_a, "ropes"_a, "layers"_a, "threads"_a, "kernels"_a.none(), "cache_bytes"_a)
      .def("set", &set_array, "name"_a, "type"_a, "rows"_a, "cols"_a, "source"_a,
           "Take a tensor by its GGUF name; False where no part of the model has that name.")
      .def("set_from_file", &set_from_file, "file"_a, "name"_a, "coarse"_a = false,
           "Take a tensor of a file; with `coarse`, a matrix of more bits per weight as Q4_0.")
      .def("finish", &Model::finish, "Check that every tensor is there.")
      .def("shallow", &Model::shallow, "layers"_a,
           "The first layers as a model, which shares weights and the caches' limit.")
      .def("open", &Model::open, nb::keep_alive<0, 1>(), "A new sequence.")
      .def("score", &score, "sequences"_a, "owners"_a, "tokens"_a, "parents"_a, "keep"_a,
           "trees"_a = nb::none(), "columns"_a.none() = nb::none(),
           "Score rows in one pass and append them: row i is tokens[i] in sequences[owners[i]].\n\n"
           "It follows row parents[i], counted over those of its sequence in the open tree and this "
           "pass, or, for -1, the sequence's chain. The rows of a sequence continue its chain or, "
           "where `trees` has True for it, open a tree or join the open one. Returns the logits of "
           "the rows in `keep`, float32 [kept, vocab], or only the wanted columns.")
      .def_prop_ro("kernels", [](const Model& model) { return model.kernels().name; })
      .def("use_threads",
           [](Model& model, int threads, const std::vector<int>& processors) {
             nb::gil_scoped_release free;
             model.use_pool(pool_of(threads, processors));
           },
           "threads"_a, "processors"_a = std::vector<int>{},
           "Compute with so many threads from the next pass on.\n\n"
           "On Linux each is kept on its own of the processors, where any are given. A shallow "
           "model keeps the threads that it has.")
      .def_prop_ro("threads", [](const Model& model) { return model.pool()->threads(); })
      .def_prop_ro("processors", [](const Model& model) { return model.pool()->processors(); },
                   "What the threads are kept on, the caller's first; empty where the system "
                   "places them.")
      .def_prop_ro("layers", [](const Model& model) { return model.cache_shape().layers; })
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("pass_bytes", &Model::pass_bytes, "Bytes of weights that a small pass reads.")
      .def_prop_ro("page_bytes", [](const Model& model) { return model.cache_shape().page_bytes(); })
      .def_prop_ro("cache_limit", [](const Model& model) { return model.budget().limit(); })
      .def_prop_ro("cache_used", [](const Model& model) { return model.budget().used(); });
  module.attr("PAGE") = PAGE;
  module.attr("PANEL") = PANEL;

  module.def(
      "read_bandwidth",
      [](int threads, int64_t bytes, int rounds) {
        const std::shared_ptr<Pool> pool = pool_of(threads);
        nb::gil_scoped_release free;
        return read_bandwidth(*pool, bytes, rounds);
      },
      "threads"_a, "bytes"_a = int64_t{1} << 30, "rounds"_a = 5,
      "Bytes per second of a plain read of memory.");
}

}  // namespace draftproof
