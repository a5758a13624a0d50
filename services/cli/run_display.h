// What a user sees of `sluice run`.
#ifndef SLUICE_SERVICES_CLI_RUN_DISPLAY_H_
#define SLUICE_SERVICES_CLI_RUN_DISPLAY_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"
#include "services/cli/environment.h"
#include "services/cli/progress_text.h"

namespace sluice::cli {

// One life of a process: a child of this one, or a pod.
struct ProcessLife {
  policy::Slot slot;
  pid_t pid = 0;    // 0: it is a pod
  std::string pod;  // empty: it is a process of this machine
};

// Told of a job, wherever it runs. Everything on one thread.
class RunDisplay {
 public:
  virtual ~RunDisplay() = default;
  virtual void OnProcessStarted(const ProcessLife& life) = 0;
  virtual void OnProcessEnded(const ProcessLife& life, const policy::Exit& exit) = 0;
  // With the events since the last call. `state`: in place of the phase's own word, as in JobView.
  virtual void OnProgress(const v1::JobProgress& progress, const std::string& state) = 0;
  virtual void OnLogLine(absl::string_view process, absl::string_view line) = 0;
  // Now and then, and after each of the above.
  virtual void OnTick(const std::map<policy::Slot, ProcessState>& processes) = 0;
  // A sentence for people.
  virtual void Note(absl::string_view text) = 0;
  // The job was asked to stop; shown until it has.
  virtual void Stopping() = 0;
  // How the job ends is decided; what is told until Finish follows from it.
  virtual void Ending(policy::Outcome) {}
  // The job goes on, and is watched no longer. `how`: what can be done now, a line each.
  virtual void Detached(const std::vector<std::string>& how) = 0;
  // The end. `log_lines`: the last of the process that is to blame.
  virtual void Finish(const SummaryFacts& facts, int exit_code,
                      const std::vector<std::string>& log_lines) = 0;
};

struct DisplayOptions {
  std::string job;
  bool quiet = false;  // only the final line and errors
  // Plain: steps of an iteration, in which every worker has its turn.
  uint64_t iteration_steps = 1;
  // Plain: the losses of the trainers' batches, and that training is complete.
  bool losses = false;
};

// Lines of text; on a terminal with a live view below them, redrawn at most five times a second.
std::unique_ptr<RunDisplay> MakeTextDisplay(const Environment& environment, DisplayOptions options);

// One JSON object on each line.
std::unique_ptr<RunDisplay> MakeJsonDisplay(const Environment& environment, DisplayOptions options);

// "Iter 10: accuracy is 85.1", "Final accuracy is 90.2", "This took 4.20 seconds", and nothing
// else; warnings on standard error. With `losses` also "worker-0 training batch 5 loss 2.295" and
// "Training complete".
std::unique_ptr<RunDisplay> MakePlainDisplay(const Environment& environment,
                                             DisplayOptions options);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_RUN_DISPLAY_H_
