#ifndef SLUICE_CLI_CLUSTER_CLUSTER_JOBS_H_
#define SLUICE_CLI_CLUSTER_CLUSTER_JOBS_H_

#include <memory>

#include "cli/cluster/connection.h"
#include "cli/common/environment.h"
#include "cli/common/jobs.h"

namespace sluice::cli {

// The TrainingJobs of a namespace. `flags` are those of `connection`; they are used for kubectl and
// in proposed commands. `environment` outlives them.
std::unique_ptr<Jobs> MakeClusterJobs(const Environment& environment, const ClusterFlags& flags,
                                      Connection connection);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_CLUSTER_JOBS_H_
