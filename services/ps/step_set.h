#ifndef SLUICE_SERVICES_PS_STEP_SET_H_
#define SLUICE_SERVICES_PS_STEP_SET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/frame.pb.h"
#include "services/ps/shard_state.h"

namespace sluice::ps {

// Which members' contributions close a step, where a step does not wait for all of them
// (training.stragglers; docs/protocol.md 7.9).
//
// Intuition. If each partition took whoever is there first, partitions would be of different sets.
// So one shard decides, the owner of partition 0: as soon as enough members are complete for all of
// its own partitions. It tells the others, and they wait for just those members.
//
// The decision may be lost with a stream: it is said again to a shard that connects. One is enough:
// nobody pushes step s + 1 before all partitions have closed s, so the set of s + 1 cannot be
// decided while a shard lacks that of s.
class StepSet {
 public:
  explicit StepSet(ShardState* state) : state_(*state) {}

  // Whether the job drops stragglers at all. The rest is for such jobs only.
  bool active() const;

  // Nothing is decided; steps below `step` have been closed for good.
  void Reset(uint64_t step);
  // Steps below `version` have been closed for good.
  void OnCommitted(uint64_t version);

  // The owner of partition 0: decides the present step, if it can be decided now. True if it was.
  bool Decide();
  // What the owner of partition 0 says; it has passed CheckStepSet.
  void OnStepSet(const v1::StepSet& set);
  void OnShardConnected(uint64_t incarnation);

  // Whether the step may still be waiting for the member: it is in the set, or nothing is decided.
  bool Waits(uint64_t step, size_t member) const;
  // Members by number, ascending; null: not decided yet.
  const std::vector<size_t>* Of(const Partition& partition);

 private:
  // Enough members of those that are complete by `complete`; absent: not yet.
  template <typename Complete>
  std::optional<std::vector<size_t>> Choose(const Partition& partition, Complete complete) const;
  void SendTo(const v1::View::Shard& shard);

  ShardState& state_;
  uint64_t step_ = 0;
  std::optional<std::vector<size_t>> members_;  // of step_
  uint64_t dropped_ = 0;            // contributions to step_, while it may be taken back
  std::vector<size_t> own_choice_;  // for the simulator's shard that asks nobody
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_STEP_SET_H_
