// A matrix in the layout that the kernels read.
//
// A file stores a matrix row by row. A kernel wants 16 output rows side by side, so that one vector
// of activations serves them all: a panel. Values and scales are the file's own, only in another
// order.
//
// A panel of a float matrix is [cols][16] elements. A panel of a quantised matrix is
//
//   quants     [cols / 32] groups, each of `Layout::group_bytes`
//   scales     fp16, see below
//   subscales  bytes, see below
//
// with every section on a multiple of 64 bytes. A group holds 32 columns as 8 vectors of 64 bytes;
// byte 4 r + i of vector j is the value of row r at column 4 j + i of the group.
//
//   Q4_*, Q4_K   256 bytes: byte b of vector pair p holds vector 2 p below and 2 p + 1 above
//   Q5_*, Q5_K   the same of the low 4 bits, then 64 bytes: bit j of byte b is bit 4 of vector j
//   Q6_K         the same of the low 4 bits, then 128 bytes: bits 2 i and 2 i + 1 of byte b of
//                half h are bits 4 and 5 of vector 4 h + i
//   Q8_0         512 bytes, signed
//
//   format       scales                            subscales
//   Q4_0 Q5_0    d [cols / 32][16]                 -
//   Q8_0         d [cols / 32][16]                 -
//   Q4_1 Q5_1    d, m [cols / 32][2][16]           -
//   Q4_K Q5_K    d, dmin [cols / 256][2][16]       scale, minimum: uint8 [cols / 32][2][16]
//   Q6_K         d [cols / 256][16]                int8 [cols / 32][2][16], a scale per 16 columns
//
// A weight is, by format (q unsigned but for Q8_0):
//   Q4_0 d (q - 8)   Q5_0 d (q - 16)   Q8_0 d q   Q4_1 Q5_1 d q + m
//   Q4_K Q5_K d scale q - dmin minimum   Q6_K d scale (q - 32)
//
// Rows are padded with zeros to a whole panel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.h"
#include "types.h"

namespace draftproof {

constexpr int64_t PANEL = 16;  // output rows of a panel
constexpr int64_t GROUP = 32;  // columns of a group, and of an activation's scale

/// Where the sections of a panel lie, in bytes from its start. A float matrix has no groups and no
/// scales: both offsets are the panel's end.
struct Layout {
  int64_t group_bytes;
  int64_t scales;
  int64_t subscales;
  int64_t panel_bytes;
};
Layout layout_of(Type type, int64_t cols);

struct Packed {
  Type type = Type::F32;
  int64_t rows = 0;
  int64_t cols = 0;
  Layout layout = {};
  Buffer buffer;

  int64_t panels() const { return (rows + PANEL - 1) / PANEL; }
  const uint8_t* panel(int64_t i) const { return buffer.data() + i * layout.panel_bytes; }
  int64_t bytes() const { return panels() * layout.panel_bytes; }
};

/// Bytes of the file's own rows.
int64_t row_bytes(Type type, int64_t cols);

/// An unfilled matrix. Throws std::bad_alloc.
Packed allocate_packed(Type type, int64_t rows, int64_t cols);

/// Fill panels [begin, end) from the file's rows; `source` is the matrix's first row. Panels may be
/// filled by different threads.
void fill_panels(Packed& packed, const uint8_t* source, int64_t begin, int64_t end);

/// One row as floats, exactly the values that the format stands for.
void dequantize_row(const Packed& packed, int64_t row, float* out);

/// A row of the file itself as floats.
void dequantize_source(Type type, const uint8_t* source, int64_t cols, float* out);

}  // namespace draftproof
