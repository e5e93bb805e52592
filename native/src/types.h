// The number formats of GGUF tensors that are read.
#pragma once

#include <cstdint>

namespace draftproof {

/// Codes as in the file.
enum class Type : uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

struct TypeInfo {
  Type type;
  const char* name;
  uint32_t block;  // weights in a block
  uint32_t bytes;  // bytes of a block
};

/// What is known of a type's code; null where it is not read.
const TypeInfo* find_type(uint32_t code);
inline const TypeInfo& info(Type type) { return *find_type(static_cast<uint32_t>(type)); }

}  // namespace draftproof
