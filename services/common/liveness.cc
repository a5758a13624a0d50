#include "services/common/liveness.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "services/common/notification.h"

namespace sluice {

absl::Status CheckAlive(SerialExecutor* executor, absl::Duration patience) {
  // Outlives this call where the task comes later.
  auto beat = std::make_shared<Notification>();
  executor->Post([beat] { beat->Notify(); });
  if (beat->WaitWithTimeout(patience)) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the process has come to none of its events for ",
                   absl::FormatDuration(patience), "; ", executor->queued_tasks(), " wait"));
}

}  // namespace sluice
