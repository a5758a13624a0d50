#include "services/coordinator/core/evaluation/decisions.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "services/coordinator/core/evaluation/evaluation.h"

namespace sluice::coordinator {
namespace {

// A value better than this bound is an improvement.
double Bound(double best, bool maximize, double threshold, bool relative) {
  if (!relative) return maximize ? best + threshold : best - threshold;
  // For a positive value, the bits of PyTorch's best * (1 - threshold).
  const bool grows = maximize == (best >= 0);
  return grows ? best * (1 + threshold) : best * (1 - threshold);
}

// Notes the value. True: it is an improvement.
bool Note(double value, uint64_t step, bool maximize, double threshold, bool relative,
          v1::MetricHistory* history) {
  const bool improved =
      std::isfinite(value) &&
      (!history->has_best() ||
       IsBetter(value, Bound(history->best(), maximize, threshold, relative), maximize));
  if (!improved) {
    history->set_without_improvement(history->without_improvement() + 1);
    return false;
  }
  history->set_has_best(true);
  history->set_best(value);
  history->set_best_step(step);
  history->set_without_improvement(0);
  return true;
}

double ValueOf(const v1::Evaluation& evaluation, absl::string_view metric) {
  return MetricOf(evaluation, metric).value_or(std::numeric_limits<double>::quiet_NaN());
}

// As PyTorch's ReduceLROnPlateau.step.
void DecideFactor(const v1::OptimizerSpec::Plateau& plateau, const v1::Evaluation& evaluation,
                  v1::EvaluationDecisions* decisions) {
  v1::MetricHistory& history = *decisions->mutable_plateau();
  Note(ValueOf(evaluation, plateau.metric()), evaluation.step(),
       Maximizes(plateau.metric(), plateau.direction()), plateau.threshold(),
       plateau.relative_threshold(), &history);
  if (history.cooldown() > 0) {
    history.set_cooldown(history.cooldown() - 1);
    history.set_without_improvement(0);
  }
  if (history.without_improvement() <= plateau.patience()) return;
  const double factor = LearningRateFactor(*decisions);
  decisions->set_learning_rate_factor(
      std::min(factor, std::max(factor * plateau.factor(), plateau.min_factor())));
  history.set_cooldown(plateau.cooldown());
  history.set_without_improvement(0);
}

// "loss has not improved on 0.0321 (step 900) for 3 evaluations".
std::string NotImproved(const std::string& metric, const v1::MetricHistory& history,
                        uint64_t evaluations) {
  const std::string times =
      absl::StrCat(evaluations, evaluations == 1 ? " evaluation" : " evaluations");
  if (!history.has_best()) {
    return absl::StrCat(metric, " has had no finite value in ", times);
  }
  return absl::StrFormat("%s has not improved on %.6g (step %d) for %s", metric, history.best(),
                         history.best_step(), times);
}

bool PatienceIsOver(const v1::TrainingSpec& training, const v1::MetricHistory& history) {
  return training.has_stopping() &&
         history.without_improvement() >= std::max<uint64_t>(training.stopping().patience(), 1);
}

std::string StopReason(const v1::TrainingSpec::Stopping& stopping, uint64_t step,
                       const v1::MetricHistory& history) {
  return absl::StrCat("stopped at step ", step, ": ",
                      NotImproved(stopping.metric(), history, history.without_improvement()));
}

bool IsSame(const v1::ComparedMetric& a, const v1::ComparedMetric& b) {
  return a.name() == b.name() && a.maximize() == b.maximize();
}

}  // namespace

bool EvaluationsDecide(const v1::JobSpec& job) {
  return job.training().has_stopping() || job.optimizer().has_plateau();
}

bool IsBetter(double value, double best, bool maximize) {
  if (!std::isfinite(value) || !std::isfinite(best)) return false;
  return maximize ? value > best : value < best;
}

bool Maximizes(absl::string_view metric, v1::Direction direction) {
  if (direction != v1::DIRECTION_UNSPECIFIED) return direction == v1::MAXIMIZE;
  return metric == "accuracy";
}

double LearningRateFactor(const v1::EvaluationDecisions& decisions) {
  return decisions.learning_rate_factor() == 0 ? 1 : decisions.learning_rate_factor();
}

v1::EvaluationDecisions DecideAfter(const v1::JobSpec& job, const v1::EvaluationDecisions& before,
                                    const v1::Evaluation& evaluation) {
  if (evaluation.step() <= before.step()) return before;
  v1::EvaluationDecisions after = before;
  after.set_step(evaluation.step());
  if (job.optimizer().has_plateau()) {
    DecideFactor(job.optimizer().plateau(), evaluation, &after);
  }
  if (job.training().has_stopping()) {
    const v1::TrainingSpec::Stopping& stopping = job.training().stopping();
    const double value = ValueOf(evaluation, stopping.metric());
    Note(value, evaluation.step(), Maximizes(stopping.metric(), stopping.direction()),
         stopping.min_delta(), /*relative=*/false, after.mutable_stopping());
    if (PatienceIsOver(job.training(), after.stopping())) {
      after.set_stop_reason(StopReason(stopping, evaluation.step(), after.stopping()));
      if (!std::isfinite(value)) {
        absl::StrAppend(after.mutable_stop_reason(), "; it is ", value, " at step ",
                        evaluation.step());
      }
    }
  }
  return after;
}

void NoteComparedMetrics(const v1::JobSpec& job, v1::CheckpointIndex* index) {
  const auto note = [](const auto& compared, v1::ComparedMetric* metric) {
    metric->set_name(compared.metric());
    metric->set_maximize(Maximizes(compared.metric(), compared.direction()));
  };
  if (job.optimizer().has_plateau()) note(job.optimizer().plateau(), index->mutable_plateau());
  if (job.training().has_stopping()) note(job.training().stopping(), index->mutable_stopping());
  if (job.checkpoint().has_keep_best()) {
    note(job.checkpoint().keep_best(), index->mutable_keep_best());
  }
}

v1::EvaluationDecisions DecisionsOf(const v1::JobSpec& job, const v1::CheckpointIndex& index) {
  v1::CheckpointIndex current;
  NoteComparedMetrics(job, &current);
  v1::EvaluationDecisions decisions = index.decisions();
  if (index.has_plateau() && !IsSame(index.plateau(), current.plateau())) {
    decisions.clear_plateau();
  }
  if (index.has_stopping() && !IsSame(index.stopping(), current.stopping())) {
    decisions.clear_stopping();
  }
  return decisions;
}

v1::EvaluationDecisions DecideAgain(const v1::JobSpec& job, v1::EvaluationDecisions decisions) {
  if (!job.optimizer().has_plateau()) {
    decisions.clear_plateau();
    decisions.clear_learning_rate_factor();
  }
  if (!job.training().has_stopping()) decisions.clear_stopping();
  if (!PatienceIsOver(job.training(), decisions.stopping())) {
    decisions.clear_stop_reason();
  } else if (decisions.stop_reason().empty()) {
    decisions.set_stop_reason(
        StopReason(job.training().stopping(), decisions.step(), decisions.stopping()));
  }
  return decisions;
}

std::vector<std::string> NewDecisions(const v1::JobSpec& job, const v1::EvaluationDecisions& before,
                                      const v1::EvaluationDecisions& after) {
  std::vector<std::string> sentences;
  const double factor = LearningRateFactor(after);
  if (factor != LearningRateFactor(before)) {
    const v1::OptimizerSpec::Plateau& plateau = job.optimizer().plateau();
    sentences.push_back(absl::StrFormat(
        "learning rate × %.6g from step %d: %s; its factor is now %.6g",
        factor / LearningRateFactor(before), after.step(),
        NotImproved(plateau.metric(), after.plateau(), plateau.patience() + 1), factor));
  }
  if (after.stop_reason() != before.stop_reason() && !after.stop_reason().empty()) {
    sentences.push_back(after.stop_reason());
  }
  return sentences;
}

std::string MissingSamples(const v1::JobSpec& job, const v1::Ready& ready) {
  const char* const field = job.optimizer().has_plateau()      ? "spec.optimizer.plateau"
                            : job.training().has_stopping()    ? "spec.training.stopping"
                            : job.checkpoint().has_keep_best() ? "spec.checkpoint.keepBest"
                                                               : nullptr;
  if (field == nullptr || ready.evaluation_samples() > 0) return "";
  return absl::StrCat(
      field, " needs held-out samples, and the workers have none: the program ",
      "gives them with the samples to train on, or spec.data.evaluation names them");
}

}  // namespace sluice::coordinator
