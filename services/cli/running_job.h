// Asks a job that runs on this machine.
#ifndef SLUICE_SERVICES_CLI_RUNNING_JOB_H_
#define SLUICE_SERVICES_CLI_RUNNING_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "operator/local/job_directory.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/file_util.h"

namespace sluice::cli {

// host:port of its coordinator. NOT_FOUND if it has said none yet.
absl::StatusOr<std::string> CoordinatorAddress(FileSystem* files,
                                               const local::JobDirectory& directory);

// Waits at most two seconds.
absl::StatusOr<v1::JobProgress> ReadProgress(FileSystem* files,
                                             const local::JobDirectory& directory);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_RUNNING_JOB_H_
