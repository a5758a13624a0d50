// The displays of `sluice run`.
#ifndef SLUICE_CLI_COMMON_RUN_DISPLAY_H_
#define SLUICE_CLI_COMMON_RUN_DISPLAY_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/common/environment.h"
#include "cli/common/progress_text.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::cli {

// One instance of a process: a child of this process, or a pod.
struct ProcessInstance {
  policy::Replica replica;
  pid_t pid = 0;    // 0: it is a pod
  std::string pod;  // empty: it is a process of this machine
};

// Shows a job, on this machine or on a cluster. All calls come from one thread.
class RunDisplay {
 public:
  virtual ~RunDisplay() = default;
  virtual void OnProcessStarted(const ProcessInstance& instance) = 0;
  virtual void OnProcessEnded(const ProcessInstance& instance, const policy::Exit& exit) = 0;
  // `progress` has the events since the last call. `state` replaces the phase's word, as in
  // JobSummary.
  virtual void OnProgress(const v1::JobProgress& progress, const std::string& state) = 0;
  virtual void OnLogLine(absl::string_view process, absl::string_view line) = 0;
  // Called regularly, and after each of the calls above.
  virtual void OnTick(const std::map<policy::Replica, ProcessState>& processes) = 0;
  // Shows a sentence.
  virtual void Note(absl::string_view text) = 0;
  // The job was asked to stop; shown until it has stopped.
  virtual void Stopping() = 0;
  // The job's outcome is decided; calls until Finish are consequences of it.
  virtual void OnOutcome(policy::OutcomeKind) {}
  // The job continues and is no longer followed. `how`: lines with commands for the job.
  virtual void Detached(const std::vector<std::string>& how) = 0;
  // The job has ended. `log_lines`: the last log lines of the process to blame.
  virtual void Finish(const SummaryFacts& facts, int exit_code,
                      const std::vector<std::string>& log_lines) = 0;
};

// How much the display shows, and how.
struct DisplayOptions {
  std::string job;
  bool quiet = false;  // only the final line and errors
  // The worker's program uses the terminal: no live view, and no lines of progress.
  bool foreground = false;
  // Plain: steps per iteration, in which every worker has one update.
  uint64_t iteration_steps = 1;
  // Plain: prints the losses of the trainers' batches, and "Training complete".
  bool losses = false;
};

// How many log lines of the process to blame a failure shows.
inline constexpr size_t kFailureLogLines = 20;

// `output`: "json", "plain" or "text", as --output takes them.
std::unique_ptr<RunDisplay> MakeDisplay(const Environment& environment, const std::string& output,
                                        DisplayOptions options);

// Prints lines of text; on a terminal, with a live view below them that is redrawn at most five
// times a second.
std::unique_ptr<RunDisplay> MakeTextDisplay(const Environment& environment, DisplayOptions options);

// Prints one JSON object per line.
std::unique_ptr<RunDisplay> MakeJsonDisplay(const Environment& environment, DisplayOptions options);

// "Iter 10: accuracy is 85.1", "Final accuracy is 90.2", "This took 4.20 seconds" on standard
// output; warnings on standard error. With `losses` also "worker-0 training batch 5 loss 2.295" and
// "Training complete".
std::unique_ptr<RunDisplay> MakePlainDisplay(const Environment& environment,
                                             DisplayOptions options);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_RUN_DISPLAY_H_
