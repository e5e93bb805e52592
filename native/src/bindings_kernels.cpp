// The kernels one by one, for tests and measurements.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace draftproof {
namespace {

template <class T, size_t dimensions>
using In = nb::ndarray<const T, nb::ndim<dimensions>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;

constexpr Type kTypes[] = {Type::F32,  Type::F16,  Type::BF16, Type::Q4_0, Type::Q4_1, Type::Q5_0,
                           Type::Q5_1, Type::Q8_0, Type::Q4_K, Type::Q5_K, Type::Q6_K};

bool is_quantised(Type type) { return info(type).block > 1; }

const Kernels& kernels_called(const std::string& name) {
  const Kernels* kernels = find_kernels(name.c_str());
  if (kernels == nullptr) throw nb::value_error(("no kernels '" + name + "' run here").c_str());
  return *kernels;
}

void require(bool holds, const char* message) {
  if (!holds) throw nb::value_error(message);
}

int64_t size(size_t extent) { return static_cast<int64_t>(extent); }

/// An array that owns its memory.
template <class T>
nb::ndarray<nb::numpy, T> array(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
  T* first = data.release();
  nb::capsule owner(first, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  return nb::ndarray<nb::numpy, T>(first, shape, owner);
}

template <class T>
std::unique_ptr<T[]> zeros(int64_t n) {
  return std::unique_ptr<T[]>(new T[static_cast<size_t>(n)]());
}

/// Rows of activations, quantised where a matrix reads them so.
struct Quantised {
  std::vector<int8_t> quants;
  std::vector<float> scales, scaled_sums;
  std::vector<int16_t> sums;

  Quantised(const Kernels& kernels, const float* x, int64_t rows, int64_t cols)
      : quants(rows * cols),
        scales(rows * cols / GROUP),
        scaled_sums(rows * cols / GROUP),
        sums(rows * cols / 8) {
    for (int64_t row = 0; row < rows; row++) {
      kernels.quantize(x + row * cols, cols, &quants[row * cols], &scales[row * cols / GROUP],
                       &scaled_sums[row * cols / GROUP], &sums[row * cols / 8]);
    }
  }
};

class Matrix {
 public:
  Matrix(const std::string& type_name, int64_t rows, int64_t cols, const Bytes& source) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](Type one) { return type_name == info(one).name; });
    require(type != std::end(kTypes), ("no type '" + type_name + "' of weights").c_str());
    require(rows > 0 && cols > 0, "a matrix needs at least one row and one column");
    require(cols % info(*type).block == 0,
            ("columns of " + type_name + " come in blocks of " + std::to_string(info(*type).block))
                .c_str());
    const int64_t row = row_bytes(*type, cols);
    require(size(source.nbytes()) % row == 0 && size(source.nbytes()) / row == rows,
            ("rows times columns do not fit " + std::to_string(source.nbytes()) + " bytes").c_str());
    nb::gil_scoped_release release;
    packed_ = allocate_packed(*type, rows, cols);
    fill_panels(packed_, source.data(), 0, packed_.panels());
  }

  int64_t rows() const { return packed_.rows; }
  int64_t cols() const { return packed_.cols; }
  int64_t panels() const { return packed_.panels(); }
  int64_t bytes() const { return packed_.bytes(); }
  const char* type() const { return info(packed_.type).name; }

  nb::ndarray<nb::numpy, float> row(int64_t index) const {
    if (index < 0 || index >= packed_.rows) throw nb::index_error("no such row");
    auto out = zeros<float>(packed_.cols);
    dequantize_row(packed_, index, out.get());
    return array(std::move(out), {static_cast<size_t>(packed_.cols)});
  }

  nb::ndarray<nb::numpy, float> matmul(const In<float, 2>& x, const std::string& name, int64_t begin,
                                       std::optional<int64_t> end) const {
    const Kernels& kernels = kernels_called(name);
    const int64_t n = size(x.shape(0));
    const int64_t last = end.value_or(packed_.panels());
    require(size(x.shape(1)) == packed_.cols, "x needs as many columns as the matrix");
    require(0 <= begin && begin <= last && last <= packed_.panels(), "no such panels");
    auto out = zeros<float>(n * packed_.rows);
    {
      nb::gil_scoped_release release;
      Activations rows;
      rows.rows = n;
      rows.cols = packed_.cols;
      rows.values = x.data();
      std::optional<Quantised> quantised;
      if (is_quantised(packed_.type)) {
        quantised.emplace(kernels, x.data(), n, packed_.cols);
        rows.quants = quantised->quants.data();
        rows.scales = quantised->scales.data();
        rows.scaled_sums = quantised->scaled_sums.data();
        rows.sums = quantised->sums.data();
      }
      kernels.matmul(packed_.type)(packed_, begin, last, rows, out.get(), packed_.rows);
    }
    return array(std::move(out), {static_cast<size_t>(n), static_cast<size_t>(packed_.rows)});
  }

 private:
  Packed packed_;
};

nb::list kernel_names() {
  nb::list names;
  for (const char* name : {"avx512", "avx2", "portable"}) {
    if (find_kernels(name) != nullptr) names.append(name);
  }
  return names;
}

nb::dict types() {
  nb::dict all;
  for (const Type type : kTypes) {
    const TypeInfo& one = info(type);
    all[one.name] = nb::make_tuple(static_cast<uint32_t>(one.type), one.block, one.bytes);
  }
  return all;
}

nb::tuple quantize(const std::string& name, const In<float, 1>& x) {
  const int64_t n = size(x.shape(0));
  require(n % GROUP == 0, "x needs a multiple of 32 numbers");
  auto quants = zeros<int8_t>(n);
  auto scales = zeros<float>(n / GROUP);
  auto scaled_sums = zeros<float>(n / GROUP);
  auto sums = zeros<int16_t>(n / 8);
  kernels_called(name).quantize(x.data(), n, quants.get(), scales.get(), scaled_sums.get(),
                                sums.get());
  const size_t groups = static_cast<size_t>(n / GROUP);
  return nb::make_tuple(array(std::move(quants), {x.shape(0)}), array(std::move(scales), {groups}),
                        array(std::move(scaled_sums), {groups}),
                        array(std::move(sums), {2 * groups, 2}));
}

nb::ndarray<nb::numpy, float> rms_norm(const std::string& name, const In<float, 1>& x,
                                       const In<float, 1>& weight, float epsilon) {
  require(x.shape(0) == weight.shape(0), "x and weight need the same length");
  auto out = zeros<float>(size(x.shape(0)));
  kernels_called(name).rms_norm(x.data(), weight.data(), size(x.shape(0)), epsilon, out.get());
  return array(std::move(out), {x.shape(0)});
}

using Gated = void (*Kernels::*)(const float*, const float*, int64_t, float*);

template <Gated kernel>
nb::ndarray<nb::numpy, float> gated(const std::string& name, const In<float, 1>& gate,
                                    const In<float, 1>& up) {
  require(gate.shape(0) == up.shape(0), "gate and up need the same length");
  auto out = zeros<float>(size(gate.shape(0)));
  (kernels_called(name).*kernel)(gate.data(), up.data(), size(gate.shape(0)), out.get());
  return array(std::move(out), {gate.shape(0)});
}

nb::ndarray<nb::numpy, float> attention_scores(const std::string& name, const In<float, 2>& query,
                                               const In<uint16_t, 2>& keys) {
  const size_t heads = query.shape(0);
  require(keys.shape(0) == query.shape(1) && keys.shape(1) == 16, "keys need the shape [dim, 16]");
  auto out = zeros<float>(size(heads) * 16);
  kernels_called(name).attention_scores(query.data(), size(heads), size(query.shape(1)), keys.data(),
                                        out.get(), 16);
  return array(std::move(out), {heads, 16});
}

nb::tuple softmax(const std::string& name, const In<float, 1>& scores) {
  const size_t n = scores.shape(0);
  const size_t room = (n + 15) / 16 * 16;
  auto out = zeros<float>(size(room));
  std::copy(scores.data(), scores.data() + n, out.get());
  std::fill(out.get() + n, out.get() + room, -1.0f);
  const float sum = kernels_called(name).softmax(out.get(), size(n));
  return nb::make_tuple(array(std::move(out), {room}), sum);
}

nb::ndarray<nb::numpy, float> attention_values(const std::string& name, const In<float, 2>& weights,
                                               const In<uint16_t, 2>& values, const In<float, 2>& out) {
  const size_t heads = weights.shape(0), positions = weights.shape(1), dim = values.shape(1);
  require(positions <= 16 && values.shape(0) == positions, "values need a row for each weight");
  require(dim % 16 == 0, "a multiple of 16 values to a position");
  require(out.shape(0) == heads && out.shape(1) == dim, "out needs the shape [heads, dim]");
  auto sums = zeros<float>(size(heads * dim));
  std::copy(out.data(), out.data() + heads * dim, sums.get());
  kernels_called(name).attention_values(weights.data(), size(positions), size(heads), size(positions),
                                        values.data(), size(dim), sums.get());
  return array(std::move(sums), {heads, dim});
}

nb::ndarray<nb::numpy, uint16_t> to_half(const std::string& name, const In<float, 1>& x) {
  auto out = zeros<uint16_t>(size(x.shape(0)));
  kernels_called(name).to_half(x.data(), size(x.shape(0)), out.get());
  return array(std::move(out), {x.shape(0)});
}

nb::ndarray<nb::numpy, float> from_half(const std::string& name, const In<uint16_t, 1>& x) {
  auto out = zeros<float>(size(x.shape(0)));
  kernels_called(name).from_half(x.data(), size(x.shape(0)), out.get());
  return array(std::move(out), {x.shape(0)});
}

}  // namespace

void bind_kernels(nb::module_& module) {
  module.def("kernels", kernel_names, "Names of the kernels that run here, fastest first.");
  module.attr("TYPES") = types();
  nb::class_<Matrix>(module, "Matrix", "A matrix in the layout that the kernels read.")
      .def(nb::init<const std::string&, int64_t, int64_t, const Bytes&>(), "type"_a, "rows"_a,
           "cols"_a, "source"_a, "Pack the bytes of a file's tensor. Raises ValueError.")
      .def_prop_ro("type", &Matrix::type)
      .def_prop_ro("rows", &Matrix::rows)
      .def_prop_ro("cols", &Matrix::cols)
      .def_prop_ro("panels", &Matrix::panels)
      .def_prop_ro("bytes", &Matrix::bytes)
      .def("row", &Matrix::row, "index"_a, "One row as float32 [cols].")
      .def("matmul", &Matrix::matmul, "x"_a, "kernels"_a, "begin"_a = 0, "end"_a = nb::none(),
           "x [n, cols] to [n, rows]; zeros where the panels begin..end do not reach.");
  module.def("quantize", quantize, "kernels"_a, "x"_a,
             "One row to (quants, scales, scaled sums, sums).");
  module.def("rms_norm", rms_norm, "kernels"_a, "x"_a, "weight"_a, "epsilon"_a);
  module.def("silu_mul", gated<&Kernels::silu_mul>, "kernels"_a, "gate"_a, "up"_a);
  module.def("gelu_mul", gated<&Kernels::gelu_mul>, "kernels"_a, "gate"_a, "up"_a);
  module.def("attention_scores", attention_scores, "kernels"_a, "query"_a, "keys"_a,
             "query [heads, dim] and fp16 bits of keys [dim, 16] to [heads, 16].");
  module.def("softmax", softmax, "kernels"_a, "scores"_a,
             "(exp(score - max), padded with zeros to a multiple of 16, and their sum).");
  module.def("attention_values", attention_values, "kernels"_a, "weights"_a, "values"_a, "out"_a,
             "out plus weights [heads, positions] times fp16 bits of values [positions, dim].");
  module.def("to_half", to_half, "kernels"_a, "x"_a);
  module.def("from_half", from_half, "kernels"_a, "x"_a);
}

}  // namespace draftproof
