#include "services/ps/core/training/norm_exchange.h"

#include <utility>

#include "services/common/check.h"

namespace sluice::ps {

void NormExchange::Reset(uint64_t step) {
  step_ = step;
  known_.clear();
  own_.clear();
  own_before_.clear();
}

void NormExchange::Advance() {
  SLUICE_DCHECK(own_.size() == state_.view()->owned().size(),
                "a step closes with the norms of every own partition");
  ++step_;
  known_.clear();
  own_before_ = std::move(own_);
  own_.clear();
}

void NormExchange::AddOwn(uint32_t partition, const GradientNorm& norm) {
  SLUICE_DCHECK(own_.count(partition) == 0, "a partition is measured once in a step");
  SLUICE_DCHECK(state_.partitions().at(partition).version() == step_,
                "a norm is of the step that closes next");
  known_[partition] = norm;
  own_[partition] = norm;
  for (const v1::View::Shard& shard : state_.view()->proto().shards()) {
    if (shard.process().incarnation() == state_.self()) continue;
    SendTo(shard, step_, {{partition, norm}});
  }
}

void NormExchange::SendTo(const v1::View::Shard& shard, uint64_t step,
                          const std::map<uint32_t, GradientNorm>& norms) {
  if (norms.empty()) return;
  SendToShard action = state_.NewMessageTo(shard);
  v1::Norms& body = *action.header.mutable_norms();
  body.set_step(step);
  for (const auto& [partition, norm] : norms) {
    v1::Norms::PartitionNorm& entry = *body.add_partitions();
    entry.set_partition(partition);
    entry.set_square_sum(norm.square_sum);
    entry.set_non_finite(norm.non_finite);
  }
  out_.Add(std::move(action));
}

void NormExchange::OnShardConnected(uint64_t incarnation) {
  if (!state_.view().has_value()) return;
  for (const v1::View::Shard& shard : state_.view()->proto().shards()) {
    if (shard.process().incarnation() != incarnation) continue;
    if (step_ > 0) SendTo(shard, step_ - 1, own_before_);
    SendTo(shard, step_, own_);
  }
}

void NormExchange::OnNorms(const v1::Norms& norms) {
  if (norms.step() < step_) return;
  SLUICE_DCHECK(norms.step() == step_, "no shard is a step ahead of this one");
  for (const v1::Norms::PartitionNorm& entry : norms.partitions()) {
    known_[entry.partition()] = {entry.square_sum(), entry.non_finite()};
  }
}

bool NormExchange::IsComplete() const {
  SLUICE_DCHECK(known_.size() <= state_.model()->filled().size() && own_.size() <= known_.size(),
                "norms are of the job's partitions, and include the shard's own");
  return known_.size() == state_.model()->filled().size();
}

GradientNorm NormExchange::Combined() const {
  SLUICE_DCHECK(IsComplete(), "norms are combined over all partitions");
  GradientNorm combined;
  for (const auto& [partition, norm] : known_) {
    combined.square_sum += norm.square_sum;
    combined.non_finite = combined.non_finite || norm.non_finite;
  }
  return combined;
}

}  // namespace sluice::ps
