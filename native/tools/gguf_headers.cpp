#include "gguf_headers.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gguf.h"

namespace draftproof {
namespace {

constexpr uint32_t kTensorTypes[] = {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30, 10, 20, 28, 39, 77};

class Writer {
 public:
  explicit Writer(Random& random) : random_(random) {}

  template <class T>
  void put(T value) {
    const size_t at = header.bytes.size();
    header.bytes.resize(at + sizeof(T));
    std::memcpy(header.bytes.data() + at, &value, sizeof(T));
  }

  /// A number that the parser relies on.
  template <class T>
  void field(T value) {
    header.fields.push_back({header.bytes.size(), sizeof(T)});
    put(value);
  }

  void text(const std::string& text) {
    field<uint64_t>(text.size());
    header.bytes.insert(header.bytes.end(), text.begin(), text.end());
  }

  std::string random_text() {
    std::string text(below(random_, 12), ' ');
    for (char& c : text) c = static_cast<char>(below(random_, 256));
    return text;
  }

  void value(ValueType type, int depth) {
    switch (type) {
      case ValueType::UInt8:
      case ValueType::Int8: return put(static_cast<uint8_t>(random_()));
      case ValueType::Bool: return put(static_cast<uint8_t>(below(random_, 2)));
      case ValueType::UInt16:
      case ValueType::Int16: return put(static_cast<uint16_t>(random_()));
      case ValueType::UInt32:
      case ValueType::Int32:
      case ValueType::Float32: return put(static_cast<uint32_t>(random_()));
      case ValueType::UInt64:
      case ValueType::Int64:
      case ValueType::Float64: return put(static_cast<uint64_t>(random_()));
      case ValueType::String: return text(random_text());
      case ValueType::Array: break;
    }
    const ValueType element = random_type(depth + 1);
    const uint64_t count = below(random_, 6);
    field(static_cast<uint32_t>(element));
    field(count);
    for (uint64_t i = 0; i < count; ++i) value(element, depth + 1);
  }

  /// Arrays within arrays go four deep.
  ValueType random_type(int depth) {
    const auto type = static_cast<ValueType>(below(random_, 13));
    return type == ValueType::Array && depth >= 4 ? ValueType::String : type;
  }

  Header header;

 private:
  Random& random_;
};

uint64_t aligned(uint64_t offset, uint64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

/// Writes an entry for a tensor at `offset`; returns where it ends.
uint64_t put_tensor(Writer& writer, Random& random, uint64_t number, uint64_t offset) {
  const uint32_t code = kTensorTypes[below(random, std::size(kTensorTypes))];
  const TypeInfo* type = find_type(code);
  const uint64_t block = type != nullptr ? type->block : 1;
  const uint32_t dimensions = static_cast<uint32_t>(below(random, block == 1 ? 5 : 4));
  writer.text("tensor." + std::to_string(number));
  writer.field<uint32_t>(block == 1 ? dimensions : dimensions + 1);
  uint64_t elements = 1;
  for (uint32_t i = 0; i < (block == 1 ? dimensions : dimensions + 1); ++i) {
    const uint64_t size = (i == 0 ? block : 1) * (1 + below(random, 3));
    writer.field(size);
    elements *= size;
  }
  writer.field(code);
  writer.field(offset);
  return offset + (type != nullptr ? elements / block * type->bytes : 1);
}

uint64_t read(const uint8_t* at, size_t width) {
  uint64_t value = 0;
  std::memcpy(&value, at, width);
  return value;
}

/// A number at which programs go wrong: near a power of two, the file's size or the number there.
uint64_t number_of_note(Random& random, uint64_t there, uint64_t size, uint64_t at) {
  const uint64_t near = below(random, 5) - 2;  // -2 to 2, by wrapping
  switch (below(random, 7)) {
    case 0: return below(random, 16);
    case 1: return (uint64_t{1} << below(random, 64)) + near;
    case 2: return size - at + near;
    case 3: return (size - at) / (1 + below(random, 32)) + near;
    case 4: return there * (1 + below(random, 8)) + near;
    case 5: return ~uint64_t{0} - below(random, 64);
    default: return random();
  }
}

/// Where a fault strikes and how far it reaches; `bytes` is not empty.
struct Piece {
  size_t at;
  size_t length;
};

Piece random_piece(const std::vector<uint8_t>& bytes, Random& random) {
  const size_t at = below(random, bytes.size());
  return {at, 1 + below(random, std::min<size_t>(bytes.size() - at, 48))};
}

void fault(std::vector<uint8_t>& bytes, const Header& header, const Header& other, Random& random) {
  const Piece piece = random_piece(bytes, random);
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(piece.at);
  const auto last = first + static_cast<std::ptrdiff_t>(piece.length);
  switch (below(random, 10)) {
    case 0: *first ^= static_cast<uint8_t>(1u << below(random, 8)); break;
    case 1: *first = static_cast<uint8_t>(random()); break;
    case 2: bytes.erase(first, bytes.end()); break;
    case 3: bytes.erase(first, last); break;
    case 4: {
      const std::vector<uint8_t> again(first, last);
      bytes.insert(last, again.begin(), again.end());
      break;
    }
    case 5: {
      const Piece from = random_piece(other.bytes, random);
      const size_t length = std::min(from.length, bytes.size() - piece.at);
      std::copy_n(other.bytes.begin() + static_cast<std::ptrdiff_t>(from.at), length, first);
      break;
    }
    default: {
      // Earlier faults may have moved the fields: what stands there then is as good.
      const Field field = header.fields[below(random, header.fields.size())];
      if (field.at + field.width > bytes.size()) break;
      uint8_t* at = bytes.data() + field.at;
      const uint64_t number =
          number_of_note(random, read(at, field.width), bytes.size(), field.at + field.width);
      std::memcpy(at, &number, field.width);
    }
  }
}

}  // namespace

Header random_header(Random& random) {
  static constexpr uint32_t kAlignments[] = {8, 16, 32, 64, 256};
  Writer writer(random);
  const uint64_t tensors = below(random, 7);
  const uint64_t pairs = below(random, 9);
  const bool aligns = below(random, 2) == 0;
  const uint32_t alignment = aligns ? kAlignments[below(random, std::size(kAlignments))] : 32;
  for (const char c : {'G', 'G', 'U', 'F'}) writer.put(c);
  writer.field<uint32_t>(2 + static_cast<uint32_t>(below(random, 2)));
  writer.field(tensors);
  writer.field(pairs + (aligns ? 1 : 0));
  for (uint64_t i = 0; i < pairs; ++i) {
    writer.text("key." + std::to_string(i));
    const ValueType type = writer.random_type(0);
    writer.field(static_cast<uint32_t>(type));
    writer.value(type, 0);
  }
  if (aligns) {
    writer.text("general.alignment");
    writer.field(static_cast<uint32_t>(ValueType::UInt32));
    writer.field(alignment);
  }
  uint64_t end = 0;
  for (uint64_t i = 0; i < tensors; ++i) {
    end = put_tensor(writer, random, i, aligned(end, alignment));
  }
  writer.header.bytes.resize(aligned(writer.header.bytes.size(), alignment) + end);
  return writer.header;
}

std::vector<uint8_t> damaged(const Header& header, const Header& other, Random& random) {
  std::vector<uint8_t> bytes = header.bytes;
  for (uint64_t faults = 1 + below(random, 4); faults > 0 && !bytes.empty(); --faults) {
    fault(bytes, header, other, random);
  }
  return bytes;
}

}  // namespace draftproof
