#include "services/snapshot/job_progress.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"

namespace sluice {
namespace {

constexpr absl::Duration kAttempt = absl::Seconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<v1::JobProgress> WaitForProgress(
    const std::string& coordinator, std::shared_ptr<grpc::ChannelCredentials> credentials,
    absl::Time deadline) {
  const auto stub = v1::JobControl::NewStub(
      MakeChannel({.address = coordinator, .credentials = std::move(credentials)}));
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::min(deadline, absl::Now() + kAttempt)));
    v1::JobProgress progress;
    const absl::Status status =
        FromGrpcStatus(stub->GetProgress(&context, v1::GetProgressRequest(), &progress));
    if (status.ok()) return progress;
    const bool may_change = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!may_change || absl::Now() + kPause >= deadline) {
      return absl::NotFoundError(
          absl::StrCat("no job answers at ", coordinator, " (", status.ToString(), ")"));
    }
    absl::SleepFor(kPause);
  }
}

}  // namespace sluice
