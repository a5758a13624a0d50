// Disturbs a running job, and measures how it recovers. Pure: observations and the time in, signals
// out.
//
// One fault at a time: the next fault comes when the job has recovered from the previous one. So
// every number of the report belongs to one fault, and the job always completes.
#ifndef SLUICE_CLI_CHAOS_DISTURBER_H_
#define SLUICE_CLI_CHAOS_DISTURBER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "cli/chaos/faults.h"
#include "cli/local/job_directory.h"
#include "cli/local/local_job.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::chaos {

// A fault that was injected. Durations count from the injection; nullopt: not before the job's end.
struct FaultRecord {
  PlannedFault plan;
  std::vector<pid_t> pids;  // of the targets
  absl::Time at;
  uint64_t step = 0;                        // the job's step at that time
  std::optional<absl::Duration> recovered;  // until the job completed a step again
  std::optional<absl::Duration> caught_up;  // until the job was beyond `step`
  std::optional<absl::Duration> all_back;   // until every process took part again
  // The longest time between two steps, up to the next fault.
  absl::Duration longest_stall;
  uint64_t attempts = 0;            // that began after the fault
  uint64_t recomputed_samples = 0;  // whose gradients were computed again
};

// How fast a job trained, with or without faults.
struct Pace {
  uint64_t steps = 0;
  absl::Duration training;       // from the beginning of training to the newest step
  absl::Duration longest_stall;  // between two steps
  uint64_t attempts = 0;
  uint64_t recomputed_samples = 0;

  // Zero if nothing was trained.
  double StepsPerSecond() const;
};

class Disturber {
 public:
  struct Options {
    ScheduleOptions schedule;
    // Injects at most this many faults.
    uint64_t max_faults = UINT64_MAX;
    // The job hangs if it completes no step for this long, or trains for this long without one of
    // its processes.
    absl::Duration stall = absl::Seconds(120);
    // How many attempts may fail after a fault, in addition to one for each of its targets.
    uint64_t backoff_limit = 6;
    // The worker is the user's own program, which may register another process than the one that
    // was started.
    bool own_worker_program = false;
  };

  // A signal to send to a process.
  struct Signal {
    policy::Replica replica;
    pid_t pid = 0;
    int signal = 0;
  };

  // The connections of a process.
  struct LinkChange {
    pid_t pid = 0;
    std::optional<LinkFault> fault;  // nullopt: they are as they were before
  };
  // Whether a process can write files.
  struct DiskChange {
    pid_t pid = 0;
    bool full = false;
  };

  // The actions of one call of Decide.
  struct Decision {
    std::vector<Signal> signals;
    std::vector<LinkChange> links;
    std::vector<DiskChange> disks;
    std::optional<local::Sizes> sizes;  // the job should have from now on
    // The fault that is injected now, and the one from which the job has recovered now.
    const FaultRecord* injected = nullptr;
    const FaultRecord* recovered = nullptr;
    // Set once: why the job must be stopped now. One sentence.
    std::optional<std::string> problem;
  };

  using Processes = std::map<policy::Replica, local::ProcessInfo>;

  // The first fault comes some time after the job trains and all of its processes take part.
  Disturber(Options options, absl::Time now);

  // ---- what the job reports
  void OnProgress(const v1::JobProgress& progress, absl::Time now);
  void OnProcessEnded(const policy::Replica& replica, pid_t pid, const policy::Exit& exit);
  // To be called often. The caller sends the signals and makes the changes. The pointers are valid
  // until the next call.
  Decision Decide(const Processes& processes, absl::Time now);
  // Injects no more faults, and ends a fault that lasts. To be called when the job stops.
  void Stop() { stopped_ = true; }

  // Every fault so far, in order; the last one may still be open.
  const std::vector<FaultRecord>& faults() const { return faults_; }
  // How fast the job trained, up to now.
  Pace pace() const;
  // Failures of processes that no fault explains: "worker-0: exit code 1".
  const std::vector<std::string>& unexplained() const { return unexplained_; }

 private:
  // Attempt, counter of the term, number: compares as views do.
  using ViewKey = std::tuple<uint64_t, uint64_t, uint64_t>;

  // The fault from which the job has not recovered.
  struct Open {
    ViewKey view;  // at the injection
    // The members among the targets: without them a new view begins.
    bool hit_member = false;
    bool over = false;             // of a fault that lasts: it has ended
    std::vector<pid_t> ended;      // targets
    std::vector<pid_t> full;       // processes whose disk is full
    std::optional<uint64_t> base;  // the step at which training continues
    uint64_t base_attempt = 0;     // of `base`
  };

  // The job trains in a new attempt: counts the samples that were rolled back.
  void BeginAttempt(const v1::JobProgress& progress, absl::Time now);
  // Notes completed steps, and measures stalls and the pace.
  void Advance(const v1::JobProgress& progress, absl::Time now);
  // Measures how far the job has recovered from the open fault.
  void Follow(absl::Time now);
  // Whether the open fault has had its effect on the job, such as a new view: the next step after
  // that shows the recovery.
  bool Consequences() const;
  // Whether training has ended, so that no further step can show a recovery.
  bool TrainingIsOver() const;
  // Injects the next fault of the schedule, and opens its record.
  void Inject(const Processes& processes, absl::Time now, Decision* decision);
  // Begin the newest fault, and end it, once, if it is one that lasts.
  void Begin(Decision* decision) const;
  void End(const Processes& processes, Decision* decision);
  // Whether the open fault, or each of its targets, has ended.
  bool IsDone() const;
  // The first process that does not take part, or that should have left; nullopt: there is none.
  std::optional<policy::Replica> Missing(const Processes& processes, absl::Time now) const;
  // Whether each partition has as many copies as the job wants.
  bool HasAllCopies() const;
  // Why the job counts as hanging; nullopt: it does not.
  std::optional<std::string> FindHang(const Processes& processes, absl::Time now) const;
  // Samples of all attempts so far that were computed again.
  uint64_t Recomputed() const;
  // Whether the job should have that process.
  bool Wanted(const policy::Replica& replica) const;

  const Options options_;
  local::Sizes sizes_;  // of the job
  bool stopped_ = false;
  std::vector<FaultRecord> faults_;
  std::optional<Open> open_;
  absl::Time next_at_ = absl::InfiniteFuture();
  std::vector<std::string> unexplained_;
  bool found_problem_ = false;

  v1::JobProgress progress_;  // the newest, without events and losses
  uint64_t attempt_ = 0;      // the newest that has had a view
  ViewKey view_;
  uint64_t step_ = 0;                          // the newest of `attempt_`
  uint64_t samples_ = 0;                       // at `step_`
  absl::Time began_ = absl::InfiniteFuture();  // the first view
  uint64_t first_step_ = 0;
  absl::Time stepped_;                          // when `step_` was completed, or the attempt began
  absl::Time advanced_;                         // the last sign of progress
  absl::Time answered_ = absl::InfinitePast();  // the newest progress
  absl::Time missing_since_ = absl::InfiniteFuture();
  absl::Time decided_;
  absl::Duration longest_stall_;
  absl::Duration training_;
  // Recomputed samples: those of abandoned attempts, and those that earlier coordinators reported.
  uint64_t rolled_back_ = 0;
  uint64_t reported_before_ = 0;
  uint64_t recomputed_at_fault_ = 0;  // the newest
};

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_DISTURBER_H_
