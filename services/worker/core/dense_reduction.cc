#include "services/worker/core/dense_reduction.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/protocol/ids.h"
#include "services/protocol/layout.h"
#include "services/protocol/timeouts.h"

namespace sluice::worker {

void DenseReduction::OnView() {
  Stop();
  const bool joined = std::exchange(plan_, nullptr) != nullptr;
  own_.clear();
  out_->KeepOn();

  const bool wanted = context_->member && context_->job.training().dense().aggregation() ==
                                              v1::TrainingSpec::Dense::ALL_REDUCE;
  std::vector<uint64_t> members;
  std::optional<uint32_t> rank;
  for (const v1::View::Member& member : context_->view.workers()) {
    if (!wanted || member.microbatches_size() == 0) continue;
    const uint64_t incarnation = member.process().incarnation();
    if (incarnation == context_->incarnation) rank = static_cast<uint32_t>(members.size());
    members.push_back(incarnation);
  }
  if (!rank || members.size() < 2) {
    if (joined) out_->Add(LeaveGroup{});
    return;
  }

  std::vector<uint32_t> tensors;
  const int count = context_->table.tensors_size();
  covered_.assign(static_cast<size_t>(count), false);
  for (int i = 0; i < count; ++i) {
    const auto tensor = static_cast<uint32_t>(i);
    const std::vector<uint32_t>& rows = context_->row_tensors;
    const bool by_rows =
        context_->RowsTravel() && std::find(rows.begin(), rows.end(), tensor) != rows.end();
    if (context_->table.tensors(i).kind() != v1::PARAMETER || by_rows) continue;
    covered_[tensor] = true;
    tensors.push_back(tensor);
  }

  plan_ = std::make_shared<const ReductionPlan>(MakeReductionPlan(
      context_->table, context_->layout, std::move(tensors), std::move(members), *rank));
  for (size_t i = 0; i < plan_->own().pieces.size(); ++i) own_[plan_->own().pieces[i].block] = i;
  SLUICE_DCHECK(own_.size() == plan_->own().pieces.size(), "a block is summed in one piece");
  const absl::Duration heartbeat_timeout =
      TimeoutOr(context_->job.timeouts().heartbeat_timeout(), kDefaultHeartbeatTimeout);
  out_->Add(JoinGroup{context_->view.id(), plan_, heartbeat_timeout});
}

void DenseReduction::Start(const StepGradients* gradients, uint64_t step) {
  if (!active()) return;

  Stop();
  gradients_ = gradients;
  step_ = step;
  state_ = State::kCollecting;

  for (const MicrobatchRange& partial_sum : gradients->partial_sums()) {
    for (uint32_t tensor : plan_->tensors) {
      if (!gradients->Get(partial_sum, tensor).resolved) ++unresolved_;
    }
  }
}

void DenseReduction::Stop() {
  state_ = State::kIdle;
  gradients_ = nullptr;
  unresolved_ = 0;
  part_.clear();
}

void DenseReduction::OnResolved(uint32_t tensor) {
  if (state_ != State::kCollecting || !Covers(tensor)) return;
  SLUICE_DCHECK(unresolved_ > 0, "a tensor of a partial sum is resolved once");
  --unresolved_;
}

std::optional<absl::Cord> DenseReduction::SumOfPartialSums(uint32_t tensor) const {
  const v1::TensorSpec& spec = context_->table.tensors(static_cast<int>(tensor));
  SLUICE_DCHECK(Covers(tensor), "only dense gradients are given to the group");

  std::optional<Gradient> sum;
  for (const MicrobatchRange& partial_sum : gradients_->partial_sums()) {
    const std::optional<Gradient>& gradient = gradients_->Get(partial_sum, tensor).gradient;
    if (!gradient) continue;
    if (!sum) {
      sum = gradient;
      continue;
    }

    // Both were checked: this cannot fail.
    absl::StatusOr<Gradient> added = AddGradients(spec, *sum, *gradient);
    if (added.ok()) sum = *std::move(added);
  }

  if (!sum) return std::nullopt;
  return DenseElements(spec, *sum, 0, ElementCount(spec));
}

bool DenseReduction::AllAreResolved() const {
  for (const MicrobatchRange& partial_sum : gradients_->partial_sums()) {
    for (uint32_t tensor : plan_->tensors) {
      if (!gradients_->Get(partial_sum, tensor).resolved) return false;
    }
  }
  return true;
}

void DenseReduction::Proceed() {
  if (state_ != State::kCollecting || unresolved_ > 0) return;
  SLUICE_DCHECK(AllAreResolved(), "gradients are given to the group once they are all there");
  ReduceGradients reduce;
  reduce.step = step_;
  for (uint32_t tensor : plan_->tensors) reduce.gradients.push_back(SumOfPartialSums(tensor));
  state_ = State::kReducing;
  out_->Add(std::move(reduce));
}

absl::StatusOr<bool> DenseReduction::OnReduced(const v1::ViewId& view, uint64_t step,
                                               absl::StatusOr<ReducedPart> part) {
  if (state_ != State::kReducing || !Same(view, context_->view.id()) || step != step_) {
    return false;
  }

  if (absl::IsInvalidArgument(part.status())) return part.status();
  if (part.ok() && part->size() != plan_->own().pieces.size()) {
    return absl::InternalError("the sum does not match the gradients that were given");
  }

  if (part.ok()) {
    part_ = *std::move(part);
    state_ = State::kDone;
    return true;
  }

  state_ = State::kBroken;
  const v1::TimeoutSpec& timeouts = context_->job.timeouts();
  const absl::Duration suspect = TimeoutOr(timeouts.suspect(), kDefaultSuspect);
  const absl::Time until =
      context_->now + TimeoutOr(timeouts.heartbeat_timeout(), kDefaultHeartbeatTimeout) +
      TimeoutOr(timeouts.pause(), kDefaultPause) + plan_->rank * (suspect + absl::Seconds(1));
  out_->GiveUpAt(
      until, absl::StrCat("step ", step, " of view ", ShortName(view),
                          ": gradients could not be summed among the workers, and no new view was "
                          "installed: ",
                          part.status().message()));
  return false;
}

const absl::Cord* DenseReduction::Sum(uint32_t block) const {
  SLUICE_DCHECK(done() && Owns(block), "a sum is read by its owner, once it is there");
  const std::optional<absl::Cord>& sum = part_[own_.at(block)];
  return sum ? &*sum : nullptr;
}

}  // namespace sluice::worker
