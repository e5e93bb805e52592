// The GGUF parser among damaged files: it may accept or refuse, and nothing else.
//
// With libFuzzer (DRAFTPROOF_LIBFUZZER) this is its target. Otherwise a program of its own:
//   fuzz_gguf [--runs N] [--seed S]   read N damaged files, and the whole files they were made from
//   fuzz_gguf --seeds FOLDER          write 100 whole files, a corpus for libFuzzer to begin with
//   fuzz_gguf --control               read a byte beyond a file, which a sanitizer must catch
// It is built for AddressSanitizer and UndefinedBehaviorSanitizer, without which it proves little.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "gguf.h"
#include "gguf_headers.h"

/// A count from a file must never become an allocation of its size.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=64"; }

namespace draftproof {
namespace {

volatile uint8_t sink;  // so that reads are not optimised away

void touch(const uint8_t* bytes, uint64_t count) {
  uint8_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum = static_cast<uint8_t>(sum + bytes[i]);
  sink = sum;
}

void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "the parser broke its promise: %s\n", promise);
  std::abort();
}

void read_value(const Value& value) {
  touch(value.data, value.bytes);
  if (value.type != ValueType::Array) return;
  if (value.element != ValueType::String && value.element != ValueType::Array) return;
  uint64_t count = 0;
  Elements elements(value);
  for (Value element; elements.next(element); ++count) read_value(element);
  require(count == value.count, "an array has as many elements as it counts");
}

void read_tensor(const Gguf& gguf, const Tensor& tensor, const uint8_t* data, size_t size) {
  const TypeInfo* type = find_type(tensor.type);
  require(gguf.find_tensor(tensor.name) == &tensor, "a tensor is found by its name");
  require(tensor.offset >= gguf.data_offset() && tensor.offset < size,
          "a tensor begins in the file");
  require(tensor.bytes <= size - tensor.offset, "a tensor lies within the file");
  if (type == nullptr) return;
  require(tensor.cols() % type->block == 0, "a row is whole blocks");
  require(tensor.bytes == tensor.cols() / type->block * type->bytes * tensor.rows(),
          "a tensor's bytes are those of its shape");
  touch(data + tensor.offset, tensor.bytes);
  for (const Tensor& other : gguf.tensors()) {
    require(&other == &tensor || other.offset + other.bytes <= tensor.offset ||
                tensor.offset + tensor.bytes <= other.offset,
            "tensors do not overlap");
  }
}

/// Parses the file and reads back all that was found. Returns the refusal, "" if there was none.
std::string read_all(const uint8_t* data, size_t size) {
  try {
    const Gguf gguf(data, size);
    for (const Pair& pair : gguf.pairs()) {
      require(gguf.find(pair.key) == &pair.value, "a value is found by its key");
      read_value(pair.value);
    }
    for (const Tensor& tensor : gguf.tensors()) read_tensor(gguf, tensor, data, size);
    for (const Tensor& tensor : gguf.tensors()) {
      try {
        require(&gguf.tensor(tensor.name) == &tensor, "a tensor is given by its name");
      } catch (const GgufUnsupported&) {
        require(find_type(tensor.type) == nullptr, "known types are not refused");
      }
    }
  } catch (const GgufError& error) {
    require(error.what()[0] != '\0', "a refusal says something");
    return error.what();
  }
  return "";
}

}  // namespace
}  // namespace draftproof

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  draftproof::read_all(data, size);
  return 0;
}

#if !defined(DRAFTPROOF_LIBFUZZER)

namespace draftproof {
namespace {

/// In memory of exactly that size, so that a byte beyond it is noticed.
std::string read_exact(const std::vector<uint8_t>& bytes) {
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
  return read_all(copy.get(), bytes.size());
}

/// The sentence without its names and numbers.
std::string kind_of(const std::string& refusal) {
  std::string kind;
  bool quoted = false;
  for (const char c : refusal) {
    if (c == '\'') quoted = !quoted;
    if (c == '\'' || quoted) continue;
    if (c < '0' || c > '9') {
      kind += c;
    } else if (kind.empty() || kind.back() != '#') {
      kind += '#';
    }
  }
  return kind;
}

int run(uint64_t runs, uint64_t seed) {
  const auto start = std::chrono::steady_clock::now();
  Random random(seed);
  std::map<std::string, uint64_t> refusals;
  uint64_t accepted = 0;
  Header other = random_header(random);
  for (uint64_t i = 0; i < runs; ++i) {
    Header header = random_header(random);
    const std::string whole = read_exact(header.bytes);
    if (!whole.empty()) {
      std::fprintf(stderr, "a whole file was refused: %s\n", whole.c_str());
      return 1;
    }
    const std::string refusal = read_exact(damaged(header, other, random));
    if (refusal.empty()) {
      ++accepted;
    } else {
      ++refusals[kind_of(refusal)];
    }
    other = std::move(header);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  for (const auto& [kind, count] : refusals) {
    std::printf("%8llu  %s\n", static_cast<unsigned long long>(count), kind.c_str());
  }
  std::printf("%llu damaged files (seed %llu): %llu accepted, %zu kinds of refusal, %.1f s\n",
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(accepted), refusals.size(), took.count());
  return 0;
}

int write_seeds(const std::string& folder) {
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    const Header header = random_header(random);
    std::ofstream file(folder + "/" + std::to_string(i) + ".gguf", std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.bytes.data()),
               static_cast<std::streamsize>(header.bytes.size()));
    if (!file) {
      std::fprintf(stderr, "cannot write to %s\n", folder.c_str());
      return 1;
    }
  }
  return 0;
}

int control() {
  Random random(1);
  const std::vector<uint8_t> bytes = random_header(random).bytes;
  const std::unique_ptr<uint8_t[]> copy(new uint8_t[bytes.size()]);
  touch(copy.get(), bytes.size() + 1);
  return 0;
}

}  // namespace
}  // namespace draftproof

int main(int count, char** arguments) {
  uint64_t runs = 100000;
  uint64_t seed = 1;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--control") return draftproof::control();
    const char* value = i + 1 < count ? arguments[++i] : nullptr;
    if (value != nullptr && name == "--seeds") return draftproof::write_seeds(value);
    if (value != nullptr && name == "--runs") {
      runs = std::strtoull(value, nullptr, 10);
    } else if (value != nullptr && name == "--seed") {
      seed = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: %s [--runs N] [--seed S] | --seeds FOLDER | --control\n",
                   arguments[0]);
      return 2;
    }
  }
  return draftproof::run(runs, seed);
}

#endif
