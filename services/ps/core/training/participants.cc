#include "services/ps/core/training/participants.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"

namespace sluice::ps {

bool StepParticipants::active() const {
  return state_.job().training().stragglers().policy() == v1::TrainingSpec::Stragglers::DROP;
}

void StepParticipants::Reset(uint64_t step) {
  OnCommitted(step);
  members_.reset();
  dropped_ = 0;
}

void StepParticipants::OnCommitted(uint64_t version) {
  if (step_ < version) out_.CountDroppedContributions(std::exchange(dropped_, 0));
}

// A member does not count if it has no microbatches, or only microbatches beyond the epoch's end:
// it has no contribution to wait for or to drop.
template <typename Complete>
std::optional<std::vector<size_t>> StepParticipants::Choose(const Partition& partition,
                                                            Complete complete) const {
  std::vector<size_t> chosen;
  uint64_t expected = 0;
  uint64_t arrived = 0;
  for (size_t member = 0; member < state_.view()->members(); ++member) {
    const bool is_complete = complete(member);
    if (is_complete) chosen.push_back(member);
    const bool counts = !state_.view()->Assigned(member).empty() &&
                        (!is_complete || partition.SamplesOf(member) > 0);
    if (counts) ++expected;
    if (counts && is_complete) ++arrived;
  }
  const uint64_t backup = state_.job().training().stragglers().backup();
  const uint64_t wanted = expected > backup ? expected - backup : 1;
  const bool enough = expected == 0 ? chosen.size() == state_.view()->members() : arrived >= wanted;
  if (!enough || chosen.empty()) return std::nullopt;
  return chosen;
}

bool StepParticipants::Decide() {
  if (!state_.view()->is_arbiter() || state_.view()->owned().empty()) return false;
  const uint64_t step = state_.LowestVersion();
  if (members_.has_value() && step_ == step) return false;
  SLUICE_DCHECK(!members_.has_value() || step_ < step, "a step's participants are decided once");

  const auto complete = [this, step](size_t member) {
    return std::all_of(state_.view()->owned().begin(), state_.view()->owned().end(),
                       [&](uint32_t number) {
                         const Partition& partition = state_.partitions().at(number);
                         return partition.version() == step && partition.HasCompleted(member);
                       });
  };

  std::optional<std::vector<size_t>> chosen =
      Choose(state_.partitions().at(state_.view()->owned().front()), complete);
  if (!chosen.has_value()) return false;

  members_ = *std::move(chosen);
  step_ = step;
  dropped_ = 0;

  for (size_t member = 0; member < state_.view()->members(); ++member) {
    const bool in = std::binary_search(members_->begin(), members_->end(), member);
    if (!in && !state_.view()->Assigned(member).empty()) ++dropped_;
  }
  SLUICE_DCHECK(members_->size() + dropped_ <= state_.view()->members(),
                "a member takes part in a step or is dropped");

  for (const v1::View::Shard& shard : state_.view()->proto().shards()) {
    if (shard.process().incarnation() != state_.self()) SendTo(shard);
  }
  return true;
}

void StepParticipants::SendTo(const v1::View::Shard& shard) {
  SendToShard action = state_.NewMessageTo(shard);
  v1::StepParticipants& body = *action.header.mutable_step_participants();
  body.set_step(step_);
  for (size_t member : *members_) body.add_members(state_.view()->MemberIncarnation(member));
  out_.Add(std::move(action));
}

void StepParticipants::OnShardConnected(uint64_t incarnation) {
  if (!state_.view().has_value() || !state_.view()->is_arbiter() || !members_.has_value()) return;
  for (const v1::View::Shard& shard : state_.view()->proto().shards()) {
    if (shard.process().incarnation() == incarnation) SendTo(shard);
  }
}

void StepParticipants::OnStepParticipants(const v1::StepParticipants& set) {
  if (set.step() < state_.LowestVersion()) return;
  SLUICE_DCHECK(set.step() == state_.LowestVersion(), "no step is decided ahead of this shard");
  std::vector<size_t> members;
  members.reserve(set.members_size());
  for (uint64_t incarnation : set.members()) {
    members.push_back(*state_.view()->MemberIndex(incarnation));
  }
  std::sort(members.begin(), members.end());
  members_ = std::move(members);
  step_ = set.step();
}

bool StepParticipants::Waits(uint64_t step, size_t member) const {
  return !members_.has_value() || step_ != step ||
         std::binary_search(members_->begin(), members_->end(), member);
}

const std::vector<size_t>* StepParticipants::Of(const Partition& partition) {
  if (!state_.rules().AgreeOnSet()) {
    std::optional<std::vector<size_t>> own =
        Choose(partition, [&](size_t member) { return partition.HasCompleted(member); });
    if (!own.has_value()) return nullptr;
    own_choice_ = *std::move(own);
    return &own_choice_;
  }
  SLUICE_DCHECK(!members_.has_value() || members_->back() < state_.view()->members(),
                "the participants of a step are members of the view");
  return members_.has_value() && step_ == partition.version() ? &*members_ : nullptr;
}

}  // namespace sluice::ps
