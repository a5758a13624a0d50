// Some rows of a matrix, unencoded: the format in which embedding tables are sent.
//
// Intuition. A batch uses few rows of a table. A matrix is divided into blocks like every tensor,
// by elements and regardless of its rows: so a block may begin and end within a row, and a row may
// be in two blocks. A payload in CODEC_ROWS is of one block. It names rows, and has those of their
// elements that are in the block.
//
//   bytes                content, little endian
//   0 to 3               n, the number of rows
//   4 to 7               w, the elements of a whole row
//   8 to 11              elements of the block's first row that are before the block, below w
//   12 to 15             zeros
//   then 4 for each row  its number, counted from the block's first row; ascending
//   then                 the rows' elements that are in the block, row by row, in the block's type
//
// As a gradient, rows that are not named are zeros. As parameters, they are left as they are.
#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_ROWS_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/common.pb.h"
#include "services/protocol/codec/codec.h"

namespace sluice {

// The position of a block in a matrix: its elements [offset, offset + count), in row-major order.
// row_elements is not 0.
struct RowCut {
  uint64_t row_elements = 1;
  uint64_t offset = 0;
  uint64_t count = 0;

  // Rows that have elements in the block: [begin_row, end_row).
  uint64_t begin_row() const { return offset / row_elements; }
  uint64_t end_row() const {
    return count == 0 ? begin_row() : (offset + count - 1) / row_elements + 1;
  }
};

// The position in a block of a row's elements: `count` elements from element `offset` of the block.
struct RowPart {
  uint64_t offset = 0;
  uint64_t count = 0;
};

// `row` must be one of the cut's.
RowPart PartOf(const RowCut& cut, uint64_t row);

// Those of `rows` (ascending) that have elements in the block.
absl::Span<const uint64_t> RowsIn(const RowCut& cut, absl::Span<const uint64_t> rows);

// The size in bytes of the payload of these rows (ascending, all of the cut).
size_t RowsBytes(const RowCut& cut, absl::Span<const uint64_t> rows, v1::DataType dtype);

// The payload of these rows, each the bytes of a whole row: `row_at(i)` points to the first byte of
// rows[i]. `rows` as above. The payload is a copy.
using RowAt = absl::FunctionRef<const char*(size_t)>;
absl::Cord EncodeRows(const RowCut& cut, absl::Span<const uint64_t> rows, v1::DataType dtype,
                      RowAt row_at);

// The payload of these rows of a block whose bytes are `block`.
absl::Cord EncodeRowsOfBlock(const RowCut& cut, absl::Span<const uint64_t> rows, v1::DataType dtype,
                             absl::Span<const char> block);

// The contents of a payload of a block of `count` elements: parts, and in the same order their
// bytes from `values_at` on. INVALID_ARGUMENT, naming the codec, if it is not such a payload: it
// may be anything that a peer sends.
struct RowParts {
  std::vector<RowPart> parts;
  size_t values_at = 0;
};
absl::StatusOr<RowParts> SplitRows(const absl::Cord& payload, v1::DataType dtype, size_t count);

// As a codec: encoding takes a block as one row; decoding writes zeros where no row is named.
std::unique_ptr<const Codec> MakeRows();

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_ROWS_H_
