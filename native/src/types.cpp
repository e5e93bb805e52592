#include "types.h"

namespace draftproof {
namespace {

constexpr TypeInfo kTypes[] = {
    {Type::F32, "F32", 1, 4},       {Type::F16, "F16", 1, 2},       {Type::BF16, "BF16", 1, 2},
    {Type::Q4_0, "Q4_0", 32, 18},   {Type::Q4_1, "Q4_1", 32, 20},   {Type::Q5_0, "Q5_0", 32, 22},
    {Type::Q5_1, "Q5_1", 32, 24},   {Type::Q8_0, "Q8_0", 32, 34},   {Type::Q4_K, "Q4_K", 256, 144},
    {Type::Q5_K, "Q5_K", 256, 176}, {Type::Q6_K, "Q6_K", 256, 210},
};

}  // namespace

const TypeInfo* find_type(uint32_t code) {
  for (const TypeInfo& type : kTypes) {
    if (static_cast<uint32_t>(type.type) == code) return &type;
  }
  return nullptr;
}

}  // namespace draftproof
