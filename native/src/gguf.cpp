#include "gguf.h"

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace draftproof {
namespace {

constexpr uint64_t kMaxKey = 65535;  // by the specification, as is the next
constexpr uint64_t kMaxName = 64;
constexpr uint64_t kMaxElements = uint64_t{1}
                                  << 62;  // of a tensor: 16 times as much fits in no file
constexpr int kMaxDepth = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;             // by the specification
constexpr size_t kMinPair = 8 + 1 + 4 + 1;        // key of one byte, type, value of one byte
constexpr size_t kMinTensor = 8 + 1 + 4 + 4 + 8;  // name of one byte, no dimensions, type, offset

using std::to_string;

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

/// Text from a file, fit for a sentence: unprintable bytes and quotes escaped, long ones cut.
std::string quoted(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\'' && c != '\\') {
      result += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      result += escape;
    }
  }
  return result + (text.size() > kShown ? "...'" : "'");
}

/// Bytes of a value of that type; 0 for strings, arrays and unknown types.
size_t size_of(ValueType type) {
  switch (type) {
    case ValueType::UInt8:
    case ValueType::Int8:
    case ValueType::Bool: return 1;
    case ValueType::UInt16:
    case ValueType::Int16: return 2;
    case ValueType::UInt32:
    case ValueType::Int32:
    case ValueType::Float32: return 4;
    case ValueType::UInt64:
    case ValueType::Int64:
    case ValueType::Float64: return 8;
    case ValueType::String:
    case ValueType::Array: break;
  }
  return 0;
}

/// What is being read, for the sentence of an error: put together only when there is one.
struct Subject {
  const char* what;
  std::string_view name = {};
};

std::string phrase(const Subject& subject) {
  return subject.name.empty() ? subject.what : subject.what + (" " + quoted(subject.name));
}

/// Reads forward through a range of bytes and never past its end.
class Cursor {
 public:
  Cursor(const uint8_t* data, size_t size, size_t at) : data_(data), size_(size), at_(at) {}

  size_t at() const { return at_; }
  size_t left() const { return size_ - at_; }

  [[noreturn]] void fail(const std::string& fault) const { fail(fault, at_); }
  [[noreturn]] void fail(const std::string& fault, size_t at) const {
    throw GgufError(fault + ", at byte " + to_string(at));
  }

  template <class T>
  T number(const Subject& subject) {
    if (left() < sizeof(T)) ends_within(subject);
    T value;
    std::memcpy(&value, data_ + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  std::string_view text(const Subject& subject) {
    const size_t start = at_;
    const uint64_t length = number<uint64_t>(subject);
    if (length > left()) {
      fail(phrase(subject) + " is " + to_string(length) + " bytes long, and the file ends after " +
               to_string(left()),
           start);
    }
    const auto* first = reinterpret_cast<const char*>(data_ + at_);
    at_ += static_cast<size_t>(length);
    return {first, static_cast<size_t>(length)};
  }

  /// The name of a pair or a tensor.
  std::string_view name(const Subject& subject, uint64_t longest) {
    const size_t start = at_;
    const std::string_view name = text(subject);
    if (name.empty() || name.size() > longest) {
      fail(phrase(subject) + " is " + to_string(name.size()) + " bytes long instead of 1 to " +
               to_string(longest),
           start);
    }
    return name;
  }

  ValueType value_type(const Subject& subject) {
    const size_t start = at_;
    const uint32_t code = number<uint32_t>(subject);
    if (code > static_cast<uint32_t>(ValueType::Float64)) {
      fail(phrase(subject) + " has the unknown type " + to_string(code), start);
    }
    return static_cast<ValueType>(code);
  }

  Value value(ValueType type, const Subject& subject, int depth) {
    Value value;
    value.type = type;
    if (type == ValueType::String) {
      const std::string_view string = text(subject);
      value.data = reinterpret_cast<const uint8_t*>(string.data());
      value.bytes = string.size();
    } else if (type == ValueType::Array) {
      array(value, subject, depth);
    } else {
      value.data = data_ + at_;
      value.bytes = size_of(type);
      if (left() < value.bytes) ends_within(subject);
      if (type == ValueType::Bool) check_bools(1, subject);
      at_ += value.bytes;
    }
    return value;
  }

 private:
  [[noreturn]] void ends_within(const Subject& subject) const {
    fail("the file ends within " + phrase(subject), size_);
  }

  void check_bools(uint64_t count, const Subject& subject) const {
    const uint8_t* first = data_ + at_;
    const uint8_t* end = first + count;
    const uint8_t* bad = std::find_if(first, end, [](uint8_t byte) { return byte > 1; });
    if (bad != end) {
      fail(phrase(subject) + " is neither true nor false but " + to_string(*bad),
           at_ + static_cast<size_t>(bad - first));
    }
  }

  void array(Value& value, const Subject& subject, int depth) {
    const size_t start = at_;
    if (depth == kMaxDepth) {
      fail(phrase(subject) + " nests arrays more than " + to_string(kMaxDepth) + " deep");
    }
    value.element = value_type(subject);
    value.count = number<uint64_t>(subject);
    value.data = data_ + at_;
    const size_t fixed = size_of(value.element);
    const size_t least = fixed != 0 ? fixed : value.element == ValueType::String ? 8 : 12;
    if (value.count > left() / least) {
      fail(phrase(subject) + " counts " + to_string(value.count) + " elements, and the file ends " +
               to_string(left()) + " bytes later",
           start);
    }
    if (fixed != 0) {
      if (value.element == ValueType::Bool) check_bools(value.count, subject);
      at_ += static_cast<size_t>(value.count) * fixed;
    } else {
      for (uint64_t i = 0; i < value.count; ++i) this->value(value.element, subject, depth + 1);
    }
    value.bytes = static_cast<size_t>(data_ + at_ - value.data);
  }

  const uint8_t* data_;
  size_t size_;
  size_t at_;
};

/// The order of the names; a name that is there twice is a fault.
template <class Item, class Name>
std::vector<uint32_t> sorted(const std::vector<Item>& items, Name name, const char* what) {
  std::vector<uint32_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return name(items[a]) < name(items[b]); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (name(items[order[i - 1]]) == name(items[order[i]])) {
      throw GgufError(std::string(what) + " " + quoted(name(items[order[i]])) +
                      " is there twice, as number " +
                      to_string(std::min(order[i - 1], order[i]) + 1) + " and number " +
                      to_string(std::max(order[i - 1], order[i]) + 1));
    }
  }
  return order;
}

template <class Item, class Name>
const Item* search(const std::vector<Item>& items, const std::vector<uint32_t>& order, Name name,
                   std::string_view wanted) {
  const auto found =
      std::lower_bound(order.begin(), order.end(), wanted,
                       [&](uint32_t i, std::string_view text) { return name(items[i]) < text; });
  return found != order.end() && name(items[*found]) == wanted ? &items[*found] : nullptr;
}

std::string_view key_of(const Pair& pair) { return pair.key; }
std::string_view name_of(const Tensor& tensor) { return tensor.name; }

uint32_t read_version(Cursor& cursor) {
  const size_t start = cursor.at();
  const uint32_t version = cursor.number<uint32_t>({"the version"});
  if (version == 2 || version == 3) return version;
  if (version != 0 && (version & 0xffff) == 0) {
    throw GgufUnsupported("the file is big-endian, and little-endian files alone are read");
  }
  if (version == 1) {
    throw GgufUnsupported("the file is of GGUF version 1, and versions 2 and 3 are read");
  }
  if (version > 3 && version < 256) {
    throw GgufUnsupported("the file is of GGUF version " + to_string(version) +
                          ", which is newer than versions 2 and 3 that are read");
  }
  cursor.fail("the version is " + to_string(version), start);
}

/// A number of entries that the rest of the file has room for.
uint64_t read_count(Cursor& cursor, const char* what, size_t least) {
  const size_t start = cursor.at();
  const uint64_t count = cursor.number<uint64_t>({what});
  // Places are kept in 32 bits; a file with more entries would be a header of 60 GB.
  if (count > std::min<uint64_t>(cursor.left() / least, UINT32_MAX)) {
    cursor.fail(std::string(what) + " is " + to_string(count) + ", and the file ends " +
                    to_string(cursor.left()) + " bytes later",
                start);
  }
  return count;
}

Pair read_pair(Cursor& cursor) {
  Pair pair;
  pair.key = cursor.name({"the key of a metadata entry"}, kMaxKey);
  const Subject subject{"the value of", pair.key};
  pair.value = cursor.value(cursor.value_type(subject), subject, 0);
  return pair;
}

uint64_t alignment_of(const Gguf& gguf) {
  const Value* value = gguf.find("general.alignment");
  if (value == nullptr) return kDefaultAlignment;
  if (value->type != ValueType::UInt32) {
    throw GgufError("the value of 'general.alignment' is not an unsigned number of 32 bits");
  }
  const uint32_t alignment = value->number<uint32_t>();
  if (alignment < kMinAlignment || (alignment & (alignment - 1)) != 0) {
    throw GgufError("the value of 'general.alignment' is " + to_string(alignment) +
                    " and not a power of two from " + to_string(kMinAlignment));
  }
  return alignment;
}

/// One entry as it stands, its offset still from the start of the data. Fills in the bytes.
Tensor read_tensor(Cursor& cursor, uint64_t alignment) {
  const size_t start = cursor.at();
  Tensor tensor;
  tensor.name = cursor.name({"the name of a tensor"}, kMaxName);
  if (!is_plain(tensor.name)) {
    cursor.fail("the name of a tensor, " + quoted(tensor.name) + ", is not printable ASCII", start);
  }
  const Subject subject{"tensor", tensor.name};
  const auto fail = [&](const std::string& fault) { cursor.fail(phrase(subject) + fault, start); };

  tensor.dimensions = cursor.number<uint32_t>(subject);
  if (tensor.dimensions > MAX_DIMENSIONS) {
    fail(" has " + to_string(tensor.dimensions) + " dimensions instead of at most " +
         to_string(MAX_DIMENSIONS));
  }
  uint64_t elements = 1;
  tensor.shape.fill(1);
  for (uint32_t i = 0; i < tensor.dimensions; ++i) {
    tensor.shape[i] = cursor.number<uint64_t>(subject);
    if (tensor.shape[i] == 0) fail(" has a dimension of 0");
    if (tensor.shape[i] > kMaxElements / elements) fail(" has dimensions too large for any file");
    elements *= tensor.shape[i];
  }
  tensor.type = cursor.number<uint32_t>(subject);
  tensor.offset = cursor.number<uint64_t>(subject);
  if (tensor.offset % alignment != 0) {
    fail(" is at offset " + to_string(tensor.offset) + ", which is not a multiple of " +
         to_string(alignment));
  }
  if (const TypeInfo* type = find_type(tensor.type)) {
    if (tensor.shape[0] % type->block != 0) {
      fail(" has " + to_string(tensor.shape[0]) + " columns, which " + type->name +
           " cannot have: blocks are of " + to_string(type->block));
    }
    if (elements / type->block > UINT64_MAX / type->bytes) fail(" is too large for any file");
    tensor.bytes = elements / type->block * type->bytes;
  }
  return tensor;
}

/// Offsets from the start of the file, once they are known to lie within it.
void place(std::vector<Tensor>& tensors, uint64_t data_offset, uint64_t size) {
  for (Tensor& tensor : tensors) {
    const uint64_t room = size > data_offset ? size - data_offset : 0;
    // A tensor of unknown type has at least a byte.
    const uint64_t bytes = std::max<uint64_t>(tensor.bytes, 1);
    if (tensor.offset > room || bytes > room - tensor.offset) {
      throw GgufError("tensor " + quoted(tensor.name) + " takes " + to_string(bytes) +
                      " bytes from offset " + to_string(tensor.offset) +
                      " of the data, which are only " + to_string(room) + " bytes from byte " +
                      to_string(data_offset));
    }
    tensor.offset += data_offset;
  }
}

void check_overlaps(const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> order;
  order.reserve(tensors.size());
  for (const Tensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Tensor& before = *order[i - 1];
    if (order[i]->offset < before.offset + std::max<uint64_t>(before.bytes, 1)) {
      throw GgufError("tensors " + quoted(before.name) + " and " + quoted(order[i]->name) +
                      " overlap, at byte " + to_string(order[i]->offset));
    }
  }
}

}  // namespace

const char* tensor_type_name(uint32_t code) {
  static constexpr const char* kNames[] = {
      "F32",     "F16",   "Q4_0",   "Q4_1",  "Q4_2",  "Q4_3",   "Q5_0",  "Q5_1",    "Q8_0",
      "Q8_1",    "Q2_K",  "Q3_K",   "Q4_K",  "Q5_K",  "Q6_K",   "Q8_K",  "IQ2_XXS", "IQ2_XS",
      "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",     "I32",
      "I64",     "F64",   "IQ1_M",  "BF16",  nullptr, nullptr,  nullptr, "TQ1_0",   "TQ2_0",
      nullptr,   nullptr, nullptr,  "MXFP4", "NVFP4", "Q1_0"};
  return code < std::size(kNames) ? kNames[code] : nullptr;
}

Gguf::Gguf(const uint8_t* data, size_t size) {
  if (size < 4 || std::memcmp(data, "GGUF", 4) != 0) {
    throw GgufError(size < 4 ? "the file is only " + to_string(size) + " bytes long"
                             : "the file does not begin like a GGUF file");
  }
  Cursor cursor(data, size, 4);
  version_ = read_version(cursor);
  const uint64_t tensors = read_count(cursor, "the number of tensors", kMinTensor);
  const uint64_t pairs = read_count(cursor, "the number of metadata entries", kMinPair);
  for (uint64_t i = 0; i < pairs; ++i) pairs_.push_back(read_pair(cursor));
  pair_order_ = sorted(pairs_, key_of, "the metadata entry");
  const uint64_t alignment = alignment_of(*this);
  for (uint64_t i = 0; i < tensors; ++i) tensors_.push_back(read_tensor(cursor, alignment));
  tensor_order_ = sorted(tensors_, name_of, "tensor");
  // Both are far from the limits of 64 bits: one is a place in the file, the other has 32 bits.
  data_offset_ = (cursor.at() + alignment - 1) / alignment * alignment;
  place(tensors_, data_offset_, size);
  check_overlaps(tensors_);
}

const Value* Gguf::find(std::string_view key) const {
  const Pair* pair = search(pairs_, pair_order_, key_of, key);
  return pair != nullptr ? &pair->value : nullptr;
}

const Tensor* Gguf::find_tensor(std::string_view name) const {
  return search(tensors_, tensor_order_, name_of, name);
}

const Tensor& Gguf::tensor(std::string_view name) const {
  const Tensor* tensor = find_tensor(name);
  if (tensor == nullptr) throw GgufError("there is no tensor " + quoted(name));
  if (find_type(tensor->type) == nullptr) {
    const char* type = tensor_type_name(tensor->type);
    throw GgufUnsupported("tensor " + quoted(name) + " is stored as " +
                          (type != nullptr ? type : "type " + to_string(tensor->type)) +
                          ", which is not read");
  }
  return *tensor;
}

Elements::Elements(const Value& array) : array_(array), left_(array.count) {}

bool Elements::next(Value& value) {
  if (left_ == 0) return false;
  Cursor cursor(array_.data, array_.bytes, at_);
  value = cursor.value(array_.element, {"an element of an array"}, 1);
  at_ = cursor.at();
  --left_;
  return true;
}

GgufFile::GgufFile(const std::string& path) : file_(path), contents_(file_.data(), file_.size()) {}

}  // namespace draftproof
