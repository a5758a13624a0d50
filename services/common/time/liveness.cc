#include "services/common/time/liveness.h"

#include "absl/strings/str_cat.h"
#include "services/common/threads/mutex.h"

namespace sluice {

struct Liveness::Beat {
  Mutex mutex;
  // When the beat that waits in the executor was posted; InfiniteFuture: none waits.
  absl::Time given ABSL_GUARDED_BY(mutex) = absl::InfiniteFuture();
};

Liveness::Liveness(SerialExecutor* executor, absl::Duration patience, const Clock* clock)
    : executor_(executor), patience_(patience), clock_(clock), beat_(std::make_shared<Beat>()) {}

absl::Status Liveness::Check() {
  const absl::Time now = clock_->Now();
  {
    MutexLock lock(&beat_->mutex);
    if (beat_->given != absl::InfiniteFuture()) {
      const absl::Duration waits = now - beat_->given;
      if (waits <= patience_) return absl::OkStatus();
      return absl::UnavailableError(
          absl::StrCat("the process has handled no event for ",
                       absl::FormatDuration(absl::Trunc(waits, absl::Milliseconds(1)))));
    }
    beat_->given = now;
  }

  executor_->Post([beat = beat_] {
    MutexLock lock(&beat->mutex);
    beat->given = absl::InfiniteFuture();
  });
  return absl::OkStatus();
}

}  // namespace sluice
