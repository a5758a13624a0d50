#include "operator/policy/judgements.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace sluice::policy {
namespace {

// Why a coordinator that suspended the job saved no checkpoint; empty: it saved one.
std::string WhyNoCheckpoint(absl::string_view reason) {
  return absl::ConsumePrefix(&reason, "suspended; ") ? std::string(reason) : "";
}

Judgement Ends(Outcome outcome) { return {std::move(outcome), absl::InfiniteFuture()}; }
Judgement NotBefore(absl::Time time) { return {std::nullopt, time}; }

}  // namespace

const ProcessObservation* Situation::Running(const Replica& replica) const {
  const auto found = world.processes.find(replica);
  return found != world.processes.end() && found->second.running ? &found->second : nullptr;
}

Outcome Situation::Succeeded() const {
  return {OutcomeKind::kSucceeded, "Completed", "", std::nullopt, now, limits.leave_grace};
}

Outcome Situation::Suspended(std::string reason, absl::Duration leave_grace) const {
  return {OutcomeKind::kSuspended, "Suspended", std::move(reason), std::nullopt, now, leave_grace};
}

Outcome Situation::Failed(std::string code, std::string reason,
                          std::optional<Replica> blamed) const {
  return {OutcomeKind::kFailed, std::move(code), std::move(reason), blamed, now,
          absl::ZeroDuration()};
}

std::optional<Judgement> CoordinatorsReport(const Situation& s) {
  const Observation& world = s.world;
  Outcome outcome;
  switch (world.phase) {
    case v1::JobProgress::SUCCEEDED:
      outcome = s.Succeeded();
      if (world.phase_code.empty()) return Ends(std::move(outcome));
      outcome.code = world.phase_code;
      outcome.reason = world.phase_reason;
      return Ends(std::move(outcome));

    case v1::JobProgress::FAILED:
      outcome = s.Failed(
          world.phase_code.empty() ? "TrainingFailed" : world.phase_code,
          world.phase_reason.empty() ? "the coordinator gave no reason" : world.phase_reason);
      // The coordinator has informed every process; it still serves its termination message for a
      // moment.
      outcome.leave_grace = s.limits.failed_grace;
      return Ends(std::move(outcome));

    case v1::JobProgress::SUSPENDED:
      // A coordinator that got SIGTERM suspends the job too; then a new one continues.
      if (!s.plan.suspend) return std::nullopt;
      return Ends(s.Suspended(WhyNoCheckpoint(world.phase_reason), s.limits.leave_grace));

    default:
      return std::nullopt;
  }
}

std::optional<Judgement> UnexplainedFailure(const Situation& s) {
  if (!s.memory.unexplained.has_value()) return std::nullopt;
  const absl::Time patience = s.memory.unexplained->since + s.limits.failed_grace;
  if (s.Running(kCoordinator) != nullptr && s.now < patience) return NotBefore(patience);

  Outcome outcome = *s.memory.unexplained;
  outcome.since = s.now;
  return Ends(std::move(outcome));
}

std::optional<Judgement> FailedSuspension(const Situation& s) {
  if (!s.plan.suspend) return std::nullopt;
  const ProcessObservation* coordinator = s.Running(kCoordinator);
  if (coordinator == nullptr || !coordinator->begun) {
    return Ends(
        s.Suspended("there was no coordinator to write a checkpoint", absl::ZeroDuration()));
  }

  const absl::Time patience = s.memory.suspending_since + s.plan.suspend_timeout;
  if (s.now < patience) return NotBefore(patience);
  return Ends(s.Suspended(absl::StrCat("the checkpoint took longer than ",
                                       absl::FormatDuration(s.plan.suspend_timeout)),
                          absl::ZeroDuration()));
}

std::optional<Judgement> ActiveDeadline(const Situation& s) {
  if (!s.plan.active_deadline.has_value()) return std::nullopt;
  const absl::Time deadline = s.memory.active_since + *s.plan.active_deadline;
  if (s.now < deadline) return NotBefore(deadline);
  return Ends(s.Failed("DeadlineExceeded",
                       absl::StrCat("the job was active for longer than activeDeadlineSeconds (",
                                    absl::FormatDuration(*s.plan.active_deadline), ")")));
}

std::optional<Judgement> ProgressDeadline(const Situation& s) {
  if (!s.plan.progress_deadline.has_value() || s.plan.suspend) return std::nullopt;
  const absl::Time deadline =
      std::max(s.memory.active_since, s.world.last_step_at) + *s.plan.progress_deadline;
  if (s.now < deadline) return NotBefore(deadline);
  return Ends(s.Failed(
      "ProgressDeadlineExceeded",
      absl::StrCat("the job completed no step for ",
                   absl::FormatDuration(*s.plan.progress_deadline), " (progressDeadlineSeconds)")));
}

}  // namespace sluice::policy
