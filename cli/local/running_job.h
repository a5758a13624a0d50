// Queries a job that runs on this machine.
#ifndef SLUICE_CLI_LOCAL_RUNNING_JOB_H_
#define SLUICE_CLI_LOCAL_RUNNING_JOB_H_

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/local/job_directory.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/io/file_util.h"

namespace sluice::cli {

// host:port of its coordinator. NOT_FOUND if the coordinator has not written its port yet.
absl::StatusOr<std::string> CoordinatorAddress(FileSystem* files,
                                               const local::JobDirectory& directory);

// Credentials with the run's secret; null for a run without one. PERMISSION_DENIED: the run belongs
// to another user.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> RunCredentials(
    FileSystem* files, const local::JobDirectory& directory);

// Waits at most two seconds. Errors are those of the coordinator's port file, of the secret and of
// the call.
absl::StatusOr<v1::JobProgress> ReadProgress(FileSystem* files,
                                             const local::JobDirectory& directory);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_LOCAL_RUNNING_JOB_H_
