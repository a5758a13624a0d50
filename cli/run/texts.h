// The texts of `sluice run` on this machine, except for the display of a run.
#ifndef SLUICE_CLI_RUN_TEXTS_H_
#define SLUICE_CLI_RUN_TEXTS_H_

#include <string>
#include <vector>

#include "cli/common/environment.h"
#include "cli/common/job_result.h"
#include "cli/common/run_flags.h"
#include "cli/local/job_directory.h"
#include "services/manifest/training_job.h"

namespace sluice::cli {

// Notes about fields that only apply to a cluster, and about data that FindData has found
// elsewhere (`found`: its sentences).
void PrintNotes(const Environment& environment, const api::TrainingJob& job,
                const std::vector<std::string>& found);

// Whether to continue with --fresh. Prints in any case what is removed, and asks on a terminal.
bool ConfirmFresh(const Environment& environment, const RunFlags& flags,
                  const local::JobDirectory& directory);

// The manifest suspends the job. Returns the exit code, as the next function does.
int ReportSuspended(const Environment& environment, const RunFlags& flags, const std::string& name);

// The job had finished before. `result`: of the run that finished it.
int ReportFinished(const Environment& environment, const RunFlags& flags,
                   const api::TrainingJob& job, const local::JobDirectory& directory,
                   JobResult result);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_TEXTS_H_
