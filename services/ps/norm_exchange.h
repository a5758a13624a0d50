#ifndef SLUICE_SERVICES_PS_NORM_EXCHANGE_H_
#define SLUICE_SERVICES_PS_NORM_EXCHANGE_H_

#include <cstdint>
#include <map>

#include "proto/frame.pb.h"
#include "services/ps/block_update.h"
#include "services/ps/shard_state.h"

namespace sluice::ps {

// Whether a step closes only with a number that spans shards.
bool NeedsNorms(const v1::JobSpec& job);

// What PyTorch's clip_grad_norm_ multiplies gradients with: max_norm / (norm + 1e-6), at most 1.
double ClipFactor(double max_norm, double square_sum);

// The norms of one step of all partitions of the job: own ones are told to the other shards, theirs
// come in. They are combined in the order of partitions, so every shard gets the same bits.
//
// A message may be lost with a stream: what was said of this step and the one before is said again
// to a shard that connects. More is never needed: a shard that closed step s + 1 has seen pushes of
// members that held all partitions at s + 1, so nobody lacks step s.
class NormExchange {
 public:
  explicit NormExchange(ShardState* state) : state_(*state) {}

  // Nothing is known of any step; the next one is `step`.
  void Reset(uint64_t step);
  // The step has closed: on to the next.
  void Advance();

  bool HasOwn(uint32_t partition) const { return known_.count(partition) > 0; }
  void AddOwn(uint32_t partition, const GradientNorm& norm);
  // What another shard says; it has passed CheckNorms.
  void OnNorms(const v1::Norms& norms);
  uint64_t step() const { return step_; }
  void OnShardConnected(uint64_t incarnation);

  bool IsComplete() const;
  // Requires IsComplete().
  GradientNorm Combined() const;

 private:
  void SendTo(const v1::View::Shard& shard, uint64_t step,
              const std::map<uint32_t, GradientNorm>& norms);

  ShardState& state_;
  uint64_t step_ = 0;
  std::map<uint32_t, GradientNorm> known_;  // of step_, all shards'
  std::map<uint32_t, GradientNorm> own_;
  std::map<uint32_t, GradientNorm> own_before_;  // of step_ - 1
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_NORM_EXCHANGE_H_
