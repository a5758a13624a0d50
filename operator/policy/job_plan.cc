#include "operator/policy/job_plan.h"

namespace sluice::policy {
namespace {

// Added to TimeoutSpec.heartbeat_timeout, for the latency of an answer and for a busy machine.
constexpr absl::Duration kHeartbeatTimeoutMargin = absl::Seconds(2);
constexpr double kDefaultHeartbeatTimeout = 5;
constexpr double kDefaultStart = 60;
// A user's own program may need much time before it registers.
constexpr double kDefaultCommandStart = 600;

}  // namespace

JobPlan PlanOf(const v1::JobSpec& job) {
  const v1::TimeoutSpec& timeouts = job.timeouts();
  const auto seconds = [](double value, double otherwise) {
    return absl::Seconds(value > 0 ? value : otherwise);
  };
  JobPlan plan;
  plan.shards = job.parameter_server().replicas();
  plan.workers = job.worker().replicas();
  plan.backoff_limit = job.backoff_limit();
  if (timeouts.suspend_checkpoint() > 0) {
    plan.suspend_timeout = absl::Seconds(timeouts.suspend_checkpoint()) + absl::Seconds(5);
  }
  plan.start_timeout = seconds(timeouts.start(), kDefaultStart);
  plan.worker_start_timeout = seconds(
      timeouts.start(), job.worker().command_size() > 0 ? kDefaultCommandStart : kDefaultStart);
  plan.heartbeat_timeout =
      seconds(timeouts.heartbeat_timeout(), kDefaultHeartbeatTimeout) + kHeartbeatTimeoutMargin;
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
  const Verdict verdict = VerdictOn(exit);
  return verdict == Verdict::kDeath || verdict == Verdict::kHopeless;
}

}  // namespace sluice::policy
