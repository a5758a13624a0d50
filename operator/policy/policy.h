// Which processes of a job should run, and how a job ends. Pure: shared by `sluice run`, where a
// process is a child, and the operator, where it is a pod.
//
// Intuition. Gather -> Decide -> apply, again and again. A backend gathers what is (Observation),
// Decide compares it with what should be and returns what to do; the backend does it. It does not
// matter why Decide is called, nor how often: with the same world it asks for the same once more,
// and whatever was done already is not asked for again. All that must outlive one call is in
// Memory: plain data that a backend keeps, and may write down.
//
//   start      the coordinator first; shards and workers once its address is known
//   a death    is told to the coordinator at once; a new life takes its place at once, and later if
//              the slot dies again and again
//   frozen     a coordinator that answers no more, and a process that the coordinator which answers
//              does not have among its own for too long, are killed, which is a death
//   no data    a worker that does not find its data is tried again, later and later, for as long as
//              it takes, where somebody may put it there (Limits::patient); else the job fails
//   refused    a process that the coordinator refuses (exit code 11: most often it is of another
//              version) is tried again likewise, once its role has worked in this job: what works
//              goes on. Before that the job fails, for it could never begin
//   the end    (success, failure, suspension, each with its reason) is decided once; nothing is
//              started after it; processes get time to leave, then SIGTERM, then SIGKILL; when all
//              are gone the job is finished
#ifndef SLUICE_OPERATOR_POLICY_POLICY_H_
#define SLUICE_OPERATOR_POLICY_POLICY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::policy {

// A place that one process at a time fills: role and index.
struct Slot {
  v1::Role role = v1::COORDINATOR;  // COORDINATOR, SHARD or WORKER
  uint32_t index = 0;

  friend bool operator<(const Slot& a, const Slot& b) {
    return std::tie(a.role, a.index) < std::tie(b.role, b.index);
  }
  friend bool operator==(const Slot& a, const Slot& b) {
    return a.role == b.role && a.index == b.index;
  }
};

// "coordinator", "ps-0", "worker-1".
std::string SlotName(const Slot& slot);

// What a job says about the end of a process, before anything else does.
struct FailureRule {
  enum class Action {
    kFailJob,  // starting again would not help
    kRestart,  // a new life, which counts
    kIgnore,   // a new life, which counts against nothing
  };
  Action action = Action::kRestart;
  // Where one of these is empty, it holds for all; exit codes and reasons are alternatives.
  std::set<v1::Role> roles;
  std::set<int> exit_codes;       // 128 + the signal, of a process that was killed
  std::set<std::string> reasons;  // as ReasonOf tells them
};

// What is wanted, from the TrainingJob.
struct JobPlan {
  uint32_t shards = 1;
  uint32_t workers = 1;
  uint32_t backoff_limit = 0;  // deaths of shards and of the coordinator that the job survives
  bool suspend = false;
  std::optional<absl::Duration> active_deadline;
  // How long the checkpoint of a suspension may take.
  absl::Duration suspend_timeout = absl::Seconds(60);
  // A coordinator that suspends the job though nobody wished it was asked to leave, with SIGTERM.
  // The job then goes on with another one (true), or ends as suspended.
  bool outlives_coordinator = false;
  // The first that fits the end of a process decides; where none does, what is usual.
  std::vector<FailureRule> failure_rules;

  // From SetTimers; infinite: nobody is killed for that.
  // A process that has run for so long without having registered, or goes on for so long after it
  // has left, is killed. So is a coordinator that was never heard.
  absl::Duration start_timeout = absl::InfiniteDuration();
  absl::Duration worker_start_timeout = absl::InfiniteDuration();
  // A process that was registered once, and is not with the coordinator that answers now, is killed
  // after this. So is a coordinator that was heard and answers no more.
  absl::Duration silence_timeout = absl::InfiniteDuration();
  // Whether the backend itself watches the coordinator (Observation::coordinator_heard).
  bool watch_coordinator = false;
};

// Sets the three timeouts from the job's.
void SetTimers(const v1::JobSpec& job, JobPlan* plan);

// How patient to be.
struct Limits {
  // The first replacement of a slot comes at once, the second in a row after this, then doubling.
  absl::Duration first_delay = absl::Seconds(1);
  absl::Duration max_delay = absl::Seconds(30);
  // A life that was ready, or lasted so long, ends the row.
  absl::Duration healthy_after = absl::Seconds(30);
  // So many lives of one slot in a row that ended without having been ready fail the job.
  int max_failed_starts = 5;
  // More deaths of workers within the window fail the job.
  int max_worker_deaths = 200;
  absl::Duration worker_window = absl::Minutes(10);
  // What ends with an error before it was ready may be mended from outside (a volume, the data, an
  // image): it is tried again and again, and counts against no limit. Nor does exit code 1 of a
  // worker or shard fail the job at once, nor data that is not there (exit code 13). Otherwise who
  // looks on is told at once.
  bool patient = false;
  // A process that left with exit code 0 while the job goes on (as far as is known) is replaced
  // after this: most often the job's end will have been seen by then.
  absl::Duration left_delay = absl::Seconds(2);
  // Who is expelled ends by itself once it hears of it. Who was not heard for so long does not
  // hear: it is frozen, and killed.
  absl::Duration expelled_grace = absl::Seconds(5);
  // At the end: how long processes may leave by themselves,
  absl::Duration leave_grace = absl::Seconds(10);
  // (a job that its coordinator declared as failed, whose last word is to be read: so long. So
  // long also an end of a worker or shard that fails the job waits for that word),
  absl::Duration failed_grace = absl::Seconds(5);
  // (who was never a member has nothing to hand over and, unless the job has succeeded, nobody to
  // hear of the end from once the coordinator has ended: SIGTERM comes then),
  // and after SIGTERM.
  absl::Duration stop_grace = absl::Seconds(5);
};

// Who or what ended a life.
enum class Cause {
  kItself,   // as code and signal tell
  kOutside,  // it had to go from where it was: a deletion, an eviction, a lost node. Nobody's fault
};

// How a life ended.
struct Exit {
  int code = 0;         // of exit(), if signal is 0
  int signal = 0;       // that killed it; 0: none
  std::string message;  // what it said last, if anything
  Cause cause = Cause::kItself;
  std::string reason;  // one word for it, if the backend knows more than code and signal
};

// Whether the coordinator knows a process as one of its own.
enum class Registration {
  kUnknown,     // its present life has not answered yet, or the backend cannot tell
  kMissing,     // it does not: the process has not registered with it, or was expelled
  kLeft,        // the process has told it that it leaves
  kRegistered,  // it does
};

// The newest life in a slot.
struct ProcessObservation {
  std::string life;  // distinguishes lives of one slot (pid and count, pod uid); never empty
  uint64_t pid = 0;  // 0: unknown
  absl::Time started;
  bool ready = false;  // it is, or once was, a member
  // False: it has its place, but nothing runs there yet (it waits for room, an image, a volume).
  bool begun = true;
  bool running = true;
  // When the coordinator heard it last, if it has expelled it; else never.
  absl::Time expelled_after = absl::InfiniteFuture();
  // As the coordinator said at Observation::coordinator_heard. Not of the coordinator.
  Registration registration = Registration::kUnknown;
  // If not running:
  Exit exit;
  absl::Time ended;
};

struct Observation {
  std::map<Slot, ProcessObservation> processes;
  // Where shards and workers find the coordinator; empty: not known yet.
  std::string coordinator_address;
  // The newest that the coordinator of this activation said; STARTING if nothing.
  v1::JobProgress::Phase phase = v1::JobProgress::STARTING;
  std::string phase_reason;
  std::string phase_code;  // JobProgress.reason_code
  // When the coordinator's present life answered last; not yet, or not known: InfinitePast.
  absl::Time coordinator_heard = absl::InfinitePast();
};

enum class Outcome { kSucceeded, kFailed, kSuspended };

struct Ending {
  Outcome outcome = Outcome::kFailed;
  std::string code;            // the reason in one word: "BackoffLimitExceeded"
  std::string reason;          // one sentence; of success only if nothing was trained
  std::optional<Slot> blamed;  // whose log tells more
  absl::Time since;
  absl::Duration leave_grace;  // before SIGTERM
};

// What a backend keeps between calls, unchanged.
struct Memory {
  struct SlotMemory {
    std::string handled_life;   // the last life whose end was handled
    int failures_in_row = 0;    // deaths, for the delay
    int failed_starts = 0;      // in a row, without having been ready
    bool data_missing = false;  // so says the last end of the row
    bool refused = false;       // likewise: the coordinator refused the process
    absl::Time start_after = absl::InfinitePast();
    std::string replaced_life;    // the last life that a start was to replace
    uint32_t restarts = 0;        // lives that were replaced
    std::string registered_life;  // the last life that a coordinator had among its own
    // Since when the coordinator that answers does not have this life among its own.
    std::string missing_life;
    absl::Time missing_since = absl::InfiniteFuture();
  };
  std::map<Slot, SlotMemory> slots;
  absl::Time active_since = absl::InfiniteFuture();  // first call
  absl::Time suspending_since = absl::InfiniteFuture();
  std::set<v1::Role> worked;             // roles of which a process was once ready in this job
  uint32_t restorations = 0;             // deaths of shards and coordinators
  std::deque<absl::Time> worker_deaths;  // within the window
  std::optional<Ending> ending;
  // The failure of a worker or shard, which ends the job unless its coordinator soon tells why.
  std::optional<Ending> unexplained;
  std::map<Slot, std::string> terminated;  // life that was sent SIGTERM
  std::map<Slot, std::string> killed;      // life that was sent SIGKILL
};

// Asked for again until the slot's new life is seen. A start that fails for good is observed as a
// life that ended, with exit code 127.
struct StartProcess {
  Slot slot;
};
struct StopProcess {
  Slot slot;
  std::string life;
  bool kill = false;  // SIGKILL rather than SIGTERM
};
struct ReportDeath {
  Slot slot;
  uint64_t pid = 0;
  std::string reason;  // "killed by SIGKILL"
};

struct Decision {
  std::vector<ReportDeath> deaths;
  std::vector<StopProcess> stops;
  std::vector<StartProcess> starts;
  // What the coordinator should know now (SetDesired), whenever it differs from what it was told.
  uint32_t desired_workers = 0;
  uint32_t desired_shards = 0;
  bool desired_suspend = false;
  // Set when the job has ended and no process is left. Final.
  std::optional<Ending> finish;
  Memory memory;
  // Decide again when the world changes, and not later than this.
  absl::Time decide_again = absl::InfiniteFuture();
};

// Times must not go backwards from call to call.
Decision Decide(const JobPlan& plan, const Limits& limits, const Observation& world,
                const Memory& memory, absl::Time now);

// For a backend that itself stood still (was stopped, or slept with its machine) for so long,
// before it decides again: that time counts for no process's silence.
void Forgive(absl::Duration stood_still, Observation* world, Memory* memory);

// "exit code 12", "killed by signal 9 (Killed)"; with the exit's reason in front where it has one:
// "OOMKilled, killed by signal 9 (Killed)".
std::string ExitText(const Exit& exit);

// "OOMKilled", "Evicted", "Killed", "Error", ...: one word for the end of a life.
std::string ReasonOf(const Exit& exit);

// Whether the end of a life counts against budgets, whatever else it means.
bool IsFailure(const JobPlan& plan, const Slot& slot, const Exit& exit);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_POLICY_H_
