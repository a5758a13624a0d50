// Judgements on a whole job: whether it ends, when and how. Each is a pure function that detects
// one kind of end; the first that detects an end determines the job's outcome.
#ifndef SLUICE_OPERATOR_POLICY_JUDGEMENTS_H_
#define SLUICE_OPERATOR_POLICY_JUDGEMENTS_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "operator/policy/policy.h"

namespace sluice::policy {

// The inputs of a judgement. `memory` has no outcome yet.
struct Situation {
  const JobPlan& plan;
  const Limits& limits;
  const Observation& world;
  const Memory& memory;
  absl::Time now;
};

// If nothing changes until `at`, the job ends with this outcome then.
struct Judgement {
  absl::Time at;
  Outcome outcome;
};
using Judge = std::optional<Judgement> (*)(const Situation&);

// Whether shards may hold steps that no checkpoint has. Only a coordinator can have them saved.
bool ShardsMayHoldSteps(const Situation& situation);

// The coordinator has reported the end.
std::optional<Judgement> CoordinatorsReport(const Situation& situation);
// A worker or shard has failed (Memory::unexplained), and the coordinator gives no reason.
std::optional<Judgement> UnexplainedFailure(const Situation& situation);
// The checkpoint of a requested suspension cannot be written, or takes too long.
std::optional<Judgement> FailedSuspension(const Situation& situation);
// The job has been active, or has completed no step, for as long as the manifest allows. Without
// such a limit there is no judgement.
std::optional<Judgement> ActiveDeadline(const Situation& situation);
std::optional<Judgement> ProgressDeadline(const Situation& situation);

// Outcomes; `since` is set when they come true.
Outcome Succeeded(const Limits& limits);
Outcome Suspended(std::string reason, absl::Duration leave_grace);
Outcome Failed(std::string code, std::string reason, std::optional<Replica> blamed = std::nullopt);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_JUDGEMENTS_H_
