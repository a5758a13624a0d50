#include "services/worker/core/step_sums.h"

#include <utility>

#include "services/common/check.h"

namespace sluice::worker {

void StepSums::Begin(ComputeId id, uint64_t step) {
  if (!active()) return;
  Stop();
  id_ = id;
  step_ = step;
}

void StepSums::OnSum(ComputeId id, std::string name, absl::Cord values) {
  if (id != id_ || part_.has_value()) return;
  part_ = Part{std::move(name), std::move(values)};
  if (IsAlone()) {
    Give(part_->values);
  } else {
    Send(*part_);
  }
}

void StepSums::OnComputed(ComputeId id) {
  if (id != id_) return;
  SLUICE_DCHECK(!part_.has_value(), "a computation ends after its last sum");
  // Lost with a stream, only the message about members that differ is lost.
  if (!IsAlone()) Send({});
  Stop();
}

bool StepSums::IsAlone() const {
  int computing = 0;
  for (const v1::View::Member& member : context_->view.workers()) {
    bool computes = false;
    for (const v1::Range& range : member.microbatches()) {
      computes |= !context_->plan->PositionsOf(step_, {range.begin(), range.end()}).empty();
    }
    if (computes) ++computing;
  }

  SLUICE_DCHECK(computing > 0, "this worker computes in the step");
  return computing == 1;
}

void StepSums::Send(const Part& part) {
  ShardLink* const link = out_->ReadyLink(context_->Arbiter());
  if (link == nullptr) return;

  v1::Header header;
  v1::StepSum& sum = *header.mutable_step_sum();
  sum.set_step(step_);
  sum.set_number(number_);
  sum.set_name(part.name);
  out_->Send(*link, std::move(header), part.values);
}

void StepSums::OnLinkReady(const ShardLink& link) {
  if (part_.has_value() && link.id() == context_->Arbiter()) Send(*part_);
}

void StepSums::OnAnswer(const v1::StepSumAnswer& answer, const absl::Cord& payload) {
  if (!part_.has_value() || answer.step() != step_ || answer.number() != number_) return;
  Give(payload);
}

void StepSums::Give(absl::Cord values) {
  out_->Add(GiveSum{id_, std::move(values)});
  ++number_;
  part_.reset();
}

}  // namespace sluice::worker
