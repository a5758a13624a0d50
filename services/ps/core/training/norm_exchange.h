#ifndef SLUICE_SERVICES_PS_CORE_TRAINING_NORM_EXCHANGE_H_
#define SLUICE_SERVICES_PS_CORE_TRAINING_NORM_EXCHANGE_H_

#include <cstdint>
#include <map>

#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/block_update.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The norms of one step for all partitions of the job. Each shard sends its own norms to the other
// shards and receives theirs. They are combined in the order of partitions, so every shard computes
// the same bits.
//
// A message may be lost with a stream, so the norms of this step and the one before are sent again
// to a shard that connects. Older ones are never needed: a shard that closed step s + 1 has seen
// pushes of members that held all partitions at s + 1, so every shard has closed step s.
class NormExchange {
 public:
  // Both must outlive it.
  NormExchange(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // Forgets all norms; the next step is `step`.
  void Reset(uint64_t step);
  // The step has closed; moves to the next step.
  void Advance();

  bool HasOwn(uint32_t partition) const { return known_.count(partition) > 0; }
  void AddOwn(uint32_t partition, const GradientNorm& norm);
  // Norms from another shard; they have passed CheckNorms.
  void OnNorms(const v1::Norms& norms);
  uint64_t step() const { return step_; }
  void OnShardConnected(uint64_t incarnation);

  bool IsComplete() const;
  // Requires IsComplete().
  GradientNorm Combined() const;

 private:
  void SendTo(const v1::View::Shard& shard, uint64_t step,
              const std::map<uint32_t, GradientNorm>& norms);

  const ShardState& state_;
  Outbox& out_;
  uint64_t step_ = 0;
  std::map<uint32_t, GradientNorm> known_;  // of step_, from all shards
  std::map<uint32_t, GradientNorm> own_;
  std::map<uint32_t, GradientNorm> own_before_;  // of step_ - 1
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TRAINING_NORM_EXCHANGE_H_
