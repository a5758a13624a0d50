#ifndef SLUICE_SERVICES_PS_CUTS_H_
#define SLUICE_SERVICES_PS_CUTS_H_

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
#include "services/ps/partition.h"
#include "services/ps/shard_state.h"

namespace sluice::ps {

// Pinned versions, for checkpoints, evaluation and inspection (docs/protocol.md 10, R14).
//
//   Open ──(each partition reaches the step)──> pinned ──(step committed)──> CutPinned [-> files]
//
// A pin is a set of references to blocks, so training continues meanwhile. A fall-back drops the
// pins of the version that it takes back, but keeps the request if the Install names it again.
class Cuts {
 public:
  // `records` fills in the records that asynchronous contents have in addition to their blocks.
  Cuts(ShardState* state, std::function<void(PartitionContent*)> records)
      : state_(*state), records_(std::move(records)) {}

  // A repeated request is answered again.
  void Open(const v1::OpenCut& request);
  void Close(uint64_t cut);
  // A partition has reached a version.
  void OnVersion(const Partition& partition);
  void OnCommitted();
  // All partitions are at the view's first step, which is committed. `named` null: no cut is open.
  void OnInstalled(const v1::OpenCut* named);
  // `name`: the checkpoint that the file belongs to. A write may end long after its cut: a slow
  // disk may finish a file of an earlier attempt, which counts for no cut of this attempt, although
  // each coordinator numbers its cuts from 1 again.
  void OnWritten(uint64_t cut, const v1::CheckpointRef& name, uint32_t partition,
                 absl::StatusOr<v1::PartitionFile> written);
  void Clear() { cuts_.clear(); }
  // Reports the state of each cut again.
  void Report();

  // Null if the cut has not pinned this partition (yet).
  std::shared_ptr<const PartitionContent> Find(uint64_t cut, uint32_t partition) const;
  // Whether the cut is pinned whole and committed.
  bool IsPinned(uint64_t cut) const;
  size_t size() const { return cuts_.size(); }

 private:
  struct Cut {
    v1::OpenCut request;
    std::map<uint32_t, std::shared_ptr<const PartitionContent>> pins;
    bool reported = false;  // pinned, committed and reported; files are being written from here on
    std::set<uint32_t> unwritten;
    std::map<uint32_t, v1::PartitionFile> files;
    std::string failure;
    uint64_t past = 0;
    absl::Time started;  // when writing began
  };

  void PinNow(Cut& cut);
  void Pin(Cut& cut, const Partition& partition, uint64_t version);
  void Advance(Cut& cut);
  void Report(const Cut& cut);
  // Marks the cut as failed. A cut that was reported keeps its pins, so it can still be read.
  void Fail(Cut& cut, std::string reason, uint64_t past);
  void SayPinned(const Cut& cut);
  void SayWritten(const Cut& cut);
  void SayFailed(const Cut& cut);

  ShardState& state_;
  const std::function<void(PartitionContent*)> records_;
  std::map<uint64_t, Cut> cuts_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CUTS_H_
