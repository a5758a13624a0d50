// Receives a version that is being pulled.
#ifndef SLUICE_SERVICES_WORKER_CORE_VERSION_RECEIVER_H_
#define SLUICE_SERVICES_WORKER_CORE_VERSION_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/protocol/layout.h"
#include "services/protocol/row_selection.h"
#include "services/worker/core/base/actions.h"

namespace sluice::worker {

// Passes blocks on to one of the engine's buffers and counts them by partition. Empty partitions
// count as whole.
class VersionReceiver {
 public:
  explicit VersionReceiver(ComputeEngine::Buffer buffer) : buffer_(buffer) {}

  // Nothing has arrived. `layout` and `index` must outlive the next Reset. `by_reference`: blocks
  // arrive as references of any length (server-side execution).
  void Reset(const v1::Layout* layout, const LayoutIndex* index, bool by_reference);
  // Rows of these tensors were requested: their blocks may arrive as rows. `rows` and `table` must
  // outlive the next Reset.
  void ExpectRows(const v1::TensorTable* table, const RowSelections* rows) {
    table_ = table;
    rows_ = rows;
  }
  // Forgets the partitions that are not whole.
  void ForgetPartial();
  // Forgets one partition unless it is whole.
  void ForgetPartial(uint32_t partition);

  // Adds a StoreBlock for each block, unless the partition is whole. INVALID_ARGUMENT, with nothing
  // stored, if a block does not belong to the partition, does not have the length that the frame
  // gives, or arrives as rows that were not requested. INVALID_ARGUMENT also if the frame is marked
  // as the last and blocks are missing.
  absl::Status Accept(const v1::Data& data, const absl::Cord& payload, WorkerActions* actions);

  // Whether every partition has arrived whole.
  bool IsWhole() const { return index_ != nullptr && whole_ == state_.size(); }
  bool IsWhole(uint32_t partition) const { return state_[partition].whole; }
  // The version of a partition that is whole.
  uint64_t version(uint32_t partition) const {
    SLUICE_DCHECK(IsWhole(partition), "the version of a partition is known once it is whole");
    return state_[partition].version;
  }

 private:
  // The progress of one partition.
  struct Partition {
    std::vector<bool> received;  // by place in LayoutIndex::BlocksOfPartition
    uint64_t missing = 0;
    bool whole = false;
    uint64_t version = 0;
  };

  // Checks a whole frame before any of it is stored.
  absl::Status Check(const v1::Data& data, const absl::Cord& payload) const;
  // Checks a block of rows: the rows were requested, and the payload has their length.
  absl::Status CheckRows(const v1::Block& block, const absl::Cord& payload) const;

  const ComputeEngine::Buffer buffer_;
  const v1::Layout* layout_ = nullptr;
  const LayoutIndex* index_ = nullptr;
  bool by_reference_ = false;
  const v1::TensorTable* table_ = nullptr;
  const RowSelections* rows_ = nullptr;  // null: no rows were asked for
  std::vector<Partition> state_;
  size_t whole_ = 0;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_VERSION_RECEIVER_H_
