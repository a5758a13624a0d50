#include "services/coordinator/core/facts/progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "services/common/check.h"
#include "services/protocol/worker_limits.h"

namespace sluice::coordinator {

v1::Event& EventLog::Append(v1::Event::Kind kind, std::string message, absl::Time now) {
  v1::Event event;
  event.set_sequence(next_++);
  event.set_time(absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  event.set_kind(kind);
  event.set_message(std::move(message));
  events_.push_back(std::move(event));
  if (events_.size() > kMaxEvents) events_.pop_front();
  SLUICE_DCHECK(events_.front().sequence() + events_.size() == next_,
                "events are numbered without gaps");
  return events_.back();
}

void EventLog::Add(v1::Event::Kind kind, std::string message, absl::Time now) {
  Append(kind, std::move(message), now);
}

void EventLog::AddEvaluation(const v1::Evaluation& evaluation, std::string message,
                             absl::Time now) {
  *Append(v1::Event::EVALUATION, std::move(message), now).mutable_evaluation() = evaluation;
}

void EventLog::CopyTo(uint64_t after, v1::JobProgress* progress) const {
  for (const v1::Event& event : events_) {
    if (event.sequence() > after) *progress->add_events() = event;
  }
}

namespace {

// Whether a sample of the step counts in the mean loss.
bool HasLoss(const v1::WorkerProgress::Step& step) {
  return step.samples() > 0 && (!step.has_weight() || step.weight() >= kMinWeight);
}

}  // namespace

void BatchLosses::OnWorkerProgress(uint32_t index, bool synchronous,
                                   const v1::WorkerProgress& progress) {
  for (const v1::WorkerProgress::Step& step : progress.steps()) {
    if (step.samples() == 0) continue;
    // A worker's clock may be raised, so it does not number batches.
    const uint64_t batch = synchronous ? step.step() : batches_[index]++;
    if (batch % kEvery != 0 || !HasLoss(step)) continue;
    v1::BatchLoss& loss = losses_.emplace_back();
    loss.set_sequence(next_++);
    loss.set_worker(index);
    loss.set_batch(batch);
    loss.set_loss(step.loss_sum() / static_cast<double>(step.samples()));
    if (losses_.size() > kMaxLosses) losses_.pop_front();
    SLUICE_DCHECK(losses_.front().sequence() + losses_.size() == next_,
                  "losses are numbered without gaps");
  }
}

void BatchLosses::CopyTo(uint64_t after, v1::JobProgress* progress) const {
  for (const v1::BatchLoss& loss : losses_) {
    if (loss.sequence() > after) *progress->add_losses() = loss;
  }
}

namespace {

// The sum, or the largest number if it would overflow.
uint64_t SumOf(uint64_t a, uint64_t b) {
  return a > std::numeric_limits<uint64_t>::max() - b ? std::numeric_limits<uint64_t>::max()
                                                      : a + b;
}

}  // namespace

void StalenessCounts::Add(uint64_t staleness) {
  counts_.resize(std::max<size_t>(counts_.size(), std::min(staleness, kMost) + 1));
  ++counts_[std::min(staleness, kMost)];
  ++count_;
  sum_ = SumOf(sum_, staleness);
  largest_ = std::max(largest_, staleness);
}

uint64_t StalenessCounts::Quantile(double fraction) const {
  SLUICE_DCHECK(0 < fraction && fraction <= 1, "a quantile is of a part of all updates");
  const auto wanted = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t staleness = 0; staleness < counts_.size(); ++staleness) {
    seen += counts_[staleness];
    if (seen >= wanted) return staleness == kMost ? largest_ : staleness;
  }
  return largest_;
}

void TrainingMeter::OnWorkerProgress(uint64_t incarnation, const v1::WorkerProgress& progress) {
  uint64_t samples = 0;
  for (const v1::WorkerProgress::Step& step : progress.steps()) {
    samples += step.samples();
    if (step.has_staleness()) stalenesses_.Add(step.staleness());
    if (!HasLoss(step) || !std::isfinite(step.loss_sum())) continue;
    const auto count = static_cast<double>(step.samples());
    losses_.push_back(step.has_weight() ? Losses{step.loss_sum() / count * step.weight(),
                                                 step.weight(), step.samples()}
                                        : Losses{step.loss_sum(), count, step.samples()});
    loss_count_ += step.samples();
  }

  while (losses_.size() > 1 && loss_count_ - losses_.front().samples >= loss_samples_) {
    loss_count_ -= losses_.front().samples;
    losses_.pop_front();
  }

  SLUICE_DCHECK(losses_.empty() == (loss_count_ == 0), "a loss is that of at least one sample");
  const double seconds = progress.data_seconds() + progress.compute_seconds();
  if (samples > 0 && seconds > 0 && std::isfinite(seconds)) {
    constexpr double kDecay = 0.9;
    Worker& worker = workers_[incarnation];
    worker.samples = worker.samples * kDecay + static_cast<double>(samples);
    worker.seconds = worker.seconds * kDecay + seconds;
  }

  sums_.set_data_seconds(sums_.data_seconds() + progress.data_seconds());
  sums_.set_compute_seconds(sums_.compute_seconds() + progress.compute_seconds());
  sums_.set_push_seconds(sums_.push_seconds() + progress.push_seconds());
  sums_.set_wait_seconds(sums_.wait_seconds() + progress.wait_seconds());
  sums_.set_pull_seconds(sums_.pull_seconds() + progress.pull_seconds());
  sums_.set_recomputed_samples(SumOf(sums_.recomputed_samples(), progress.recomputed_samples()));
  sums_.set_pushed_bytes(SumOf(sums_.pushed_bytes(), progress.pushed_bytes()));
  sums_.set_gradient_bytes(SumOf(sums_.gradient_bytes(), progress.gradient_bytes()));
  sums_.set_pulled_bytes(SumOf(sums_.pulled_bytes(), progress.pulled_bytes()));
  sums_.set_parameter_bytes(SumOf(sums_.parameter_bytes(), progress.parameter_bytes()));
}

void TrainingMeter::OnSamples(uint64_t samples, absl::Time now) {
  if (!samples_.empty() && samples < samples_.back().second) samples_.clear();
  if (!samples_.empty() && samples == samples_.back().second) return;
  SLUICE_DCHECK(samples_.empty() || samples_.back().first <= now, "times do not go backwards");
  if (!began_.has_value()) began_ = now;
  newest_ = now;
  samples_.emplace_back(now, samples);
  // One entry older than the window is kept, so that the rate spans the window.
  while (samples_.size() > 2 && samples_[1].first + kWindow <= now) samples_.pop_front();
}

double TrainingMeter::loss() const {
  double sum = 0;
  double weight = 0;
  for (const Losses& losses : losses_) {
    sum += losses.sum;
    weight += losses.weight;
  }
  return losses_.empty() ? 0 : sum / weight;
}

double TrainingMeter::SpeedOf(uint64_t incarnation) const {
  const auto found = workers_.find(incarnation);
  if (found == workers_.end()) return 0;
  SLUICE_DCHECK(found->second.seconds > 0, "a worker's speed is known once it has computed");
  return std::min(found->second.samples / found->second.seconds, kMaxSpeed);
}

double TrainingMeter::SamplesPerSecond(absl::Time now) const {
  if (samples_.size() < 2) return 0;
  const double seconds = absl::ToDoubleSeconds(now - samples_.front().first);
  if (!(seconds > 0)) return 0;
  return static_cast<double>(samples_.back().second - samples_.front().second) / seconds;
}

void TrainingMeter::CopyTo(v1::JobProgress* progress) const {
  progress->set_has_loss(has_loss());
  if (has_loss()) progress->set_loss(loss());
  progress->set_training_seconds(absl::ToDoubleSeconds(TrainingTime()));

  progress->set_data_seconds(sums_.data_seconds());
  progress->set_compute_seconds(sums_.compute_seconds());
  progress->set_push_seconds(sums_.push_seconds());
  progress->set_wait_seconds(sums_.wait_seconds());
  progress->set_pull_seconds(sums_.pull_seconds());
  progress->set_recomputed_samples(sums_.recomputed_samples());
  progress->set_pushed_bytes(sums_.pushed_bytes());
  progress->set_gradient_bytes(sums_.gradient_bytes());
  progress->set_pulled_bytes(sums_.pulled_bytes());
  progress->set_parameter_bytes(sums_.parameter_bytes());

  if (stalenesses_.count() > 0) {
    v1::JobProgress::Staleness* staleness = progress->mutable_staleness();
    staleness->set_updates(stalenesses_.count());
    staleness->set_median(stalenesses_.Quantile(0.5));
    staleness->set_percentile_95(stalenesses_.Quantile(0.95));
    staleness->set_largest(stalenesses_.largest());
    staleness->set_mean(stalenesses_.mean());
  }
}

}  // namespace sluice::coordinator
