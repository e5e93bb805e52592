// GGUF files: metadata and where the tensors lie.
//
// Versions 2 and 3, little-endian:
//
//   "GGUF"  version u32  tensors u64  pairs u64
//   a pair    key string, value type u32, value
//   a tensor  name string, number of dimensions u32, dimensions u64 each, type u32, offset u64
//   padding to the alignment, then the data that the offsets count from
//
// A string is its length in u64 and its bytes; an array its elements' type in u32, their number in
// u64, and the elements. The alignment is `general.alignment`, or 32.
//
// The bytes are not trusted: no number in them is used before it is checked against the file's
// size, so that parsing takes time and memory in proportion to what is there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "mapped_file.h"
#include "types.h"

namespace draftproof {

/// The file is damaged. The sentence says what is wrong and where.
class GgufError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The file may be whole, but it is of a kind that is not read.
class GgufUnsupported : public GgufError {
 public:
  using GgufError::GgufError;
};

/// Codes as in the file.
enum class ValueType : uint32_t {
  UInt8 = 0,
  Int8 = 1,
  UInt16 = 2,
  Int16 = 3,
  UInt32 = 4,
  Int32 = 5,
  Float32 = 6,
  Bool = 7,
  String = 8,
  Array = 9,
  UInt64 = 10,
  Int64 = 11,
  Float64 = 12,
};

/// A metadata value, left where it is in the file.
struct Value {
  ValueType type = ValueType::UInt8;
  const uint8_t* data = nullptr;  // the number, the string's bytes or the array's first element
  size_t bytes = 0;
  ValueType element = ValueType::UInt8;  // of an array, as is the next
  uint64_t count = 0;

  std::string_view text() const { return {reinterpret_cast<const char*>(data), bytes}; }

  /// T must be of the type's size.
  template <class T>
  T number() const {
    T value;
    std::memcpy(&value, data, sizeof(T));
    return value;
  }
};

struct Pair {
  std::string_view key;
  Value value;
};

constexpr uint32_t MAX_DIMENSIONS = 4;

struct Tensor {
  std::string_view name;
  uint32_t type = 0;                                // a `Type` where `find_type` knows it
  uint32_t dimensions = 0;                          // how many
  std::array<uint64_t, MAX_DIMENSIONS> shape = {};  // columns first; 1 beyond `dimensions`
  uint64_t offset = 0;                              // from the start of the file
  uint64_t bytes = 0;                               // 0 where the type is not known

  uint64_t cols() const { return shape[0]; }
  uint64_t rows() const { return shape[1] * shape[2] * shape[3]; }
};

/// What GGML calls a type of tensor, read here or not; null for an unknown code.
const char* tensor_type_name(uint32_t code);

/// The contents of a file in memory, which must outlive it. Everything is checked in the
/// constructor: keys and names are unique, names are printable ASCII, tensors of known types lie
/// within the file, aligned, and do not overlap. Tensors of unknown types begin within it.
class Gguf {
 public:
  Gguf() = default;
  Gguf(const uint8_t* data, size_t size);  // throws GgufError

  uint32_t version() const { return version_; }
  const std::vector<Pair>& pairs() const { return pairs_; }        // in the file's order
  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the file's order

  /// Null where there is none.
  const Value* find(std::string_view key) const;
  const Tensor* find_tensor(std::string_view name) const;

  /// A tensor of a type that is read. Throws GgufError if it is missing, GgufUnsupported if it is
  /// of another type.
  const Tensor& tensor(std::string_view name) const;

  /// Where the data begin.
  uint64_t data_offset() const { return data_offset_; }

 private:
  uint32_t version_ = 0;
  uint64_t data_offset_ = 0;
  std::vector<Pair> pairs_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> pair_order_;  // by key, for searching
  std::vector<uint32_t> tensor_order_;
};

/// The elements of an array, one after another. The lengths in the file are checked again, so that
/// a file that another program has since rewritten cannot lead outside the array. Throws GgufError.
class Elements {
 public:
  explicit Elements(const Value& array);
  bool next(Value& value);

 private:
  Value array_;
  size_t at_ = 0;
  uint64_t left_ = 0;
};

/// A file and its contents. Does not change once made: any thread may read.
class GgufFile {
 public:
  /// Throws std::system_error if the file cannot be opened, and GgufError.
  explicit GgufFile(const std::string& path);

  const Gguf& contents() const { return contents_; }
  const MappedFile& file() const { return file_; }

  /// The first byte of a tensor of this file; `tensor.bytes` are there.
  const uint8_t* tensor_data(const Tensor& tensor) const { return file_.data() + tensor.offset; }

  /// The tensor's bytes are not needed any more: see MappedFile::forget.
  void forget(const Tensor& tensor) const {
    file_.forget(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes));
  }

 private:
  MappedFile file_;
  Gguf contents_;
};

}  // namespace draftproof
