// sluice run --dry-run: shows what would start.
#ifndef SLUICE_CLI_RUN_DRY_RUN_H_
#define SLUICE_CLI_RUN_DRY_RUN_H_

#include "cli/common/environment.h"
#include "cli/local/local_job.h"
#include "cli/run/preparation.h"
#include "services/manifest/training_job.h"

namespace sluice::cli {

// Prints what would start, as text or as one JSON object, and changes nothing. Returns the exit
// code: kExitUsage if the job could not continue with this manifest.
int DryRun(const Environment& environment, const RunFlags& flags, const api::TrainingJob& job,
           const local::Programs& programs);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_DRY_RUN_H_
