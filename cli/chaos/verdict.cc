#include "cli/chaos/verdict.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/common/exit_codes.h"
#include "cli/common/progress_text.h"

namespace sluice::chaos {
namespace {

using Json = nlohmann::json;

std::string SecondsText(absl::Duration duration) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
}

std::string SecondsText(const std::optional<absl::Duration>& duration) {
  return duration.has_value() ? SecondsText(*duration) : "-";
}

// Why the final loss does not pass; empty: it does.
std::string LossProblem(const Findings& findings) {
  if (!findings.tolerance.has_value() || !findings.baseline.has_value()) return "";
  const std::optional<double> loss = FinalLoss(findings.run.result.progress);
  const std::optional<double> expected = FinalLoss(findings.baseline->result.progress);
  if (!loss.has_value() || !expected.has_value()) {
    return "there is no final loss to compare with the baseline's";
  }
  const double limit = *expected + std::abs(*expected) * *findings.tolerance / 100;
  if (*loss <= limit) return "";
  return absl::StrFormat("the final loss %s is more than %g %% above the baseline's %s",
                         cli::LossText(*loss), *findings.tolerance, cli::LossText(*expected));
}

// Whether the baseline did not succeed, and no other run followed.
bool EndsWithBaseline(const Findings& findings) {
  return findings.baseline.has_value() && !findings.baseline->Succeeded();
}

std::vector<std::string> TableLines(const RunReport& run) {
  std::vector<std::vector<std::string>> rows = {{"#", "time", "fault", "at step", "recovered",
                                                 "caught up", "all back", "longest stall",
                                                 "recomputed"}};
  for (size_t i = 0; i < run.faults.size(); ++i) {
    const FaultRecord& fault = run.faults[i];
    rows.push_back({absl::StrCat(i + 1), SinceText(fault.at, run.began), FaultText(fault.plan),
                    cli::CountText(fault.step), SecondsText(fault.recovered),
                    SecondsText(fault.caught_up), SecondsText(fault.all_back),
                    SecondsText(fault.longest_stall),
                    cli::CountedText(fault.recomputed_samples, "sample")});
  }

  std::vector<size_t> widths(rows[0].size(), 0);
  for (const std::vector<std::string>& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }

  constexpr size_t kFaultColumn = 2;  // the only one that is text
  std::vector<std::string> lines;
  for (const std::vector<std::string>& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, " ", i == kFaultColumn ? row[i] : padding,
                      i == kFaultColumn ? padding : row[i], i + 1 < row.size() ? " " : "");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string StepsText(const Findings& findings) {
  const double speed = findings.run.pace.StepsPerSecond();
  std::string text = absl::StrFormat("%.4g with faults", speed);
  if (!findings.baseline.has_value()) return text;
  const double undisturbed = findings.baseline->pace.StepsPerSecond();
  absl::StrAppendFormat(&text, ", %.4g without", undisturbed);
  if (undisturbed > 0) absl::StrAppendFormat(&text, " (%.0f %%)", 100 * speed / undisturbed);
  return text;
}

// "0.0712, accuracy 97.85 %"
std::string MetricText(const v1::JobProgress& progress) {
  const std::optional<double> loss = FinalLoss(progress);
  std::vector<std::string> parts;
  if (loss.has_value()) parts.push_back(absl::StrCat("loss ", cli::LossText(*loss)));

  const v1::Evaluation& evaluation = progress.last_evaluation();
  if (evaluation.has_accuracy()) {
    parts.push_back(absl::StrCat("accuracy ", cli::PercentText(evaluation.accuracy())));
  }
  if (evaluation.has_perplexity()) {
    parts.push_back(absl::StrCat("perplexity ", cli::PerplexityText(evaluation.perplexity())));
  }

  return parts.empty() ? "none" : absl::StrJoin(parts, ", ");
}

std::string MeasureLine(const char* name, const std::string& text) {
  return absl::StrFormat("  %-12s %s", name, text);
}

// The table of faults and the measurements.
std::vector<std::string> RunLines(const Findings& findings) {
  std::vector<std::string> lines;
  const RunReport& run = findings.run;
  if (!run.faults.empty()) {
    lines.push_back(absl::StrCat("Faults of seed ", findings.seed));
    for (std::string& line : TableLines(run)) lines.push_back(std::move(line));
  }

  const auto add = [&](const char* name, const std::string& text) {
    lines.push_back(MeasureLine(name, text));
  };
  add("steps/s", StepsText(findings));
  add("attempts",
      absl::StrCat(run.pace.attempts, "; restarts of processes: ", run.result.restarts));
  add("recomputed", cli::CountedText(run.pace.recomputed_samples, "sample"));

  std::string result = MetricText(run.result.progress);
  if (findings.baseline.has_value()) {
    absl::StrAppend(&result, "; without faults ", MetricText(findings.baseline->result.progress));
  }
  add("result", result);

  if (findings.comparison.has_value() && findings.comparison->equal()) {
    add("parameters",
        absl::StrCat("all bytes of ", cli::CountedText(findings.comparison->tensors, "tensor"),
                     " and of the optimizer's state equal the baseline's"));
  }
  for (const std::string& failure : run.unexplained) add("unexplained", failure);
  return lines;
}

Json PaceJson(const RunReport& run) {
  Json json = {{"steps", run.pace.steps},
               {"trainingSeconds", absl::ToDoubleSeconds(run.pace.training)},
               {"stepsPerSecond", run.pace.StepsPerSecond()},
               {"longestStallSeconds", absl::ToDoubleSeconds(run.pace.longest_stall)},
               {"attempts", run.pace.attempts},
               {"restarts", run.result.restarts},
               {"recomputedSamples", run.pace.recomputed_samples},
               {"outcome", std::string(cli::OutcomeName(run.result.outcome.kind))}};

  if (const auto loss = FinalLoss(run.result.progress)) json["finalLoss"] = *loss;
  const v1::Evaluation& evaluation = run.result.progress.last_evaluation();
  if (evaluation.has_accuracy()) json["accuracy"] = evaluation.accuracy();
  if (evaluation.has_perplexity()) json["perplexity"] = evaluation.perplexity();
  return json;
}

}  // namespace

int Verdict::exit_code() const {
  if (interrupted) return cli::kExitInterrupted;
  return passed ? +kExitOk : +kExitFailed;
}

std::optional<double> FinalLoss(const v1::JobProgress& progress) {
  if (progress.has_last_evaluation()) return progress.last_evaluation().loss();
  if (progress.has_loss()) return progress.loss();
  return std::nullopt;
}

Verdict Judge(const Findings& findings) {
  Verdict verdict;
  const RunReport& run = EndsWithBaseline(findings) ? *findings.baseline : findings.run;
  const std::string where = EndsWithBaseline(findings) ? "without faults, " : "";

  const policy::Outcome& outcome = run.result.outcome;
  if (run.problem.has_value()) {
    verdict.problems.push_back(absl::StrCat(where, *run.problem));
  } else if (outcome.kind == policy::OutcomeKind::kFailed) {
    verdict.problems.push_back(absl::StrCat(where, "the job failed: ", outcome.reason));
  } else if (outcome.kind == policy::OutcomeKind::kSuspended) {
    verdict.interrupted = true;
    return verdict;
  } else if (findings.run.faults.empty()) {
    verdict.problems.push_back(absl::StrFormat(
        "no fault was injected: the job ended after %s of training; make --every shorter, or the "
        "training longer",
        SecondsText(findings.run.pace.training)));
  }

  if (verdict.problems.empty()) {
    if (findings.comparison.has_value() && !findings.comparison->equal()) {
      verdict.problems.push_back(findings.comparison->difference);
    }
    if (std::string problem = LossProblem(findings); !problem.empty()) {
      verdict.problems.push_back(std::move(problem));
    }
  }

  verdict.passed = verdict.problems.empty();
  return verdict;
}

std::string SinceText(absl::Time time, absl::Time began) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(time - began));
}

std::vector<std::string> ReportLines(const Findings& findings, const Verdict& verdict) {
  std::vector<std::string> lines;
  if (!EndsWithBaseline(findings)) lines = RunLines(findings);

  lines.push_back(MeasureLine("logs", findings.logs));
  if (verdict.interrupted) {
    lines.push_back("Interrupted: no verdict");
    return lines;
  }

  lines.push_back(MeasureLine("repeat", findings.repeat));
  if (verdict.passed) {
    lines.push_back(absl::StrCat("Passed: ", findings.job, " survived ",
                                 cli::CountedText(findings.run.faults.size(), "fault")));
  }
  for (const std::string& problem : verdict.problems) {
    lines.push_back(absl::StrCat("Failed: ", problem));
  }
  return lines;
}

nlohmann::json FaultJson(const FaultRecord& fault, size_t number, absl::Time began) {
  Json targets = Json::array();
  for (size_t i = 0; i < fault.plan.targets.size(); ++i) {
    targets.push_back(
        {{"name", policy::ReplicaName(fault.plan.targets[i])}, {"pid", fault.pids[i]}});
  }

  Json json = {{"number", number},
               {"fault", FaultText(fault.plan)},
               {"targets", std::move(targets)},
               {"seconds", absl::ToDoubleSeconds(fault.at - began)},
               {"step", fault.step},
               {"longestStallSeconds", absl::ToDoubleSeconds(fault.longest_stall)},
               {"attempts", fault.attempts},
               {"recomputedSamples", fault.recomputed_samples}};

  const auto add = [&](const char* name, const std::optional<absl::Duration>& duration) {
    if (duration.has_value()) json[name] = absl::ToDoubleSeconds(*duration);
  };
  add("recoveredSeconds", fault.recovered);
  add("caughtUpSeconds", fault.caught_up);
  add("allBackSeconds", fault.all_back);
  return json;
}

nlohmann::json ReportJson(const Findings& findings, const Verdict& verdict) {
  Json json = {{"job", findings.job},
               {"seed", findings.seed},
               {"verdict", verdict.interrupted ? "Interrupted"
                           : verdict.passed    ? "Passed"
                                               : "Failed"},
               {"exitCode", verdict.exit_code()},
               {"problems", verdict.problems},
               {"logs", findings.logs},
               {"repeat", findings.repeat}};

  if (findings.baseline.has_value()) json["baseline"] = PaceJson(*findings.baseline);
  if (EndsWithBaseline(findings)) return json;

  json["run"] = PaceJson(findings.run);
  json["unexplained"] = findings.run.unexplained;
  json["faults"] = Json::array();
  for (size_t i = 0; i < findings.run.faults.size(); ++i) {
    json["faults"].push_back(FaultJson(findings.run.faults[i], i + 1, findings.run.began));
  }
  if (findings.comparison.has_value()) json["parametersEqual"] = findings.comparison->equal();
  return json;
}

}  // namespace sluice::chaos
