#ifndef SLUICE_SERVICES_COMMON_THREADS_NOTIFICATION_H_
#define SLUICE_SERVICES_COMMON_THREADS_NOTIFICATION_H_

#include <atomic>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// An event that happens once, and that threads can wait for: absl::Notification, with the mutex
// that ThreadSanitizer understands.
class Notification {
 public:
  Notification() = default;
  // A waiter may destroy it as soon as it is notified, so this waits until Notify has released the
  // mutex.
  ~Notification() { MutexLock lock(&mutex_); }

  Notification(const Notification&) = delete;
  Notification& operator=(const Notification&) = delete;

  // Once only. Everything that the caller did before is visible to threads that see the event.
  void Notify() {
    MutexLock lock(&mutex_);
    notified_.store(true, std::memory_order_release);
    changed_.SignalAll();
  }

  // Takes no lock, so it is cheap enough to call for every event.
  bool HasBeenNotified() const { return notified_.load(std::memory_order_acquire); }

  // Blocks; everything that the notifier did before is visible afterwards.
  void Wait() const {
    if (HasBeenNotified()) return;
    MutexLock lock(&mutex_);
    while (!HasBeenNotified()) changed_.Wait(&mutex_);
  }

  // Blocks at most `timeout`; returns whether the event has happened.
  bool WaitWithTimeout(absl::Duration timeout) const {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(&mutex_);
    while (!HasBeenNotified() && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return HasBeenNotified();
  }

 private:
  mutable Mutex mutex_;  // makes the check of notified_ and the wait atomic
  mutable CondVar changed_;
  std::atomic<bool> notified_{false};  // changed with the mutex held
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_THREADS_NOTIFICATION_H_
