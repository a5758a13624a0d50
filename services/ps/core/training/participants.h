#ifndef SLUICE_SERVICES_PS_CORE_TRAINING_PARTICIPANTS_H_
#define SLUICE_SERVICES_PS_CORE_TRAINING_PARTICIPANTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The members whose contributions close a step, in jobs whose steps do not wait for all members
// (training.stragglers; docs/protocol.md 7.9).
//
// Intuition. If each partition took the members that complete it first, partitions would close with
// different sets. So one shard decides, the owner of partition 0, as soon as enough members are
// complete for all of its own partitions. It sends the set to the other shards, which wait for just
// those members.
//
// The decision may be lost with a stream, so it is sent again to a shard that connects. Only the
// newest is needed: no member pushes step s + 1 before all partitions have closed s, so the set of
// s + 1 cannot be decided while a shard is missing that of s.
class StepParticipants {
 public:
  // Both must outlive it.
  StepParticipants(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // Whether the job drops stragglers at all. The other functions are only for such jobs.
  bool active() const;

  // Drops the decision; steps below `step` are closed for good.
  void Reset(uint64_t step);
  // Steps below `version` are closed for good.
  void OnCommitted(uint64_t version);

  // On the owner of partition 0: decides the current step if it can be decided now. True if it was.
  bool Decide();
  // A decision of the owner of partition 0; it has passed CheckStepParticipants.
  void OnStepParticipants(const v1::StepParticipants& set);
  void OnShardConnected(uint64_t incarnation);

  // Whether the step may still be waiting for the member: the member is in the set, or the set is
  // not decided.
  bool Waits(uint64_t step, size_t member) const;
  // Members by number, ascending; null: not decided yet.
  const std::vector<size_t>* Of(const Partition& partition);

 private:
  // Enough members of those for which `complete` is true; unset: not yet.
  template <typename Complete>
  std::optional<std::vector<size_t>> Choose(const Partition& partition, Complete complete) const;
  void SendTo(const v1::View::Shard& shard);

  const ShardState& state_;
  Outbox& out_;
  uint64_t step_ = 0;
  std::optional<std::vector<size_t>> members_;  // of step_
  uint64_t dropped_ = 0;            // contributions to step_, while it may be taken back
  std::vector<size_t> own_choice_;  // for the simulator's shard that decides alone
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TRAINING_PARTICIPANTS_H_
