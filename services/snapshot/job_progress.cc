#include "services/snapshot/job_progress.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/transport/job_control_client.h"

namespace sluice {
namespace {

constexpr absl::Duration kAttempt = absl::Seconds(5);
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<v1::JobProgress> WaitForProgress(
    const std::string& coordinator, std::shared_ptr<grpc::ChannelCredentials> credentials,
    absl::Time deadline) {
  const ControlAddress address = {coordinator, std::move(credentials)};
  while (true) {
    absl::StatusOr<v1::JobProgress> progress =
        AskForProgress(address, {}, std::min(deadline, absl::Now() + kAttempt));
    const absl::Status status = progress.status();
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
