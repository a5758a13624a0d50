#ifndef SLUICE_CLI_RUN_LOCAL_RUN_H_
#define SLUICE_CLI_RUN_LOCAL_RUN_H_

#include "cli/common/environment.h"
#include "cli/common/run_flags.h"

namespace sluice::cli {

// `sluice run` on this machine: prepares the job, runs its processes to the end, and records the
// result. The first interrupt saves a checkpoint and stops, the second stops immediately. Returns
// the exit code.
int RunOnThisMachine(const Environment& environment, const RunFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_LOCAL_RUN_H_
