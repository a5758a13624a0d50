// The desired state of a job, from its TrainingJob.
#ifndef SLUICE_OPERATOR_POLICY_JOB_PLAN_H_
#define SLUICE_OPERATOR_POLICY_JOB_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "operator/policy/exit.h"
#include "proto/job.pb.h"

namespace sluice::policy {

struct JobPlan {
  uint32_t shards = 1;
  uint32_t workers = 1;
  uint32_t backoff_limit = 0;  // deaths of shards and of the coordinator that the job survives
  bool suspend = false;
  // The job fails when it has been active for longer than this.
  std::optional<absl::Duration> active_deadline;
  // The job fails when it has completed no step for this long (Observation::last_step_at).
  std::optional<absl::Duration> progress_deadline;
  // How long the checkpoint of a suspension may take.
  absl::Duration suspend_timeout = absl::Seconds(60);
  // The first rule that matches an exit decides; without a match, the built-in verdict does.
  std::vector<FailureRule> failure_rules;

  // An infinite timeout kills no process.
  // A process is killed if it has not registered this long after its start, or still runs this long
  // after it has left. A coordinator is killed if it has not answered this long after its start.
  absl::Duration start_timeout = absl::InfiniteDuration();
  absl::Duration worker_start_timeout = absl::InfiniteDuration();
  // A process that was registered is killed after it has been missing at the answering coordinator
  // for this long. A coordinator is killed this long after its last answer.
  absl::Duration heartbeat_timeout = absl::InfiniteDuration();
  // Whether the backend itself watches the coordinator (Observation::last_progress_at).
  bool watch_coordinator = false;
};

// The plan of a job: its sizes, backoff limit and timeouts. The rest depends on the backend.
JobPlan PlanOf(const v1::JobSpec& job);

// Whether the job should have that replica while it runs.
bool Wanted(const JobPlan& plan, const Replica& replica);

// Whether an exit counts as a failure, by the job's failure rules or by default.
bool IsFailure(const JobPlan& plan, const Replica& replica, const Exit& exit);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_JOB_PLAN_H_
