#ifndef SLUICE_SERVICES_PS_CORE_SERVING_SNAPSHOTS_H_
#define SLUICE_SERVICES_PS_CORE_SERVING_SNAPSHOTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/hashes.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// Pinned versions, for checkpoints, evaluation and inspection (docs/protocol.md 10, R14).
//
//   Open ──(each partition reaches the step)──> pinned ──(step committed)──> SnapshotPinned [->
//   files]
//
// A pin is a set of references to blocks, so training continues meanwhile. A rollback drops the
// pins of the version that it takes back, but keeps the request if the Install names it again.
class Snapshots {
 public:
  // Both must outlive it. `records` fills in the records that asynchronous contents have in
  // addition to their blocks.
  Snapshots(const ShardState* state, Outbox* out, std::function<void(PartitionContent*)> records)
      : state_(*state), out_(*out), records_(std::move(records)) {}

  // A repeated request is answered again.
  void Open(const v1::OpenSnapshot& request);
  // Drops the pins; blocks that nothing else refers to return to the pool. Unknown numbers are
  // ignored.
  void Close(uint64_t snapshot);
  // A partition has reached a version.
  void OnVersion(const Partition& partition);
  // The committed version has risen: snapshots that waited for it are reported.
  void OnCommitted();
  // All partitions are at the view's first step, which is committed. `named` null: no snapshot is
  // open.
  void OnInstalled(const v1::OpenSnapshot* named);
  // `name`: the checkpoint that the file belongs to. A write may end long after its snapshot: a
  // slow disk may finish a file of an earlier attempt, which counts for no snapshot of this
  // attempt, although each coordinator numbers its snapshots from 1 again.
  void OnWritten(uint64_t snapshot, const v1::CheckpointRef& name, uint32_t partition,
                 absl::StatusOr<v1::PartitionFile> written);
  // Reports the state of each snapshot again.
  void Report();

  // Null if the snapshot has not pinned this partition (yet).
  std::shared_ptr<const PartitionContent> Find(uint64_t snapshot, uint32_t partition) const;
  // Whether the snapshot is pinned whole and committed.
  bool IsPinned(uint64_t snapshot) const;
  // Number of open snapshots.
  size_t size() const { return snapshots_.size(); }

 private:
  struct Snapshot {
    v1::OpenSnapshot request;
    std::map<uint32_t, std::shared_ptr<const PartitionContent>> pins;
    bool reported = false;  // pinned, committed and reported; files are being written from here on
    std::set<uint32_t> unwritten;
    std::map<uint32_t, v1::PartitionFile> files;
    std::string failure;
    uint64_t past = 0;
    absl::Time started;  // when writing began
  };

  // Synchronous: whether the snapshot's version is committed. Asynchronous versions are at once.
  bool IsCommitted(const Snapshot& snapshot) const;
  // Pins each owned partition that has reached the step; fails the snapshot if one no longer has
  // it.
  void PinNow(Snapshot& snapshot);
  // Pins one partition. No effect if it does not have the version.
  void Pin(Snapshot& snapshot, const Partition& partition, uint64_t version);
  // Once all partitions are pinned and the version is committed, reports the snapshot, and requests
  // its files if it is to be written.
  void Advance(Snapshot& snapshot);
  void Report(const Snapshot& snapshot);
  // Marks the snapshot as failed. A snapshot that was reported keeps its pins, so it can still be
  // read.
  void Fail(Snapshot& snapshot, std::string reason, uint64_t past);
  void ReportPinned(const Snapshot& snapshot);
  void ReportWritten(const Snapshot& snapshot);
  void ReportFailed(const Snapshot& snapshot);

  const ShardState& state_;
  Outbox& out_;
  const std::function<void(PartitionContent*)> records_;
  std::map<uint64_t, Snapshot> snapshots_;
  StateHashes state_hashes_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SERVING_SNAPSHOTS_H_
