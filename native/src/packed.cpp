#include "packed.h"

#include <cstring>

#include "half.h"

namespace draftproof {
namespace {

// Quantised values travel as words of four bytes, one column a byte; a group of a row is 8 words.
// Words keep their bytes' order in memory, so everything but the scattered bits of Q5_0 and Q5_1
// would hold on either kind of machine. Files and scales are little-endian.
constexpr int kWords = 8;

uint32_t load_word(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

void store_word(uint8_t* bytes, uint32_t word) { std::memcpy(bytes, &word, sizeof word); }

float load_half(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof half);
  return half_to_float(half);
}

// ---- Quantised values in the file: words of group `g` of a block.

// Columns 0 to 15 in the low halves of 16 bytes, 16 to 31 in the high ones.
void low_bits_of_small_block(const uint8_t* quants, uint32_t* words) {
  for (int j = 0; j < 4; j++) {
    const uint32_t word = load_word(quants + 4 * j);
    words[j] = word & 0x0f0f0f0fu;
    words[j + 4] = (word >> 4) & 0x0f0f0f0fu;
  }
}

// Bit c of 32 is the fifth bit of column c.
void fifth_bit_of_small_block(const uint8_t* bits, uint32_t* words) {
  const uint32_t all = load_word(bits);
  for (int j = 0; j < kWords; j++) {
    const uint32_t four = (all >> (4 * j)) & 0x0fu;
    words[j] |= ((four * 0x00204081u) & 0x01010101u) << 4;  // a bit to each byte
  }
}

// Pairs of groups share 32 bytes: the first low, the second high.
void low_bits_of_big_block(const uint8_t* quants, int g, uint32_t* words) {
  const int shift = g % 2 * 4;
  for (int j = 0; j < kWords; j++) {
    words[j] = (load_word(quants + g / 2 * 32 + 4 * j) >> shift) & 0x0f0f0f0fu;
  }
}

// Scale and minimum of the eight groups, six bits each, in 12 bytes.
void scale_and_minimum(const uint8_t* packed, int g, uint8_t* scale, uint8_t* minimum) {
  if (g < 4) {
    *scale = packed[g] & 0x3f;
    *minimum = packed[g + 4] & 0x3f;
  } else {
    *scale = static_cast<uint8_t>((packed[g + 4] & 0x0f) | ((packed[g - 4] >> 6) << 4));
    *minimum = static_cast<uint8_t>((packed[g + 4] >> 4) | ((packed[g] >> 6) << 4));
  }
}

// What makes one format: weights in a block, how the file stores them, how many bits the values have
// here, and what kind of scales. `scale` is the place of the fp16 scale(s) in the file's block.
enum class Scales { One, Two, TwoSixBits, OneHalves };

template <Type type>
struct Format;

template <>
struct Format<Type::Q4_0> {
  static constexpr int block = 32, bits = 4, zero = 8, scale = 0;
  static constexpr Scales scales = Scales::One;
  static void quants(const uint8_t* block, int, uint32_t* words) {
    low_bits_of_small_block(block + 2, words);
  }
};

template <>
struct Format<Type::Q4_1> {
  static constexpr int block = 32, bits = 4, zero = 0, scale = 0;
  static constexpr Scales scales = Scales::Two;
  static void quants(const uint8_t* block, int, uint32_t* words) {
    low_bits_of_small_block(block + 4, words);
  }
};

template <>
struct Format<Type::Q5_0> {
  static constexpr int block = 32, bits = 5, zero = 16, scale = 0;
  static constexpr Scales scales = Scales::One;
  static void quants(const uint8_t* block, int, uint32_t* words) {
    low_bits_of_small_block(block + 6, words);
    fifth_bit_of_small_block(block + 2, words);
  }
};

template <>
struct Format<Type::Q5_1> {
  static constexpr int block = 32, bits = 5, zero = 0, scale = 0;
  static constexpr Scales scales = Scales::Two;
  static void quants(const uint8_t* block, int, uint32_t* words) {
    low_bits_of_small_block(block + 8, words);
    fifth_bit_of_small_block(block + 4, words);
  }
};

template <>
struct Format<Type::Q8_0> {
  static constexpr int block = 32, bits = 8, zero = 0, scale = 0;
  static constexpr Scales scales = Scales::One;
  static void quants(const uint8_t* block, int, uint32_t* words) {
    std::memcpy(words, block + 2, GROUP);
  }
};

template <>
struct Format<Type::Q4_K> {
  static constexpr int block = 256, bits = 4, zero = 0, scale = 0;
  static constexpr Scales scales = Scales::TwoSixBits;
  static void quants(const uint8_t* block, int g, uint32_t* words) {
    low_bits_of_big_block(block + 16, g, words);
  }
};

template <>
struct Format<Type::Q5_K> {
  static constexpr int block = 256, bits = 5, zero = 0, scale = 0;
  static constexpr Scales scales = Scales::TwoSixBits;
  static void quants(const uint8_t* block, int g, uint32_t* words) {
    low_bits_of_big_block(block + 48, g, words);
    for (int j = 0; j < kWords; j++) {
      words[j] |= ((load_word(block + 16 + 4 * j) >> g) & 0x01010101u) << 4;
    }
  }
};

template <>
struct Format<Type::Q6_K> {
  static constexpr int block = 256, bits = 6, zero = 32, scale = 208;
  static constexpr Scales scales = Scales::OneHalves;
  // Of each 128 columns: 64 bytes of low bits, groups 0 and 1 low, 2 and 3 high; and 32 bytes of high
  // bits, two for each of the four groups.
  static void quants(const uint8_t* block, int g, uint32_t* words) {
    const uint8_t* low = block + g / 4 * 64 + g % 2 * 32;
    const uint8_t* high = block + 128 + g / 4 * 32;
    const int low_shift = g % 4 / 2 * 4;
    const int high_shift = g % 4 * 2;
    for (int j = 0; j < kWords; j++) {
      words[j] = ((load_word(low + 4 * j) >> low_shift) & 0x0f0f0f0fu) |
                 (((load_word(high + 4 * j) >> high_shift) & 0x03030303u) << 4);
    }
  }
};

// ---- Quantised values in a panel: the words of row `r` of a group, every 64 bytes.

template <int bits>
void store_quants(const uint32_t* words, uint8_t* group, int64_t r) {
  uint8_t* row = group + 4 * r;
  if constexpr (bits == 8) {
    for (int j = 0; j < kWords; j++) store_word(row + 64 * j, words[j]);
    return;
  }
  for (int p = 0; p < 4; p++) {
    const uint32_t below = words[2 * p] & 0x0f0f0f0fu;
    const uint32_t above = words[2 * p + 1] & 0x0f0f0f0fu;
    store_word(row + 64 * p, below | (above << 4));
  }
  if constexpr (bits == 5) {
    uint32_t high = 0;
    for (int j = 0; j < kWords; j++) high |= ((words[j] >> 4) & 0x01010101u) << j;
    store_word(row + 256, high);
  }
  if constexpr (bits == 6) {
    for (int h = 0; h < 2; h++) {
      uint32_t high = 0;
      for (int i = 0; i < 4; i++) high |= ((words[4 * h + i] >> 4) & 0x03030303u) << (2 * i);
      store_word(row + 256 + 64 * h, high);
    }
  }
}

template <int bits>
void load_quants(const uint8_t* group, int64_t r, uint32_t* words) {
  const uint8_t* row = group + 4 * r;
  for (int j = 0; j < kWords; j++) {
    if constexpr (bits == 8) {
      words[j] = load_word(row + 64 * j);
    } else {
      words[j] = (load_word(row + 64 * (j / 2)) >> (j % 2 * 4)) & 0x0f0f0f0fu;
    }
    if constexpr (bits == 5) {
      words[j] |= ((load_word(row + 256) >> j) & 0x01010101u) << 4;
    }
    if constexpr (bits == 6) {
      words[j] |= ((load_word(row + 256 + 64 * (j / 4)) >> (j % 4 * 2)) & 0x03030303u) << 4;
    }
  }
}

// ---- Scales.

constexpr bool is_float(Type type) {
  return type == Type::F32 || type == Type::F16 || type == Type::BF16;
}

constexpr int64_t round_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The fp16 numbers of a block, and the bytes of a group, in a panel.
constexpr int halves(Scales scales) {
  return scales == Scales::Two || scales == Scales::TwoSixBits ? 2 : 1;
}
constexpr bool has_subscales(Scales scales) {
  return scales == Scales::TwoSixBits || scales == Scales::OneHalves;
}

// scale[h] (q - zero) + offset, for the half h of a group; the offset only where the format has one.
struct Affine {
  float scale[2];
  float offset;
};

template <Type type>
Affine affine(float d, float m, const uint8_t* subscales) {
  constexpr Scales scales = Format<type>::scales;
  if constexpr (scales == Scales::TwoSixBits) {
    const float scale = d * static_cast<float>(subscales[0]);
    return {{scale, scale}, -(m * static_cast<float>(subscales[1]))};
  }
  if constexpr (scales == Scales::OneHalves) {
    return {{d * static_cast<float>(static_cast<int8_t>(subscales[0])),
             d * static_cast<float>(static_cast<int8_t>(subscales[1]))},
            0.0f};
  }
  return {{d, d}, m};
}

// The two bytes of group `g` of a block.
template <Type type>
void source_subscales(const uint8_t* block, int g, uint8_t* out) {
  if constexpr (Format<type>::scales == Scales::TwoSixBits) {
    scale_and_minimum(block + 4, g, &out[0], &out[1]);
  }
  if constexpr (Format<type>::scales == Scales::OneHalves) {
    std::memcpy(out, block + 192 + 2 * g, 2);
  }
}

template <Type type>
void dequantize_group(const uint32_t* words, const Affine& affine, float* out) {
  using F = Format<type>;
  uint8_t quants[GROUP];
  std::memcpy(quants, words, GROUP);
  for (int c = 0; c < GROUP; c++) {
    const int q = F::bits == 8 ? static_cast<int8_t>(quants[c]) : quants[c] - F::zero;
    const float value = affine.scale[c / 16] * static_cast<float>(q);
    out[c] = halves(F::scales) == 2 ? value + affine.offset : value;
  }
}

// ---- Whole matrices.

template <Type type>
void fill_quantised(Packed& packed, const uint8_t* source, int64_t begin, int64_t end) {
  using F = Format<type>;
  const TypeInfo& format = info(type);
  constexpr int span = static_cast<int>(F::block / GROUP);
  const int64_t blocks = packed.cols / format.block;
  const int64_t stride = row_bytes(type, packed.cols);
  const Layout& layout = packed.layout;
  for (int64_t p = begin; p < end; p++) {
    uint8_t* panel = packed.buffer.data() + p * layout.panel_bytes;
    const uint8_t* first = source + p * PANEL * stride;
    const int64_t rows = packed.rows - p * PANEL < PANEL ? packed.rows - p * PANEL : PANEL;
    for (int64_t b = 0; b < blocks; b++) {
      for (int64_t r = 0; r < rows; r++) {
        const uint8_t* block = first + r * stride + b * format.bytes;
        uint8_t* scales = panel + layout.scales + b * halves(F::scales) * 2 * PANEL + 2 * r;
        for (int i = 0; i < halves(F::scales); i++) {
          std::memcpy(scales + 2 * PANEL * i, block + F::scale + 2 * i, 2);
        }
        for (int g = 0; g < span; g++) {
          const int64_t group = b * span + g;
          uint32_t words[kWords];
          F::quants(block, g, words);
          store_quants<F::bits>(words, panel + group * layout.group_bytes, r);
          if constexpr (has_subscales(F::scales)) {
            uint8_t pair[2];
            source_subscales<type>(block, g, pair);
            uint8_t* subscales = panel + layout.subscales + group * 2 * PANEL + r;
            subscales[0] = pair[0];
            subscales[PANEL] = pair[1];
          }
        }
      }
    }
  }
}

template <class Element>
void fill_floats(Packed& packed, const uint8_t* source, int64_t begin, int64_t end) {
  const int64_t cols = packed.cols;
  for (int64_t p = begin; p < end; p++) {
    uint8_t* panel = packed.buffer.data() + p * packed.layout.panel_bytes;
    const int64_t rows = packed.rows - p * PANEL < PANEL ? packed.rows - p * PANEL : PANEL;
    for (int64_t c = 0; c < cols; c++) {
      Element column[PANEL] = {};
      for (int64_t r = 0; r < rows; r++) {
        const int64_t at = (p * PANEL + r) * cols + c;
        std::memcpy(&column[r], source + at * sizeof(Element), sizeof(Element));
      }
      std::memcpy(panel + c * sizeof column, column, sizeof column);
    }
  }
}

template <Type type>
void dequantize_packed(const Packed& packed, int64_t row, float* out) {
  using F = Format<type>;
  constexpr int64_t span = F::block / GROUP;
  const uint8_t* panel = packed.panel(row / PANEL);
  const int64_t r = row % PANEL;
  for (int64_t g = 0; g < packed.cols / GROUP; g++) {
    const uint8_t* scales =
        panel + packed.layout.scales + g / span * halves(F::scales) * 2 * PANEL + 2 * r;
    const uint8_t* subscales = panel + packed.layout.subscales + g * 2 * PANEL + r;
    uint8_t pair[2] = {};
    if (has_subscales(F::scales)) {
      pair[0] = subscales[0];
      pair[1] = subscales[PANEL];
    }
    const float m = halves(F::scales) == 2 ? load_half(scales + 2 * PANEL) : 0.0f;
    uint32_t words[kWords];
    load_quants<F::bits>(panel + g * packed.layout.group_bytes, r, words);
    dequantize_group<type>(words, affine<type>(load_half(scales), m, pair), out + g * GROUP);
  }
}

template <Type type>
void dequantize_file(const uint8_t* source, int64_t cols, float* out) {
  using F = Format<type>;
  const TypeInfo& format = info(type);
  constexpr int span = static_cast<int>(F::block / GROUP);
  for (int64_t b = 0; b < cols / format.block; b++) {
    const uint8_t* block = source + b * format.bytes;
    const float d = load_half(block + F::scale);
    const float m = halves(F::scales) == 2 ? load_half(block + F::scale + 2) : 0.0f;
    for (int g = 0; g < span; g++) {
      uint8_t pair[2] = {};
      uint32_t words[kWords];
      source_subscales<type>(block, g, pair);
      F::quants(block, g, words);
      dequantize_group<type>(words, affine<type>(d, m, pair), out + (b * span + g) * GROUP);
    }
  }
}

// Element i of a row of the file, or of a panel where `step` is PANEL.
void widen(Type type, const uint8_t* source, int64_t n, int64_t step, float* out) {
  for (int64_t i = 0; i < n; i++) {
    if (type == Type::F32) {
      std::memcpy(&out[i], source + i * step * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, source + i * step * 2, 2);
      out[i] = type == Type::F16 ? half_to_float(bits)
                                 : float_of_bits(static_cast<uint32_t>(bits) << 16);
    }
  }
}

template <Type value>
struct Tag {
  static constexpr Type type = value;
};

// Calls `function` with the tag of a quantised format.
template <class Function>
void with_format(Type type, Function function) {
  switch (type) {
    case Type::Q4_0: return function(Tag<Type::Q4_0>());
    case Type::Q4_1: return function(Tag<Type::Q4_1>());
    case Type::Q5_0: return function(Tag<Type::Q5_0>());
    case Type::Q5_1: return function(Tag<Type::Q5_1>());
    case Type::Q8_0: return function(Tag<Type::Q8_0>());
    case Type::Q4_K: return function(Tag<Type::Q4_K>());
    case Type::Q5_K: return function(Tag<Type::Q5_K>());
    case Type::Q6_K: return function(Tag<Type::Q6_K>());
    case Type::F32:
    case Type::F16:
    case Type::BF16: return;
  }
}

}  // namespace

Layout layout_of(Type type, int64_t cols) {
  Layout layout = {};
  if (is_float(type)) {
    layout.panel_bytes = round_up(cols * PANEL * info(type).bytes);
    layout.scales = layout.subscales = layout.panel_bytes;
    return layout;
  }
  with_format(type, [&](auto tag) {
    using F = Format<decltype(tag)::type>;
    layout.group_bytes = GROUP * PANEL * F::bits / 8;
    layout.scales = round_up(cols / GROUP * layout.group_bytes);
    layout.subscales =
        layout.scales + round_up(cols / info(type).block * halves(F::scales) * 2 * PANEL);
    layout.panel_bytes =
        layout.subscales + (has_subscales(F::scales) ? round_up(cols / GROUP * 2 * PANEL) : 0);
  });
  return layout;
}

int64_t row_bytes(Type type, int64_t cols) {
  return cols / info(type).block * info(type).bytes;
}

Packed allocate_packed(Type type, int64_t rows, int64_t cols) {
  Packed packed;
  packed.type = type;
  packed.rows = rows;
  packed.cols = cols;
  packed.layout = layout_of(type, cols);
  packed.buffer = Buffer(static_cast<size_t>(packed.bytes()));
  return packed;
}

void fill_panels(Packed& packed, const uint8_t* source, int64_t begin, int64_t end) {
  if (packed.type == Type::F32) return fill_floats<uint32_t>(packed, source, begin, end);
  if (is_float(packed.type)) return fill_floats<uint16_t>(packed, source, begin, end);
  with_format(packed.type, [&](auto tag) {
    fill_quantised<decltype(tag)::type>(packed, source, begin, end);
  });
}

void dequantize_row(const Packed& packed, int64_t row, float* out) {
  if (is_float(packed.type)) {
    const uint8_t* first = packed.panel(row / PANEL) + row % PANEL * info(packed.type).bytes;
    return widen(packed.type, first, packed.cols, PANEL, out);
  }
  with_format(packed.type,
              [&](auto tag) { dequantize_packed<decltype(tag)::type>(packed, row, out); });
}

void dequantize_source(Type type, const uint8_t* source, int64_t cols, float* out) {
  if (is_float(type)) return widen(type, source, cols, 1, out);
  with_format(type, [&](auto tag) { dequantize_file<decltype(tag)::type>(source, cols, out); });
}

}  // namespace draftproof
