#ifndef SLUICE_CLI_LOCAL_LOCAL_JOBS_H_
#define SLUICE_CLI_LOCAL_LOCAL_JOBS_H_

#include <memory>
#include <string>

#include "cli/common/environment.h"
#include "cli/common/jobs.h"

namespace sluice::cli {

// The jobs of this machine that have their state in `state_directory`. `environment` outlives them.
std::unique_ptr<Jobs> MakeLocalJobs(const Environment& environment,
                                    const std::string& state_directory);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_LOCAL_LOCAL_JOBS_H_
