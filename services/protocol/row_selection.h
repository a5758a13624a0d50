// The rows of embedding tables that a worker wants, and how a Pull names them.
#ifndef SLUICE_SERVICES_PROTOCOL_ROW_SELECTION_H_
#define SLUICE_SERVICES_PROTOCOL_ROW_SELECTION_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "proto/model.pb.h"

namespace sluice {

// Rows by tensor: ascending, without duplicates. Of a named tensor only these rows are requested,
// possibly none; a tensor that is not named is requested whole.
using RowSelections = std::map<uint32_t, std::vector<uint64_t>>;

// Sorts the numbers and removes duplicates.
void SortRows(std::vector<uint64_t>* rows);

// Adds the selections to a Pull; returns its payload. The Pull gets tensors and counts, the payload
// the row numbers: 8 bytes each, in the Pull's order.
absl::Cord AppendSelections(const RowSelections& selections, v1::Pull* pull);

// The selection that a Pull and its payload make of a job's tensors; empty: all rows of all
// tensors. INVALID_ARGUMENT, naming the tensor, if it does not exist, is not a matrix of
// parameters, or is named twice; if rows are not ascending or do not exist; and if header and
// payload contradict each other.
absl::StatusOr<RowSelections> ReadSelections(const v1::Pull& pull, const absl::Cord& payload,
                                             const v1::TensorTable& table);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_ROW_SELECTION_H_
