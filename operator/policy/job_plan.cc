#include "operator/policy/job_plan.h"

#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/exit_code.h"
#include "services/protocol/timeouts.h"

namespace sluice::policy {
namespace {

// Added to TimeoutSpec.heartbeat_timeout, for the latency of an answer and for a busy machine.
constexpr absl::Duration kHeartbeatTimeoutMargin = absl::Seconds(2);

}  // namespace

std::string ReplicaName(const Replica& replica) {
  if (replica.role == v1::COORDINATOR) return "coordinator";
  return absl::StrCat(replica.role == v1::SHARD ? "ps-" : "worker-", replica.index);
}

std::string ExitText(const Exit& exit) {
  const std::string reason = exit.reason.empty() ? "" : absl::StrCat(exit.reason, ", ");
  if (exit.signal == 0) return absl::StrCat(reason, "exit code ", exit.code);
  return absl::StrCat(reason, "killed by signal ", exit.signal, " (", strsignal(exit.signal), ")");
}

std::string ReasonOf(const Exit& exit) {
  if (!exit.reason.empty()) return exit.reason;
  if (exit.signal != 0) return "Killed";
  switch (exit.code) {
    case kExitOk:
      return "Completed";
    case kExitUsage:
      return "BadArguments";
    case kExitExpelled:
      return "Expelled";
    case kExitRefused:
      return "Refused";
    case kExitRetry:
      return "TryAgain";
    case kExitMissing:
      return "DataMissing";
    default:
      return "Error";
  }
}

const FailureRule* RuleFor(const std::vector<FailureRule>& rules, const Replica& replica,
                           const Exit& exit) {
  const bool itself = exit.cause == Cause::kItself;
  const int code = exit.signal != 0 ? 128 + exit.signal : exit.code;
  if (itself && code == kExitOk) return nullptr;

  for (const FailureRule& rule : rules) {
    if (!rule.roles.empty() && rule.roles.count(replica.role) == 0) continue;
    // The exit code of a process that was stopped from outside means nothing.
    if ((itself && rule.exit_codes.count(code) > 0) || rule.reasons.count(ReasonOf(exit)) > 0) {
      return &rule;
    }
  }
  return nullptr;
}

ExitVerdict VerdictOn(const Exit& exit) {
  if (exit.cause == Cause::kOutside) return ExitVerdict::kRetry;

  // Stopped by SIGTERM before it could handle the signal: a worker that has only just started, or a
  // program without a handler. Shells report the signal as 128 + SIGTERM.
  if (exit.signal == SIGTERM || (exit.signal == 0 && exit.code == 128 + SIGTERM)) {
    return ExitVerdict::kRetry;
  }

  if (exit.signal != 0) return ExitVerdict::kDeath;
  switch (exit.code) {
    case kExitOk:
      return ExitVerdict::kLeft;
    case kExitExpelled:
      return ExitVerdict::kRetry;
    case kExitMissing:
      return ExitVerdict::kPending;
    case kExitRefused:
      return ExitVerdict::kRefused;
    case kExitFailed:
    case kExitUsage:
    case 126:  // a shell's code for: the program cannot be executed
    case 127:  // a shell's code for: the program was not found
      return ExitVerdict::kHopeless;
    default:
      return ExitVerdict::kDeath;
  }
}

JobPlan PlanOf(const v1::JobSpec& job) {
  const v1::TimeoutSpec& timeouts = job.timeouts();
  JobPlan plan;
  plan.shards = job.parameter_server().replicas();
  plan.workers = job.worker().replicas();
  plan.backoff_limit = job.backoff_limit();
  plan.second_copies = job.parameter_server().copies() > 1;

  if (timeouts.suspend_checkpoint() > 0) {
    plan.suspend_timeout = absl::Seconds(timeouts.suspend_checkpoint()) + absl::Seconds(5);
  }

  plan.start_timeout = TimeoutOr(timeouts.start(), kDefaultStart);
  plan.worker_start_timeout = TimeoutOr(
      timeouts.start(), job.worker().command_size() > 0 ? kDefaultCommandStart : kDefaultStart);
  SLUICE_DCHECK(plan.worker_start_timeout >= plan.start_timeout,
                "a user's own program has no less time to start than ours");

  plan.heartbeat_timeout =
      TimeoutOr(timeouts.heartbeat_timeout(), kDefaultHeartbeatTimeout) + kHeartbeatTimeoutMargin;
  return plan;
}

bool Wanted(const JobPlan& plan, const Replica& replica) {
  if (replica.role == v1::COORDINATOR) return true;
  return replica.index < (replica.role == v1::SHARD ? plan.shards : plan.workers);
}

bool IsFailure(const JobPlan& plan, const Replica& replica, const Exit& exit) {
  if (const FailureRule* rule = RuleFor(plan.failure_rules, replica, exit); rule != nullptr) {
    return rule->action != FailureRule::Action::kIgnore;
  }
  const ExitVerdict verdict = VerdictOn(exit);
  return verdict == ExitVerdict::kDeath || verdict == ExitVerdict::kHopeless;
}

}  // namespace sluice::policy
