// The verdict and the report of a job under faults. Pure.
#ifndef SLUICE_CLI_CHAOS_VERDICT_H_
#define SLUICE_CLI_CHAOS_VERDICT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/chaos/comparison.h"
#include "cli/chaos/disturber.h"
#include "cli/common/job_result.h"

namespace sluice::chaos {

// One run of the job, with or without faults.
struct RunReport {
  cli::JobResult result;
  absl::Time began;
  Pace pace;
  std::vector<FaultRecord> faults;
  std::vector<std::string> unexplained;
  // Why the run was stopped early; nullopt: it was not.
  std::optional<std::string> problem;

  bool Succeeded() const { return result.outcome.kind == policy::OutcomeKind::kSucceeded; }
};

// Everything that the verdict and the report are made of.
struct Findings {
  std::string job;
  uint64_t seed = 0;
  // The command that repeats the run.
  std::string repeat;
  // Empty if the baseline did not succeed: then no fault was injected.
  RunReport run;
  std::optional<RunReport> baseline;
  // Set if the job has `determinism: BitExact` and a baseline.
  std::optional<Comparison> comparison;
  // How many percent the final loss may be above the baseline's; nullopt: any loss passes.
  std::optional<double> tolerance;
  std::string logs;  // their directory
};

// Whether the job has passed. An interrupted run has no verdict.
struct Verdict {
  bool passed = false;
  bool interrupted = false;
  // Why it did not pass: one sentence each.
  std::vector<std::string> problems;

  // kExitInterrupted without a verdict, else kExitOk or kExitFailed.
  int exit_code() const;
};

// Judges the run: it must succeed, hit faults, and end like its baseline, as far as there is one.
Verdict Judge(const Findings& findings);

// The final loss of the last evaluation, or else of the last steps; nullopt: the job has none.
std::optional<double> FinalLoss(const v1::JobProgress& progress);

// The table of faults, the measurements and the verdict, line by line.
std::vector<std::string> ReportLines(const Findings& findings, const Verdict& verdict);

// The same as JSON, without `type`.
nlohmann::json ReportJson(const Findings& findings, const Verdict& verdict);

// One fault as JSON. `began`: of the run.
nlohmann::json FaultJson(const FaultRecord& fault, size_t number, absl::Time began);

// "12.3 s", of a time since `began`.
std::string SinceText(absl::Time time, absl::Time began);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_VERDICT_H_
