#include "operator/policy/judgements.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/common/check.h"

namespace sluice::policy {

Outcome Succeeded(const Limits& limits) {
  return {OutcomeKind::kSucceeded, "Completed", "", std::nullopt, {}, limits.leave_grace};
}

Outcome Suspended(std::string reason, absl::Duration leave_grace) {
  return {OutcomeKind::kSuspended, "Suspended", std::move(reason), std::nullopt, {}, leave_grace};
}

Outcome Failed(std::string code, std::string reason, std::optional<Replica> blamed) {
  SLUICE_DCHECK(!code.empty() && !reason.empty(), "a failure has a word and a sentence for it");
  return {OutcomeKind::kFailed, std::move(code), std::move(reason), blamed, {}, {}};
}

std::optional<Judgement> CoordinatorsReport(const Situation& s) {
  absl::string_view reason = s.world.phase_reason;
  Outcome outcome;

  switch (s.world.phase) {
    case v1::JobProgress::SUCCEEDED:
      outcome = Succeeded(s.limits);
      if (s.world.phase_code.empty()) break;
      outcome.code = s.world.phase_code;
      outcome.reason = s.world.phase_reason;
      break;
    case v1::JobProgress::FAILED:
      outcome = Failed(s.world.phase_code.empty() ? "TrainingFailed" : s.world.phase_code,
                       reason.empty() ? "the coordinator gave no reason" : std::string(reason));
      // The coordinator has informed every process; it still serves its termination message for a
      // moment.
      outcome.leave_grace = s.limits.failed_grace;
      break;
    case v1::JobProgress::SUSPENDED:
      // A coordinator that got SIGTERM suspends the job too; then a new one continues.
      if (!s.plan.suspend) return std::nullopt;
      // Otherwise it has saved a checkpoint.
      if (!absl::ConsumePrefix(&reason, "suspended; ")) reason = "";
      outcome = Suspended(std::string(reason), s.limits.leave_grace);
      break;
    default:
      return std::nullopt;
  }
  return Judgement{s.now, std::move(outcome)};
}

namespace {

// The coordinator has answered long enough after the end of the process to have received its last
// message, and has never known the process: then it has no reason to give.
bool NeverRegistered(const Situation& s, const Replica& replica) {
  constexpr absl::Duration kLastMessage = absl::Seconds(1);
  const ProcessObservation* const process = s.world.Find(replica);
  if (process == nullptr || process->running || process->ready ||
      process->registration != Registration::kMissing ||
      process->expelled_after < absl::InfiniteFuture()) {
    return false;
  }

  const auto kept = s.memory.replicas.find(replica);
  const bool was_registered =
      kept != s.memory.replicas.end() && kept->second.registered_instance == process->instance;
  return !was_registered && s.world.last_progress_at >= process->ended + kLastMessage;
}

}  // namespace

std::optional<Judgement> UnexplainedFailure(const Situation& s) {
  if (!s.memory.unexplained.has_value()) return std::nullopt;
  const Outcome& failure = *s.memory.unexplained;
  SLUICE_DCHECK(failure.kind == OutcomeKind::kFailed && failure.blamed.has_value(),
                "the failure of a process waits for the coordinator's reason");
  const bool reason_may_come =
      s.world.Running(kCoordinator) && !NeverRegistered(s, *failure.blamed);
  return Judgement{reason_may_come ? failure.since + s.limits.failed_grace : s.now, failure};
}

bool ShardsMayHoldSteps(const Situation& s) {
  const bool trained =
      s.memory.worked.count(v1::SHARD) > 0 && s.memory.worked.count(v1::WORKER) > 0;
  return trained &&
         std::any_of(s.world.processes.begin(), s.world.processes.end(), [](const auto& entry) {
           return entry.first.role == v1::SHARD && entry.second.running && entry.second.begun;
         });
}

std::optional<Judgement> FailedSuspension(const Situation& s) {
  if (!s.plan.suspend) return std::nullopt;

  SLUICE_DCHECK(s.memory.suspending_since <= s.now, "a suspension began when it was first seen");

  if (!s.world.Running(kCoordinator) || !s.world.Find(kCoordinator)->begun) {
    // A change of size or mode waits for its checkpoint without a limit, but not for a coordinator
    // that cannot start.
    const bool limited = s.plan.suspend_timeout < absl::InfiniteDuration();
    const absl::Duration wait = limited ? s.plan.suspend_timeout : s.plan.start_timeout;
    const absl::Time at = ShardsMayHoldSteps(s) ? s.memory.suspending_since + wait : s.now;
    return Judgement{
        at, Suspended("there was no coordinator to write a checkpoint", absl::ZeroDuration())};
  }

  return Judgement{s.memory.suspending_since + s.plan.suspend_timeout,
                   Suspended(absl::StrCat("the checkpoint took longer than ",
                                          absl::FormatDuration(s.plan.suspend_timeout)),
                             absl::ZeroDuration())};
}

std::optional<Judgement> ActiveDeadline(const Situation& s) {
  if (!s.plan.active_deadline.has_value()) return std::nullopt;
  SLUICE_DCHECK(s.memory.active_since < absl::InfiniteFuture(), "the first decision sets it");
  return Judgement{s.memory.active_since + *s.plan.active_deadline,
                   Failed("DeadlineExceeded",
                          absl::StrCat("the job was active for longer than activeDeadlineSeconds (",
                                       absl::FormatDuration(*s.plan.active_deadline), ")"))};
}

std::optional<Judgement> ProgressDeadline(const Situation& s) {
  if (!s.plan.progress_deadline.has_value() || s.plan.suspend) return std::nullopt;
  return Judgement{
      std::max(s.memory.active_since, s.world.last_step_at) + *s.plan.progress_deadline,
      Failed("ProgressDeadlineExceeded",
             absl::StrCat("the job completed no step for ",
                          absl::FormatDuration(*s.plan.progress_deadline),
                          " (progressDeadlineSeconds)"))};
}

}  // namespace sluice::policy
