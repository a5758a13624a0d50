#include "cli/common/progress_json.h"

#include <cmath>

namespace sluice::cli {

using Json = nlohmann::json;

Json EvaluationJson(const v1::Evaluation& evaluation) {
  Json json = {{"step", evaluation.step()},
               {"epoch", evaluation.epoch()},
               {"loss", evaluation.loss()},
               {"samples", evaluation.samples()}};

  if (evaluation.has_accuracy()) json["accuracy"] = evaluation.accuracy();
  if (evaluation.has_perplexity()) json["perplexity"] = evaluation.perplexity();

  // JSON has no NaN and no infinity.
  for (const v1::Metric& metric : evaluation.metrics()) {
    json["metrics"][metric.name()] =
        std::isfinite(metric.value()) ? Json(metric.value()) : Json(nullptr);
  }
  return json;
}

Json ProgressJson(const v1::JobProgress& progress) {
  Json json = {{"phase", v1::JobProgress::Phase_Name(progress.phase())},
               {"attempt", progress.attempt()},
               {"step", progress.step()},
               {"totalSteps", progress.total_steps()},
               {"epoch", progress.epoch()},
               {"samples", progress.samples()},
               {"totalSamples", progress.total_samples()},
               {"samplesPerSecond", progress.samples_per_second()}};

  if (progress.has_loss()) json["loss"] = progress.loss();
  if (progress.has_evaluating_step()) json["evaluatingStep"] = progress.evaluating_step();
  if (progress.restored()) json["restoredFromStep"] = progress.restored_from_step();
  return json;
}

Json TotalsJson(const v1::JobProgress& progress) {
  Json json = {{"trainingSeconds", progress.training_seconds()}};
  json["recomputedSamples"] = progress.recomputed_samples();
  json["droppedContributions"] = progress.dropped_contributions();
  json["skippedSteps"] = progress.skipped_steps();
  json["workerSeconds"] = {{"data", progress.data_seconds()},
                           {"compute", progress.compute_seconds()},
                           {"push", progress.push_seconds()},
                           {"wait", progress.wait_seconds()},
                           {"pull", progress.pull_seconds()}};
  json["pushedBytes"] = progress.pushed_bytes();
  json["gradientBytes"] = progress.gradient_bytes();
  json["pulledBytes"] = progress.pulled_bytes();
  json["parameterBytes"] = progress.parameter_bytes();

  if (progress.has_staleness()) {
    json["staleness"] = {{"updates", progress.staleness().updates()},
                         {"mean", progress.staleness().mean()},
                         {"median", progress.staleness().median()},
                         {"percentile95", progress.staleness().percentile_95()},
                         {"largest", progress.staleness().largest()}};
  }

  if (progress.has_last_evaluation()) {
    json["evaluation"] = EvaluationJson(progress.last_evaluation());
  }
  if (progress.checkpoint().has_last()) json["checkpoint"] = progress.checkpoint().directory();
  return json;
}

}  // namespace sluice::cli
