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
// A pin is a set of references to blocks: training goes on beside it. A fall-back drops pins of the
// version that it takes back, but not the request, if the Install names it again.
class Cuts {
 public:
  // `records` fills in what asynchronous contents carry beside their blocks.
  Cuts(ShardState* state, std::function<void(PartitionContent*)> records)
      : state_(*state), records_(std::move(records)) {}

  // Repetitions answer anew what was answered.
  void Open(const v1::OpenCut& request);
  void Close(uint64_t cut);
  // A partition has reached a version.
  void OnVersion(const Partition& partition);
  void OnCommitted();
  // All partitions stand at the view's first step, which is committed. `named` null: none is open.
  void OnInstalled(const v1::OpenCut* named);
  // `name`: the checkpoint that the file belongs to. A write may end long after its cut: what a
  // slow disk still had to do for an earlier attempt counts for no cut of this one, though
  // coordinators number their cuts from 1 again.
  void OnWritten(uint64_t cut, const v1::CheckpointRef& name, uint32_t partition,
                 absl::StatusOr<v1::PartitionFile> written);
  void Clear() { cuts_.clear(); }
  // Says again where each cut stands.
  void Report();

  // Null if the cut has no such partition pinned (yet).
  std::shared_ptr<const PartitionContent> Find(uint64_t cut, uint32_t partition) const;
  // Whether the cut is pinned whole and committed.
  bool IsPinned(uint64_t cut) const;
  size_t size() const { return cuts_.size(); }

 private:
  struct Cut {
    v1::OpenCut request;
    std::map<uint32_t, std::shared_ptr<const PartitionContent>> pins;
    bool reported = false;  // pinned, committed, said; files are being written from here on
    std::set<uint32_t> unwritten;
    std::map<uint32_t, v1::PartitionFile> files;
    std::string failure;
    uint64_t past = 0;
    absl::Time started;  // of writing
  };

  void PinNow(Cut& cut);
  void Pin(Cut& cut, const Partition& partition, uint64_t version);
  void Advance(Cut& cut);
  void Report(const Cut& cut);
  // What could not be written can still be read.
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
