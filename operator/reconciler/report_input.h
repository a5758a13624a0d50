// The input of a report on a job. DecideJob fills it in; the status and the events are a function
// of it (report.h).
#ifndef SLUICE_OPERATOR_RECONCILER_REPORT_INPUT_H_
#define SLUICE_OPERATOR_RECONCILER_REPORT_INPUT_H_

#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/decide.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/observed_job.h"
#include "operator/reconciler/pod_status.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

struct ReportInput {
  ReportInput(const World& world_seen, absl::Time time) : world(world_seen), now(time) {
    plan = policy::PlanOf(job.job.spec);
    recovery = ReadRecovery(world.status);
    for (const PodStatus& pod : world.pods) pods[pod.replica] = &pod;
  }

  const World& world;
  const ObservedJob& job = world.job;
  const absl::Time now;
  std::map<policy::Replica, const PodStatus*> pods;

  Recovery recovery;  // to be written
  policy::JobPlan plan;
  bool resizing = false;   // stopping, to continue with another number of shards
  bool switching = false;  // stopping, to continue in another mode
  // Partitions move to another number of shards while the job trains.
  bool moving = false;

  // The phase of the coordinator's current instance; STARTING if it has reported nothing.
  v1::JobProgress::Phase phase = v1::JobProgress::STARTING;
  const v1::JobProgress* progress = nullptr;  // the newest, of any instance; null: none
  bool progress_is_new = false;               // `progress` is of the current instance
  // A previous operator had a report of this coordinator; this one has none yet.
  bool unsynced = false;

  // From the policy's decision.
  std::vector<policy::ReportExit> exits;
  std::vector<policy::Replica> replaced;
  bool stopped = false;  // the job has ended and no pod runs

  // Null if the replica has no pod.
  const PodStatus* PodAt(const policy::Replica& replica) const {
    const auto found = pods.find(replica);
    return found == pods.end() ? nullptr : found->second;
  }
  // Whether the spec is valid, or the job has been active (with an earlier spec, which was valid).
  bool Accepted() const { return job.problem.empty() || recovery.shards != 0; }
  // How the job ends, once that is decided. Pods may run until `stopped`.
  const std::optional<policy::Outcome>& Outcome() const { return recovery.memory.outcome; }
  bool EndedAs(policy::OutcomeKind kind) const {
    return Outcome().has_value() && Outcome()->kind == kind;
  }
  // Whether the job has succeeded or failed.
  bool Over() const { return Outcome().has_value() && !EndedAs(policy::OutcomeKind::kSuspended); }
};

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REPORT_INPUT_H_
