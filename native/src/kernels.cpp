// Which table of kernels to use.
#include "kernels.h"

#include <cstring>

namespace draftproof {
namespace {

// Fastest first. An emulated table is found by name, never chosen.
#if defined(DRAFTPROOF_EMULATE)
constexpr const Kernels* (*kTables[])() = {avx2_kernels, portable_kernels, avx512_kernels};
#else
constexpr const Kernels* (*kTables[])() = {avx512_kernels, avx2_kernels, portable_kernels};
#endif

}  // namespace

const Kernels& best_kernels() {
  for (const auto table : kTables) {
    if (const Kernels* kernels = table()) return *kernels;
  }
  return *portable_kernels();
}

const Kernels* find_kernels(const char* name) {
  for (const auto table : kTables) {
    const Kernels* kernels = table();
    if (kernels != nullptr && std::strcmp(kernels->name, name) == 0) return kernels;
  }
  return nullptr;
}

}  // namespace draftproof
