// Which processes of a job should run, and how a job ends. Pure: shared by `sluice run`, where a
// process is a child, and the operator, where it is a pod.
//
// Intuition. The backend loops: gather, Decide, apply. It gathers the actual state (Observation);
// Decide compares it with the desired state and returns the actions; the backend carries them out.
// Decide may be called at any time and any number of times: for the same observation it returns the
// same actions, and it does not repeat actions whose effect it can observe. State that must survive
// between calls is in Memory, plain data that the backend keeps and may persist.
//
//   start      The coordinator starts first; shards and workers start once its address is known.
//   death      The coordinator is informed at once. A new instance replaces it at once, or after a
//              growing delay if the replica fails repeatedly.
//   frozen     Two kinds of processes are killed, which counts as a death: a coordinator that stops
//              answering, and a process that has been missing from an answering coordinator's list
//              for too long.
//   no data    A worker that does not find its data is restarted with a growing delay, without a
//              limit, if the data may still appear (Limits::patient). Otherwise the job fails.
//   refused    A process that the coordinator refuses (exit code 11, usually a version mismatch) is
//              restarted in the same way if a process of its role was ever ready in this job, so
//              that the rest of the job continues. Otherwise the job fails: it could never start.
//   removed    A process that another client removes is replaced. Its exit counts against no limit.
//   the end    The outcome (success, failure or suspension, with a reason) is decided once. Nothing
//              is started after it. Processes get time to leave, then SIGTERM, then SIGKILL. The
//              job is finished when no process is left.
#ifndef SLUICE_OPERATOR_POLICY_POLICY_H_
#define SLUICE_OPERATOR_POLICY_POLICY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/policy/job_plan.h"
#include "proto/common.pb.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::policy {

// Delays, failure limits and grace periods of a backend.
struct Limits {
  // Delay before the second restart of a replica in a row of failures. The first restart has no
  // delay; from the third on the delay doubles each time.
  absl::Duration first_delay = absl::Seconds(1);
  // Upper bound of the delay.
  absl::Duration max_delay = absl::Seconds(30);
  // Least delay before a shard that died is restarted.
  absl::Duration shard_delay = absl::ZeroDuration();
  // An instance that was ready, or ran for this long, ends the row of failures.
  absl::Duration healthy_after = absl::Seconds(30);
  // The job fails when this many instances of one replica in a row ended without having been ready.
  int max_failed_starts = 5;
  // The job fails when more workers than this died within worker_window.
  int max_worker_deaths = 200;
  // Length of the sliding window for max_worker_deaths.
  absl::Duration worker_window = absl::Minutes(10);
  // True: errors before a process was ready may have an outside cause (a volume, the data, an
  // image) that can be fixed while the job waits. The process is restarted without a limit, and
  // neither exit code 1 of a worker or shard nor missing data (exit code 13) fails the job at once.
  // False: such errors fail the job, so that a user at a terminal sees them at once.
  bool patient = false;
  // Delay before a process that left with exit code 0 is replaced. Usually it left because the job
  // is over, and the backend learns of that within this time.
  absl::Duration left_delay = absl::Seconds(2);
  // An expelled process exits when it learns of its expulsion. An expelled process from which the
  // coordinator has received nothing for this long is assumed frozen and is killed.
  absl::Duration expelled_grace = absl::Seconds(5);
  // How long processes may take to exit by themselves after the job has ended, before SIGTERM. A
  // process that was never ready gets SIGTERM as soon as the coordinator has ended, unless the job
  // has succeeded: it has no work to return, and cannot learn of the end.
  absl::Duration leave_grace = absl::Seconds(10);
  // Replaces leave_grace when the coordinator declared the job failed. It is also how long a
  // failure of a worker or shard that fails the job waits for the coordinator's reason, unless the
  // process was never registered.
  absl::Duration failed_grace = absl::Seconds(5);
  // Time between SIGTERM and SIGKILL at the end of the job.
  absl::Duration stop_grace = absl::Seconds(5);
};

// Whether a process is registered with the coordinator.
enum class Registration {
  kUnknown,     // the coordinator's current instance has not answered, or the backend cannot know
  kMissing,     // the process has not registered, or was expelled
  kLeft,        // the process has announced that it leaves
  kRegistered,  // the process is registered
};

// A process was asked to exit: its deletion was requested, by the backend or by another client.
struct Removal {
  std::string reason;  // as Exit::reason
  // Until then the reason may change, and the process does not count as replaced.
  absl::Time certain_from = absl::InfinitePast();
};

// The newest instance in a replica.
struct ProcessObservation {
  std::string
      instance;      // distinguishes instances of one replica (pid and count, pod uid); never empty
  uint64_t pid = 0;  // 0: unknown
  absl::Time started;
  bool ready = false;  // it is or was a member
  // False: the pod exists, but nothing runs in it yet (it waits for a node, an image, a volume).
  bool begun = true;
  bool running = true;
  // Set if the process is being removed.
  std::optional<Removal> removal;
  // From then on the process is replaced because a new one would be started differently. Only for
  // processes that have not begun.
  absl::Time outdated_from = absl::InfiniteFuture();
  // If the coordinator has expelled the process: when it last received a message of it. Otherwise
  // InfiniteFuture.
  absl::Time expelled_after = absl::InfiniteFuture();
  // As of Observation::last_progress_at. Not set for the coordinator itself.
  Registration registration = Registration::kUnknown;
  // Set if the process is not running.
  Exit exit;
  absl::Time ended;
};

// The world as the backend sees it now. The policy takes no other input besides plan, limits,
// memory and time.
struct Observation {
  std::map<Replica, ProcessObservation> processes;
  // The coordinator's address for shards and workers; empty: not known yet.
  std::string coordinator_address;
  // The newest phase that the coordinator of this activation reported; STARTING if none.
  v1::JobProgress::Phase phase = v1::JobProgress::STARTING;
  std::string phase_reason;
  std::string phase_code;  // JobProgress.reason_code
  // When the coordinator's current instance last answered; InfinitePast: never, or not known.
  absl::Time last_progress_at = absl::InfinitePast();
  // When the job last completed a step; InfinitePast: never, or not known. Only for
  // JobPlan::progress_deadline.
  absl::Time last_step_at = absl::InfinitePast();

  // The newest instance of the replica; null: there was none.
  const ProcessObservation* Find(const Replica& replica) const {
    const auto found = processes.find(replica);
    return found == processes.end() ? nullptr : &found->second;
  }
  bool Running(const Replica& replica) const {
    const ProcessObservation* process = Find(replica);
    return process != nullptr && process->running;
  }
};

// How a job can end. A suspended job can be resumed (Resumed).
enum class OutcomeKind { kSucceeded, kFailed, kSuspended };

// The end of a job, decided once: it is kept in Memory until no process is left, and then finished.
struct Outcome {
  OutcomeKind kind = OutcomeKind::kFailed;
  std::string code;               // CamelCase reason: "BackoffLimitExceeded"
  std::string reason;             // one sentence; after a success only if nothing was trained
  std::optional<Replica> blamed;  // the replica whose log has the details
  absl::Time since;
  absl::Duration leave_grace;  // before SIGTERM
};

// State that a backend keeps between calls. Only the policy changes it. A backend that persists it
// may leave out `restarts`, `registered_instance`, `unexplained`, `terminated` and `killed`, and
// after the outcome also `replicas`.
struct Memory {
  struct ReplicaMemory {
    std::string handled_instance;  // the last instance whose end was handled
    int failures_in_row = 0;       // determines the restart delay
    int failed_starts = 0;         // instances in a row that ended without having been ready
    bool data_missing = false;     // the last instance of the row did not find its data
    bool refused = false;          // the coordinator refused the last instance of the row
    absl::Time start_after = absl::InfinitePast();
    std::string replaced_instance;    // the last instance for which a replacement was started
    uint32_t restarts = 0;            // number of instances that were replaced
    std::string registered_instance;  // the last instance that was registered with a coordinator
    // The instance that is missing at the answering coordinator, and since when.
    std::string missing_instance;
    absl::Time missing_since = absl::InfiniteFuture();
  };
  std::map<Replica, ReplicaMemory> replicas;
  // The newest answer of a coordinator with which no process was registered.
  absl::Time unregistered_at = absl::InfinitePast();
  absl::Time active_since = absl::InfiniteFuture();  // time of the first call
  absl::Time suspending_since = absl::InfiniteFuture();
  std::set<v1::Role> worked;  // roles of which a process was ever ready in this job
  // Deaths that count against JobPlan::backoff_limit.
  uint32_t restorations = 0;
  std::deque<absl::Time> worker_deaths;  // within the window
  std::optional<Outcome> outcome;
  // The failure of a worker or shard. It ends the job unless the coordinator soon gives a reason.
  std::optional<Outcome> unexplained;
  std::map<Replica, std::string> terminated;  // the instance that was sent SIGTERM
  std::map<Replica, std::string> killed;      // the instance that was sent SIGKILL
};

// The memory with which a suspended job starts again.
Memory Resumed(const Memory& memory);

// Start a process in this replica. Decide repeats it until it observes the replica's new instance.
// The backend reports a start that failed permanently as an instance that ended with exit code 127.
struct StartProcess {
  Replica replica;
};
// Send the instance a signal. Repeated only to raise SIGTERM to SIGKILL.
struct StopProcess {
  Replica replica;
  std::string instance;
  bool kill = false;  // SIGKILL rather than SIGTERM
};
// Report to the coordinator that a process has died, so that it need not wait for a timeout.
struct ReportDeath {
  Replica replica;
  uint64_t pid = 0;
  std::string reason;  // "killed by SIGKILL"
};

// An exit to report to users: no exit of a process that left or that is surplus, and no consequence
// of the job's end.
struct ReportExit {
  Replica replica;
  Exit exit;
  bool counted = false;  // as a failure
};

// The actions that follow from one observation. The backend carries them out and keeps `memory`.
struct Decision {
  std::vector<ReportDeath> deaths;
  std::vector<ReportExit> exits;
  std::vector<Replica> replaced;  // counted as restarts by this decision
  std::vector<StopProcess> stops;
  std::vector<StartProcess> starts;
  // The desired state to send to the coordinator (SetDesired) whenever it differs from what was
  // last sent.
  uint32_t desired_workers = 0;
  uint32_t desired_shards = 0;
  bool desired_suspend = false;
  // Set when the job has ended and no process is left. Final.
  std::optional<Outcome> finish;
  Memory memory;
  // Call Decide again when the observation changes, and no later than this.
  absl::Time decide_again = absl::InfiniteFuture();
};

// `now` must not decrease from call to call.
Decision Decide(const JobPlan& plan, const Limits& limits, const Observation& world,
                const Memory& memory, absl::Time now);

// Excludes a pause of the backend itself (it was stopped, or its machine slept) from all timeouts.
// `paused_for` is the length of the pause. To be called before the next Decide.
void ExtendDeadlines(absl::Duration paused_for, Observation* world, Memory* memory);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_POLICY_H_
