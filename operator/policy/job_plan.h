// The plan for a job's processes, and how their exits count.
#ifndef SLUICE_OPERATOR_POLICY_JOB_PLAN_H_
#define SLUICE_OPERATOR_POLICY_JOB_PLAN_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"

namespace sluice::policy {

// A role and an index. One process at a time is the replica.
struct Replica {
  v1::Role role = v1::COORDINATOR;  // COORDINATOR, SHARD or WORKER
  uint32_t index = 0;

  friend bool operator<(const Replica& a, const Replica& b) {
    return std::tie(a.role, a.index) < std::tie(b.role, b.index);
  }
  friend bool operator==(const Replica& a, const Replica& b) {
    return a.role == b.role && a.index == b.index;
  }
};
inline constexpr Replica kCoordinator = {v1::COORDINATOR, 0};

// "coordinator", "ps-0", "worker-1".
std::string ReplicaName(const Replica& replica);

// The cause of an instance's end.
enum class Cause {
  kItself,   // the process itself; see `code` and `signal`
  kOutside,  // a deletion, an eviction or a lost node; not the fault of the process
};

// The end of one process, as its backend saw it.
struct Exit {
  int code = 0;         // exit code, if signal is 0
  int signal = 0;       // the signal that killed the process; 0: none
  std::string message;  // the process's last error message, if any
  Cause cause = Cause::kItself;
  std::string reason;  // CamelCase; set if the backend has more than a code or signal
};

// "exit code 12", "killed by signal 9 (Killed)"; preceded by the exit's reason, if it has one:
// "OOMKilled, killed by signal 9 (Killed)".
std::string ExitText(const Exit& exit);

// The exit reason as a CamelCase word: "OOMKilled", "Evicted", "Killed", "Error", ...
std::string ReasonOf(const Exit& exit);

// A rule of the job's failurePolicy. Rules take precedence over the built-in verdicts.
struct FailureRule {
  enum class Action {
    kFailJob,  // the job fails
    kRestart,  // the process is restarted, and the restart counts against the limits
    kIgnore,   // the process is restarted, and the restart counts against no limit
  };
  Action action = Action::kRestart;
  // An exit matches if the role matches (an empty set matches every role) and the exit code or the
  // reason matches.
  std::set<v1::Role> roles;
  std::set<int> exit_codes;       // 128 + the signal if a signal killed the process
  std::set<std::string> reasons;  // as ReasonOf returns them
};

// The desired state of a job, from its TrainingJob.
struct JobPlan {
  uint32_t shards = 1;
  uint32_t workers = 1;
  // Deaths that the job survives: of shards without complete copies elsewhere, and of coordinators
  // while the job does not train.
  uint32_t backoff_limit = 0;
  bool second_copies = false;  // with two shards or more, each partition is on two of them
  bool suspend = false;
  // The workers are programs of the user. One that was a member may run on after training has
  // succeeded, until it ends or `suspend` is set.
  bool programs_finish = false;
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

// The first rule that matches this exit; null: none.
const FailureRule* RuleFor(const std::vector<FailureRule>& rules, const Replica& replica,
                           const Exit& exit);

// How the policy handles an exit.
enum class ExitVerdict {
  kLeft,     // exit code 0
  kRetry,    // restarted; not the fault of the process
  kPending,  // its data is missing: restarted with backoff, never counted
  kRefused,  // like kPending if a process of its role was ever ready in this job, else kHopeless
  kDeath,    // restarted with backoff, counted
  kHopeless  // a restart would fail in the same way: the job fails
};

// The built-in verdict, without the job's failure rules.
ExitVerdict VerdictOn(const Exit& exit);

// Whether an exit counts as a failure, by the job's failure rules or by default.
bool IsFailure(const JobPlan& plan, const Replica& replica, const Exit& exit);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_JOB_PLAN_H_
