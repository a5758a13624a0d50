// What has arrived of a version that is being pulled.
#ifndef SLUICE_SERVICES_WORKER_CORE_VERSION_RECEIVER_H_
#define SLUICE_SERVICES_WORKER_CORE_VERSION_RECEIVER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "proto/model.pb.h"
#include "services/protocol/layout.h"
#include "services/protocol/row_selection.h"
#include "services/worker/core/worker_actions.h"

namespace sluice::worker {

// Passes blocks on to one of the engine's buffers and counts them, by partition. Empty partitions
// count as whole.
class VersionReceiver {
 public:
  explicit VersionReceiver(ComputeEngine::Buffer buffer) : buffer_(buffer) {}

  // Nothing has arrived. `layout` and `index` must outlive the next Reset. `by_reference`: blocks
  // come as references (server-side execution), of whatever length.
  void Reset(const v1::Layout* layout, const LayoutIndex* index, bool by_reference);
  // Of these tensors, rows were asked for: their blocks may come as those. `rows` must outlive the
  // next Reset, `table` too.
  void ExpectRows(const v1::TensorTable* table, const RowSelections* rows) {
    table_ = table;
    rows_ = rows;
  }
  // Forgets the partitions that are not whole.
  void ForgetPartial();
  // The same for one.
  void ForgetPartial(uint32_t partition);

  // INVALID_ARGUMENT, with nothing stored, if the blocks are not of the partition or not as long as
  // they say, or come as rows that were not asked for; or if the frame says that it is the last and
  // blocks are missing.
  absl::Status Accept(const v1::Data& data, const absl::Cord& payload, WorkerActions* actions);

  bool IsWhole() const { return index_ != nullptr && whole_ == state_.size(); }
  bool IsWhole(uint32_t partition) const { return state_[partition].whole; }
  // Of the version of a partition that is whole.
  uint64_t version(uint32_t partition) const { return state_[partition].version; }

 private:
  struct Partition {
    std::vector<bool> received;  // by place in LayoutIndex::BlocksOfPartition
    uint64_t missing = 0;
    bool whole = false;
    uint64_t version = 0;
  };

  absl::Status Check(const v1::Data& data, const absl::Cord& payload) const;
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
