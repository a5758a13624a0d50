#include "cli/local/running_job.h"

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/common/status_macros.h"
#include "services/transport/job_control_client.h"
#include "services/transport/security/transport_security.h"

namespace sluice::cli {

absl::StatusOr<std::string> CoordinatorAddress(FileSystem* files,
                                               const local::JobDirectory& directory) {
  ASSIGN_OR_RETURN(const std::string text,
                   files->Read(JoinPath(directory.run(), "coordinator.port"), 64));
  return absl::StrCat("127.0.0.1:", absl::StripAsciiWhitespace(text));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> RunCredentials(
    FileSystem* files, const local::JobDirectory& directory) {
  absl::StatusOr<std::shared_ptr<const security::TransportSecurity>> security =
      security::TransportSecurity::Open(files, {.secret_file = directory.SecretFile()},
                                        absl::Now());
  if (absl::IsNotFound(security.status())) return nullptr;
  RETURN_IF_ERROR(security.status());
  return (*security)->channel_credentials();
}

absl::StatusOr<v1::JobProgress> ReadProgress(FileSystem* files,
                                             const local::JobDirectory& directory) {
  ASSIGN_OR_RETURN(const std::string address, CoordinatorAddress(files, directory));
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   RunCredentials(files, directory));
  v1::GetProgressRequest request;
  request.set_events_after(kNoEvents);
  absl::StatusOr<v1::JobProgress> progress =
      AskForProgress({address, credentials}, request, absl::Now() + absl::Seconds(2));
  if (!progress.ok()) return absl::UnavailableError(progress.status().message());
  return progress;
}

}  // namespace sluice::cli
