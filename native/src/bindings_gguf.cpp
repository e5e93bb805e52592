#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "bindings.h"
#include "gguf.h"

namespace nb = nanobind;

namespace draftproof {
namespace {

/// Bytes that are not UTF-8 become lone surrogates, so that every string can be turned back into
/// the bytes of the file.
nb::object to_str(std::string_view text) {
  PyObject* str =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (str == nullptr) throw nb::python_error();
  return nb::steal(str);
}

/// NumPy's name of a number's type.
const char* numpy_type(ValueType type) {
  switch (type) {
    case ValueType::UInt8: return "u1";
    case ValueType::Int8: return "i1";
    case ValueType::UInt16: return "<u2";
    case ValueType::Int16: return "<i2";
    case ValueType::UInt32: return "<u4";
    case ValueType::Int32: return "<i4";
    case ValueType::Float32: return "<f4";
    case ValueType::Bool: return "?";
    case ValueType::UInt64: return "<u8";
    case ValueType::Int64: return "<i8";
    case ValueType::Float64: return "<f8";
    default: return nullptr;
  }
}

/// A read-only array over a copy: numbers in the file are not aligned.
nb::object to_numpy(const Value& array) {
  return nb::module_::import_("numpy").attr("frombuffer")(nb::bytes(array.data, array.bytes),
                                                          numpy_type(array.element));
}

nb::object to_python(const Value& value) {
  switch (value.type) {
    case ValueType::UInt8: return nb::int_(value.number<uint8_t>());
    case ValueType::Int8: return nb::int_(value.number<int8_t>());
    case ValueType::UInt16: return nb::int_(value.number<uint16_t>());
    case ValueType::Int16: return nb::int_(value.number<int16_t>());
    case ValueType::UInt32: return nb::int_(value.number<uint32_t>());
    case ValueType::Int32: return nb::int_(value.number<int32_t>());
    case ValueType::UInt64: return nb::int_(value.number<uint64_t>());
    case ValueType::Int64: return nb::int_(value.number<int64_t>());
    case ValueType::Float32: return nb::float_(static_cast<double>(value.number<float>()));
    case ValueType::Float64: return nb::float_(value.number<double>());
    case ValueType::Bool: return nb::bool_(value.number<uint8_t>() != 0);
    case ValueType::String: return to_str(value.text());
    case ValueType::Array: break;
  }
  if (numpy_type(value.element) != nullptr) return to_numpy(value);
  nb::list list;
  Elements elements(value);
  for (Value element; elements.next(element);) list.append(to_python(element));
  return list;
}

nb::dict metadata_of(const Gguf& gguf) {
  nb::dict result;
  for (const Pair& pair : gguf.pairs()) result[to_str(pair.key)] = to_python(pair.value);
  return result;
}

nb::dict tensors_of(const Gguf& gguf) {
  nb::dict result;
  for (const Tensor& tensor : gguf.tensors()) {
    const char* name = tensor_type_name(tensor.type);
    const nb::object type = name != nullptr ? nb::object(nb::str(name)) : nb::int_(tensor.type);
    nb::list shape;
    for (uint32_t i = 0; i < tensor.dimensions; ++i) shape.append(tensor.shape[i]);
    result[to_str(tensor.name)] = nb::make_tuple(type, nb::tuple(shape));
  }
  return result;
}

/// What `make` returns, made once and kept in the object.
template <class Make>
nb::object kept(nb::handle self, const char* name, Make make) {
  nb::dict attributes = nb::cast<nb::dict>(self.attr("__dict__"));
  if (!attributes.contains(name)) attributes[name] = make(nb::cast<GgufFile&>(self).contents());
  return attributes[name];
}

using Bytes = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>;

/// The file's own bytes, not copied: they keep the file alive.
Bytes tensor_bytes(nb::handle self, const std::string& name) {
  const auto& file = nb::cast<GgufFile&>(self);
  const Tensor& tensor = file.contents().tensor(name);
  return Bytes(file.tensor_data(tensor), {static_cast<size_t>(tensor.bytes)}, self);
}

[[noreturn]] void raise_os_error(const std::system_error& error, nb::handle path) {
#if defined(_WIN32)
  PyErr_SetExcFromWindowsErrWithFilenameObject(PyExc_OSError, error.code().value(), path.ptr());
#else
  errno = error.code().value();
  PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
#endif
  throw nb::python_error();
}

void open(GgufFile* self, nb::object path) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &converted) == 0) throw nb::python_error();
  const nb::bytes encoded = nb::steal<nb::bytes>(converted);
  const std::string name(encoded.c_str(), encoded.size());
  try {
    nb::gil_scoped_release release;  // reading the header may wait for the disk
    new (self) GgufFile(name);
  } catch (const std::system_error& error) {
    raise_os_error(error, path);
  }
}

}  // namespace

void bind_gguf(nb::module_& module) {
  nb::list types;
  for (uint32_t code = 0; code <= static_cast<uint32_t>(Type::BF16); ++code) {
    if (find_type(code) != nullptr) types.append(tensor_type_name(code));
  }
  module.attr("TENSOR_TYPES") = nb::tuple(types);  // those that are read

  const nb::exception<GgufError> error(module, "GgufError", PyExc_ValueError);
  nb::exception<GgufUnsupported>(module, "GgufUnsupported", error);

  nb::class_<GgufFile>(module, "Gguf", nb::dynamic_attr(),
                       "A GGUF file, mapped into memory, its header read and checked.\n\n"
                       "Raises OSError, GgufError (damaged) or its kind GgufUnsupported.")
      .def("__init__", &open, nb::arg("path"))
      .def_prop_ro(
          "metadata", [](nb::handle self) { return kept(self, "_metadata", metadata_of); },
          "The metadata by key. Strings that are not UTF-8 hold their bytes as surrogateescape\n"
          "makes them; arrays of numbers are read-only numpy arrays, others lists.")
      .def_prop_ro(
          "tensors", [](nb::handle self) { return kept(self, "_tensors", tensors_of); },
          "(type, shape) by name: the type's name or, if it has none, its code; the shape as in\n"
          "the file, columns first.")
      .def_prop_ro(
          "version", [](const GgufFile& file) { return file.contents().version(); },
          "Of the format: 2 or 3.")
      .def_prop_ro(
          "size", [](const GgufFile& file) { return file.file().size(); }, "Bytes of the file.")
      .def_prop_ro(
          "data_offset", [](const GgufFile& file) { return file.contents().data_offset(); },
          "Where the tensors' data begin, in bytes.")
      .def("tensor", &tensor_bytes, nb::arg("name"),
           "The bytes of a tensor as they are in the file, uint8, read-only and not copied.\n\n"
           "Raises GgufError if it is missing or of a type that is not read.");
}

}  // namespace draftproof
