// Which rows of embedding tables a worker wants, and how a Pull names them.
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

// Rows by tensor: ascending, each once. A tensor that is named is wanted by these rows only, which
// may be none; one that is not named is wanted whole.
using RowSelections = std::map<uint32_t, std::vector<uint64_t>>;

// Makes numbers ascending, each once.
void SortRows(std::vector<uint64_t>* rows);

// Adds the selections to a Pull; the payload that belongs to it.
absl::Cord AppendSelections(const RowSelections& selections, v1::Pull* pull);

// What a Pull and its payload say of a job's tensors; empty: all rows of all. INVALID_ARGUMENT,
// naming the tensor, for one that is not there, is no matrix of parameters, or is named twice; for
// rows that are not ascending or not there; and where header and payload contradict each other.
absl::StatusOr<RowSelections> ReadSelections(const v1::Pull& pull, const absl::Cord& payload,
                                             const v1::TensorTable& table);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_ROW_SELECTION_H_
