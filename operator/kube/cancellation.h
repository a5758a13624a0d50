#ifndef SLUICE_OPERATOR_KUBE_CANCELLATION_H_
#define SLUICE_OPERATOR_KUBE_CANCELLATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/threads/mutex.h"

namespace sluice::kube {

// Cancels blocking calls from another thread. Calls that may block for long take one, and return
// soon after Cancel with absl::StatusCode::kCancelled. Cancellation is permanent. Any thread.
class Cancellation {
 public:
  Cancellation() = default;
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  // Runs every callback that is registered, on this thread, before it returns.
  void Cancel() {
    MutexLock lock(&mutex_);
    cancelled_ = true;
    changed_.SignalAll();
    // Under the lock, so that no call is running once RemoveCallback has returned.
    for (const auto& [id, callback] : callbacks_) callback();
  }

  // Whether Cancel was called.
  bool cancelled() const {
    MutexLock lock(&mutex_);
    return cancelled_;
  }

  // Blocks for this long, or until cancelled; returns whether it is cancelled.
  bool WaitFor(absl::Duration timeout) const {
    const absl::Time deadline = absl::Now() + timeout;
    MutexLock lock(&mutex_);
    while (!cancelled_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
    }
    return cancelled_;
  }

  // `callback` is called once, by Cancel, or immediately if already cancelled. It must not block
  // and must not call this object. Returns the argument for RemoveCallback.
  int64_t AddCallback(std::function<void()> callback) {
    MutexLock lock(&mutex_);
    if (cancelled_) callback();
    callbacks_.emplace(++last_id_, std::move(callback));
    return last_id_;
  }

  // After this returns, the callback is not running and will not be called.
  void RemoveCallback(int64_t id) {
    MutexLock lock(&mutex_);
    callbacks_.erase(id);
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_CANCELLATION_H_
