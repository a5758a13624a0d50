#ifndef SLUICE_CLI_RUN_JOB_RUN_H_
#define SLUICE_CLI_RUN_JOB_RUN_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "cli/common/environment.h"
#include "cli/common/job_result.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"
#include "cli/common/run_flags.h"
#include "cli/local/job_directory.h"
#include "cli/local/local_job.h"
#include "cli/run/display_listener.h"
#include "services/manifest/training_job.h"

namespace sluice::cli {

// One run of a prepared job on this machine, from its first process to the summary of its outcome.
//
//   JobRun run(environment, flags, programs, prepared.job, &directory);
//   DisplayListener listener(run.display(), environment.clock, run.Logs());
//   run.Open(&listener);
//   const JobResult& result = run.Run(JobRun::Interrupt::kSuspend);
//   return run.Finish();
class JobRun {
 public:
  // The effect of the first Ctrl-C; the second one stops the job in any case.
  enum class Interrupt { kSuspend, kStop };

  // `environment`, `flags` and `directory` outlive it.
  JobRun(const Environment& environment, const RunFlags& flags, const local::Programs& programs,
         api::TrainingJob job, local::JobDirectory* directory);

  RunDisplay* display() { return display_.get(); }
  // Follows the logs of the job's processes, if the flags ask for that.
  std::optional<LogFollower> Logs() const;
  // To be changed before Open.
  local::LocalJob::Options* options() { return &options_; }

  // `listener` outlives it.
  local::LocalJob* Open(DisplayListener* listener);

  // Returns when the job has ended. A failure names the process that is to blame.
  const JobResult& Run(Interrupt interrupt);

  // Shows how the run ended. Returns the exit code.
  int Finish(const std::string& export_command = "");

 private:
  const Environment& environment_;
  const RunFlags& flags_;
  local::JobDirectory* const directory_;
  const std::string name_;
  const std::unique_ptr<RunDisplay> display_;
  local::LocalJob::Options options_;
  DisplayListener* listener_ = nullptr;
  std::optional<local::LocalJob> job_;
  absl::Time start_;
  JobResult result_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_JOB_RUN_H_
