#ifndef SLUICE_SERVICES_COMMON_NOTIFICATION_H_
#define SLUICE_SERVICES_COMMON_NOTIFICATION_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/mutex.h"

namespace sluice {

// One thing that happens once, and threads that wait for it: absl::Notification, over the mutex
// that ThreadSanitizer sees.
class Notification {
 public:
  // Once only.
  void Notify() {
    MutexLock lock(&mutex_);
    notified_ = true;
    changed_.SignalAll();
  }

  bool HasBeenNotified() const {
    MutexLock lock(&mutex_);
    return notified_;
  }

  // Blocks; what the notifier did before is visible afterwards.
  void Wait() const {
    MutexLock lock(&mutex_);
    while (!notified_) changed_.Wait(&mutex_);
  }

  // Blocks at most so long; whether it has happened.
  bool WaitWithTimeout(absl::Duration timeout) const {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(&mutex_);
    while (!notified_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return notified_;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_NOTIFICATION_H_
