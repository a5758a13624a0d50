// Shows a job of this machine while it runs.
#ifndef SLUICE_CLI_RUN_DISPLAY_LISTENER_H_
#define SLUICE_CLI_RUN_DISPLAY_LISTENER_H_

#include <sys/types.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/common/log_follower.h"
#include "cli/common/progress_text.h"
#include "cli/common/run_display.h"
#include "cli/common/run_flags.h"
#include "cli/local/local_job.h"
#include "operator/policy/policy.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/time/clock.h"

namespace sluice::cli {

// Passes the events of a job to a display.
class DisplayListener : public local::JobListener {
 public:
  // `display` and `clock` outlive it. `logs`: if set, its lines are shown too. `foreground`: the
  // program of worker 0 has the terminal, and its Ctrl-C.
  DisplayListener(RunDisplay* display, const Clock* clock, std::optional<LogFollower> logs,
                  bool foreground = false);

  void OnProcessStarted(const policy::Replica& replica, pid_t pid) override;
  void OnProcessEnded(const policy::Replica& replica, pid_t pid, const policy::Exit& exit) override;
  void OnProgress(const v1::JobProgress& progress) override;
  void OnOutcome(const policy::Outcome& outcome) override;
  void OnTick(const std::map<policy::Replica, local::ProcessInfo>& processes) override;

  // Any thread.
  void Stopping() { stopping_ = true; }
  bool stopping() const { return stopping_; }

  // Sets how long the job trained, and on how many samples.
  void FillIn(SummaryFacts* facts) const;

  // The process whose log explains the failure: the one that the reason names ("worker-0: ..."),
  // else the coordinator.
  policy::Replica Blamed(absl::string_view reason) const;

 private:
  struct Mark {
    absl::Time time;
    uint64_t samples = 0;
  };

  void NoteWaiting(const std::map<policy::Replica, local::ProcessInfo>& processes);

  RunDisplay* const display_;
  const Clock* const clock_;
  std::optional<LogFollower> logs_;
  const bool foreground_;
  absl::Time note_at_ = absl::InfiniteFuture();  // of NoteWaiting
  std::optional<v1::JobProgress> progress_;      // the last
  std::atomic<bool> stopping_{false};
  std::optional<std::pair<Mark, Mark>> training_;  // first and newest progress
  std::set<policy::Replica> replicas_;             // of processes that have ended
};

// How `sluice run` shows a job.
DisplayOptions DisplayOptionsOf(const RunFlags& flags, const v1::JobSpec& job);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_DISPLAY_LISTENER_H_
