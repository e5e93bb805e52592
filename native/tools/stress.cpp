// Passes from several threads at once, for ThreadSanitizer and its like.
//
// Two models share a pool, as target and draft do, and so does the first layer of each; four threads
// open sequences, score prompts, drafts and trees, all logits or a part of them, rewind, and compare
// every logit with what one thread alone computed. Meanwhile another thread changes what computes.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "model.h"

using namespace draftproof;

namespace {

constexpr int64_t kVocab = 90, kHidden = 64, kHeads = 4, kKvHeads = 2, kDim = 16, kWide = 96;
constexpr int64_t kLayers = 2;

Config small_config() {
  Config config;
  config.hidden = kHidden;
  config.heads = kHeads;
  config.kv_heads = kKvHeads;
  config.head_dim = kDim;
  config.feed_forward = kWide;
  config.vocab = kVocab;
  config.norm_epsilon = 1e-5f;
  config.attention_scale = 0.25f;
  config.ropes.push_back({std::vector<float>(kDim / 2, 0.1f), 1.0f});
  config.layers = {{20, 0}, {0, 0}};
  return config;
}

void set(Model& model, const std::string& name, Type type, int64_t rows, int64_t cols,
         std::mt19937& random) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  std::normal_distribution<float> normal(rows == 1 ? 1.0f : 0.0f, 0.1f);
  for (float& value : values) value = normal(random);
  std::vector<uint8_t> bytes;
  if (type == Type::F32) {
    bytes.resize(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {  // Q8_0: any bytes will do, with a scale of 2^-10
    bytes.resize(values.size() / 32 * 34);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (size_t at = 0; at < bytes.size(); at += 34) bytes[at] = 0, bytes[at + 1] = 0x14;
  }
  model.set(name, type, rows, cols, bytes.data());
}

std::unique_ptr<Model> make_model(const std::shared_ptr<Pool>& pool, const Kernels& kernels,
                                  unsigned seed) {
  std::mt19937 random(seed);
  auto model = std::make_unique<Model>(small_config(), pool, kernels, int64_t{1} << 26);
  const Type type = seed % 2 == 0 ? Type::Q8_0 : Type::F32;
  set(*model, "token_embd.weight", type, kVocab, kHidden, random);
  set(*model, "output_norm.weight", Type::F32, 1, kHidden, random);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    set(*model, prefix + "attn_norm.weight", Type::F32, 1, kHidden, random);
    set(*model, prefix + "ffn_norm.weight", Type::F32, 1, kHidden, random);
    set(*model, prefix + "attn_q.weight", type, kHeads * kDim, kHidden, random);
    set(*model, prefix + "attn_k.weight", type, kKvHeads * kDim, kHidden, random);
    set(*model, prefix + "attn_v.weight", type, kKvHeads * kDim, kHidden, random);
    set(*model, prefix + "attn_output.weight", type, kHidden, kHeads * kDim, random);
    set(*model, prefix + "ffn_gate.weight", type, kWide, kHidden, random);
    set(*model, prefix + "ffn_up.weight", type, kWide, kHidden, random);
    set(*model, prefix + "ffn_down.weight", type, kHidden, kWide, random);
  }
  model->finish();
  return model;
}

/// Score a chain or, with `tree`, rows that all hang from the sequence's end but the last, which follows
/// the open tree's first.
std::vector<float> score(Model& model, Sequence& sequence, const std::vector<int32_t>& tokens,
                         bool tree = false, const Columns* columns = nullptr) {
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool last = i + 1 == tokens.size();
    const int32_t parent = tree ? (last ? 0 : -1) : static_cast<int32_t>(i) - 1;
    rows.push_back({tokens[i], &sequence, parent, true, tree});
  }
  const int64_t width = columns == nullptr ? kVocab : columns->count();
  const size_t count = tokens.size() * static_cast<size_t>(width);
  Buffer buffer = model.buffers()->take(count * sizeof(float));
  model.score(rows, buffer.as<float>(), columns);
  std::vector<float> logits(buffer.as<float>(), buffer.as<float>() + count);
  model.buffers()->give(std::move(buffer));
  return logits;
}

/// A session's life; the logits of everything that was scored.
std::vector<float> live(Model& model, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> all;
  const auto keep = [&](const std::vector<float>& logits) {
    all.insert(all.end(), logits.begin(), logits.end());
  };
  const auto tokens = [&](size_t count) {
    std::vector<int32_t> drawn(count);
    for (int32_t& token : drawn) token = static_cast<int32_t>(random() % kVocab);
    return drawn;
  };
  const std::unique_ptr<Sequence> sequence = model.open();
  const std::unique_ptr<Model> shallow = model.shallow(1);
  const std::unique_ptr<Sequence> draft = shallow->open();
  const Columns columns({0, 2, 3, 5}, kVocab);
  keep(score(model, *sequence, tokens(50 + seed % 30)));
  for (int round = 0; round < 6; ++round) {
    keep(score(*shallow, *draft, tokens(3), false, &columns));
    keep(score(model, *sequence, tokens(1 + random() % 8)));
    keep(score(model, *sequence, tokens(4), true));
    keep(score(model, *sequence, tokens(2), true, &columns));
    sequence->keep({0, round % 2 == 0 ? 3 : 5});
    sequence->rewind(sequence->length() - static_cast<int64_t>(random() % 5));
  }
  return all;
}

bool stress(const Kernels& kernels, int rounds) {
  const auto pool = std::make_shared<Pool>(2);
  const std::unique_ptr<Model> models[] = {make_model(pool, kernels, 0),
                                           make_model(pool, kernels, 1)};
  std::vector<std::vector<float>> expected;
  for (unsigned seed = 0; seed < 4; ++seed) expected.push_back(live(*models[seed % 2], seed));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      for (int round = 0; round < rounds; ++round) {
        const std::vector<float> got = live(*models[seed % 2], seed);
        const size_t bytes = got.size() * sizeof(float);
        if (got.size() != expected[seed].size() ||
            std::memcmp(got.data(), expected[seed].data(), bytes) != 0) {
          ++wrong;
        }
      }
    });
  }
  std::atomic<bool> done{false};
  std::thread changing([&] {
    for (int i = 0; !done.load(); ++i) {
      const int count = 1 + i % 3;
      const auto other = std::make_shared<Pool>(count, std::vector<int>(i % 2 * count, 0));
      for (const std::unique_ptr<Model>& model : models) model->use_pool(other);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  changing.join();
  std::printf("%s: %d lives of sequences in 4 threads, %d with other logits\n", kernels.name,
              4 * rounds, wrong.load());
  return wrong.load() == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  bool right = stress(*portable_kernels(), rounds);
  if (&best_kernels() != portable_kernels()) right = stress(best_kernels(), rounds) && right;
  return right ? 0 : 1;
}
