#include "services/coordinator/core/evaluation/evaluations.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/common/check.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/facts/training_mode.h"

namespace sluice::coordinator {
namespace {

// Whether samples are sequences of tokens: then a loss is reported as perplexity.
bool IsLanguageModel(const v1::JobSpec& job) {
  return job.data().format() == v1::DataSpec::TEXT || job.data().synthetic().vocabulary() > 0;
}

bool TargetReached(const v1::TrainingSpec::Target& target, const v1::Evaluation& result) {
  const std::optional<double> value = MetricOf(result, target.metric());
  if (!value.has_value()) return false;
  return target.goal() == "AtMost" ? *value <= target.value() : *value >= target.value();
}

}  // namespace

Evaluations::Evaluations(const Facts& facts, const std::optional<Snapshot>& open,
                         std::optional<v1::Evaluation>* last_result,
                         v1::EvaluationDecisions* decisions, Output* output)
    : facts_(facts),
      snapshot_(open),
      last_result_(*last_result),
      decisions_(*decisions),
      output_(*output),
      schedule_(facts.job().data().evaluation().interval_steps(),
                absl::Seconds(facts.job().data().evaluation().interval_seconds())) {}

void Evaluations::LeaveAttempt() {
  SLUICE_DCHECK(!pending_ && !running(), "the snapshot was closed before");
  final_given_up_ = false;
}

void Evaluations::Begin(const v1::EvaluationDecisions& decisions) {
  SLUICE_DCHECK(!running(), "an attempt begins without an evaluation");
  if (!EvaluationsDecide(facts_.job())) return;
  decisions_ = DecideAgain(facts_.job(), decisions);
}

bool Evaluations::HoldTraining() const {
  return facts_.mode().synchronous() && EvaluationsDecide(facts_.job());
}

void Evaluations::Advance(absl::Time now) {
  SLUICE_DCHECK(pending_ || !running(), "the open snapshot is to be evaluated");
  if (!pending_) return;
  if (!evaluation_.has_value()) {
    if (!snapshot_->PinnedBy(facts_.attempt.facts().shards)) return;
    Start(now);
  }
  if (evaluation_->done() || evaluation_->failed()) {
    Finish(now);
    return;
  }

  // For a suspect, messages are sent again when the worker returns.
  for (auto& [incarnation, evaluate] : evaluation_->Assign(Evaluators(), now)) {
    v1::CoordinatorMessage message;
    *message.mutable_evaluate() = std::move(evaluate);
    output_.Send(*facts_.members.Find(incarnation), std::move(message));
  }
  for (auto& [incarnation, compute] : evaluation_->AssignMetrics(Evaluators(), now)) {
    v1::CoordinatorMessage message;
    *message.mutable_compute_metrics() = std::move(compute);
    output_.Send(*facts_.members.Find(incarnation), std::move(message));
  }
}

void Evaluations::Start(absl::Time now) {
  Evaluation::Options options;
  options.id = ++last_id_;
  options.snapshot = snapshot_->id;
  options.attempt = facts_.attempt.id.number;
  options.version = snapshot_->step;
  options.samples = facts_.EvaluationSamples();
  if (EndsWithEvaluation(facts_.attempt.goal)) {
    options.first = options.samples;
    options.samples = facts_.attempt.model.ready->evaluation_samples();
    options.first_id = ++last_id_;
  }
  const auto& metrics = facts_.attempt.model.ready->metrics();
  options.metrics = {metrics.begin(), metrics.end()};
  options.exact = facts_.job().training().bit_exact() || HoldTraining();
  options.weighs = facts_.rules.WeighEvaluations();
  options.started = now;
  options.patience = facts_.timers.evaluation;
  evaluation_.emplace(options);
}

// The members. If training has ended early: the workers that were members or have joined
// since. Shards compute their layers only for workers that were members, so other workers are asked
// only if no former member is alive.
std::vector<Evaluator> Evaluations::Evaluators() const {
  std::vector<Evaluator> evaluators;
  const auto add = [&](const Process* process) {
    if (process == nullptr || process->leaving) return;
    evaluators.push_back({process->incarnation(), facts_.meter.SpeedOf(process->incarnation())});
  };
  if (!EndsEarly(facts_.attempt.goal)) {
    for (const auto& member : facts_.training.view().workers()) {
      add(facts_.members.Find(member.process().incarnation()));
    }
    return evaluators;
  }
  for (const Process* worker : facts_.ReadyWorkers()) add(worker);
  if (facts_.job().training().execution() != v1::TrainingSpec::SERVER) return evaluators;
  std::vector<Evaluator> former;
  absl::c_copy_if(evaluators, std::back_inserter(former),
                  [](const Evaluator& evaluator) { return evaluator.speed > 0; });
  return former.empty() ? evaluators : former;
}

void Evaluations::OnResult(uint64_t worker, const v1::EvaluationResult& result) {
  if (evaluation_.has_value()) evaluation_->OnResult(worker, result);
}

void Evaluations::OnMetricValues(uint64_t worker, const v1::MetricValues& values) {
  if (evaluation_.has_value()) evaluation_->OnMetricValues(worker, values);
}

void Evaluations::ResendTo(const Process& worker) {
  if (!evaluation_.has_value()) return;
  for (v1::Evaluate& owed : evaluation_->OwedBy(worker.incarnation())) {
    v1::CoordinatorMessage message;
    *message.mutable_evaluate() = std::move(owed);
    output_.Send(worker, std::move(message));
  }
  for (v1::ComputeMetrics& owed : evaluation_->MetricsOwedBy(worker.incarnation())) {
    v1::CoordinatorMessage message;
    *message.mutable_compute_metrics() = std::move(owed);
    output_.Send(worker, std::move(message));
  }
}

void Evaluations::Finish(absl::Time now) {
  SLUICE_DCHECK(pending_ && evaluation_->snapshot_id() == snapshot_->id,
                "the evaluation is of the open snapshot");
  const Evaluation evaluation = *std::move(evaluation_);
  evaluation_.reset();
  pending_ = false;
  const TrainingMode& mode = facts_.mode();
  schedule_.Done(mode.InStep() ? mode.ScheduleStepOf(*snapshot_) : mode.ScheduleStep(), now);

  if (evaluation.failed()) {
    output_.Warn(
        absl::StrCat("no evaluation at step ", snapshot_->step, ": ", evaluation.last_error()),
        now);
    final_given_up_ = snapshot_->final;
    v1::Evaluation nothing;
    nothing.set_step(snapshot_->step);
    nothing.set_loss(std::numeric_limits<double>::quiet_NaN());
    if (evaluation.diverged()) Decide(nothing, now);
    if (EvaluationsDecide(facts_.job())) {
      decisions_.set_step(std::max(decisions_.step(), snapshot_->step));
    }
    return;
  }

  if (!evaluation.note().empty()) {
    output_.Warn(absl::StrCat("evaluation at step ", snapshot_->step, ": ", evaluation.note()),
                 now);
  }
  const bool reported = last_result_.has_value() && last_result_->step() == snapshot_->step;
  if (evaluation.has_first() && !reported) Note(evaluation.FirstResult(now), now);

  v1::Evaluation result = evaluation.Result(now);
  result.set_final(snapshot_->final && EndsWithEvaluation(facts_.attempt.goal));
  Note(std::move(result), now);
  Decide(*last_result_, now);

  if (facts_.attempt.goal == Goal::kNone &&
      TargetReached(facts_.job().training().target(), *last_result_)) {
    target_reached_ = true;
  }
}

void Evaluations::Decide(const v1::Evaluation& result, absl::Time now) {
  if (facts_.attempt.goal != Goal::kNone || !EvaluationsDecide(facts_.job())) return;
  v1::EvaluationDecisions after = DecideAfter(facts_.job(), decisions_, result);
  for (std::string& sentence : NewDecisions(facts_.job(), decisions_, after)) {
    output_.Info(std::move(sentence), now);
  }
  decisions_ = std::move(after);
}

void Evaluations::Note(v1::Evaluation result, absl::Time now) {
  // All samples have the same number of tokens, so the mean over samples is the mean over tokens.
  const double perplexity = std::exp(result.loss());
  if (IsLanguageModel(facts_.job()) && std::isfinite(perplexity)) {
    result.set_has_perplexity(true);
    result.set_perplexity(perplexity);
  }
  const TrainingMode& mode = facts_.mode();
  SLUICE_DCHECK(result.step() == snapshot_->step, "the result is of the open snapshot's version");
  const uint64_t samples = mode.synchronous() ? mode.SamplesOf(*snapshot_) : mode.Samples();
  result.set_epoch(facts_.attempt.model.length->EpochsIn(samples));

  std::string message =
      absl::StrFormat("evaluation at step %d: loss %.4f", result.step(), result.loss());
  if (result.has_accuracy()) {
    absl::StrAppendFormat(&message, ", accuracy %.2f %%", result.accuracy());
  }
  if (result.has_perplexity()) {
    absl::StrAppendFormat(&message, ", perplexity %.2f", result.perplexity());
  }
  for (const v1::Metric& metric : result.metrics()) {
    absl::StrAppendFormat(&message, ", %s %.6g", metric.name(), metric.value());
  }
  output_.events().AddEvaluation(result, std::move(message), now);
  last_result_ = std::move(result);
}

bool Evaluations::FinalDone(uint64_t version) const {
  const bool evaluated =
      last_result_.has_value() && last_result_->step() == version &&
      last_result_->samples() == facts_.attempt.model.ready->evaluation_samples();
  return evaluated || final_given_up_ || facts_.EvaluationSamples() == 0;
}

absl::Time Evaluations::NextDeadline() const {
  return evaluation_.has_value() ? evaluation_->NextDeadline() : absl::InfiniteFuture();
}

}  // namespace sluice::coordinator
