// Asks a running job for its progress.
#ifndef SLUICE_SERVICES_SNAPSHOT_JOB_PROGRESS_H_
#define SLUICE_SERVICES_SNAPSHOT_JOB_PROGRESS_H_

#include <grpcpp/security/credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/jobcontrol.pb.h"

namespace sluice {

// Blocks until the coordinator at host:port answers. NOT_FOUND: no answer came before the deadline;
// the message says why the last attempt failed. Null credentials: plain text. Polls, because a
// coordinator that is starting or being replaced does not answer for a while.
absl::StatusOr<v1::JobProgress> WaitForProgress(
    const std::string& coordinator, std::shared_ptr<grpc::ChannelCredentials> credentials,
    absl::Time deadline);

}  // namespace sluice

#endif  // SLUICE_SERVICES_SNAPSHOT_JOB_PROGRESS_H_
