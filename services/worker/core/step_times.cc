#include "services/worker/core/step_times.h"

#include <algorithm>

#include "services/common/check.h"

namespace sluice::worker {

void StepTimes::OnAnswered(absl::Time now, absl::Time sent) {
  if (pushed_ != absl::InfiniteFuture() || !given()) return;
  pushed_ = std::min(std::max(given_, sent), now);
}

void StepTimes::OnData(absl::Time now, absl::Time sent) {
  OnAnswered(now, sent);
  // Data that arrives before everything is pushed costs no time of its own.
  if (data_ == absl::InfiniteFuture()) data_ = now;
}

void StepTimes::AddTo(v1::WorkerProgress* progress) const {
  if (computed_ == absl::InfiniteFuture()) return;

  // The next mark, but not before the previous mark. A missing mark takes no time. A contribution
  // that was never given completely counts as in flight until the version was whole without it.
  const auto mark = [](absl::Time at, absl::Time before) {
    return at == absl::InfiniteFuture() ? before : std::max(at, before);
  };

  const absl::Time pushed =
      mark(pushed_ != absl::InfiniteFuture() ? pushed_ : std::min(given_, whole_), computed_);
  const absl::Time data = mark(data_, pushed);
  const absl::Time whole = mark(whole_, data);
  SLUICE_DCHECK(computed_ <= pushed && pushed <= data && data <= whole,
                "the parts of a step follow each other");

  progress->set_push_seconds(progress->push_seconds() + absl::ToDoubleSeconds(pushed - computed_));
  progress->set_wait_seconds(progress->wait_seconds() + absl::ToDoubleSeconds(data - pushed));
  progress->set_pull_seconds(progress->pull_seconds() + absl::ToDoubleSeconds(whole - data));
}

}  // namespace sluice::worker
