// The gradient of an embedding table from the gradient of its look-ups. No LibTorch.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_ROW_SUMS_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_ROW_SUMS_H_

#include <cstdint>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/common.pb.h"

namespace sluice {

struct RowSums {
  std::vector<uint64_t> rows;  // ascending, each once
  absl::Cord values;           // of these rows
};

// Adds up rows that are named several times, in the order in which they are named, as a dense
// gradient would add them: the sums have the same bits. `named` are the rows, none negative, and
// `values` holds `row_elements` numbers of a floating-point `dtype` for each.
RowSums SumRows(v1::DataType dtype, absl::Span<const int64_t> named, const void* values,
                uint64_t row_elements);

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_ROW_SUMS_H_
