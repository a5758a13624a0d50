#ifndef SLUICE_OPERATOR_RUNTIME_WORK_QUEUE_H_
#define SLUICE_OPERATOR_RUNTIME_WORK_QUEUE_H_

#include <algorithm>
#include <optional>

#include "absl/time/time.h"
#include "operator/runtime/queue_core.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::runtime {

// A QueueCore for many threads. Any thread; only Take blocks. Bounded by the number of distinct
// keys.
class WorkQueue {
 public:
  // `clock` outlives this. Moving a manual clock does not wake Take: use TryTake with it.
  WorkQueue(const QueueCore::Options& options, const Clock* clock)
      : clock_(clock), core_(options) {}

  // ---- as QueueCore's, at the clock's current time. Adding a key wakes a thread that waits in
  // Take.
  void Add(const Key& key) {
    MutexLock lock(&mutex_);
    core_.Add(key, clock_->Now());
    changed_.Signal();
  }

  void AddAfter(const Key& key, absl::Duration delay) {
    MutexLock lock(&mutex_);
    core_.AddAfter(key, delay, clock_->Now());
    changed_.Signal();
  }

  absl::Duration AddRateLimited(const Key& key) {
    MutexLock lock(&mutex_);
    const absl::Duration delay = core_.AddRateLimited(key, clock_->Now());
    changed_.Signal();
    return delay;
  }

  void Forget(const Key& key) {
    MutexLock lock(&mutex_);
    core_.Forget(key);
  }

  int Failures(const Key& key) const {
    MutexLock lock(&mutex_);
    return core_.Failures(key);
  }

  // Returns the next key; nullopt if none is due.
  std::optional<QueueCore::Taken> TryTake() {
    MutexLock lock(&mutex_);
    return core_.Take(clock_->Now());
  }

  // Blocks until there is a key; nullopt after ShutDown.
  std::optional<QueueCore::Taken> Take() {
    MutexLock lock(&mutex_);
    while (!shut_down_) {
      const absl::Time now = clock_->Now();
      std::optional<QueueCore::Taken> taken = core_.Take(now);
      if (taken.has_value()) {
        // Other threads take the keys that became due with it.
        if (core_.depth() > 0) changed_.Signal();
        return taken;
      }
      const absl::Duration wait = core_.NextDue() - now;
      if (wait == absl::InfiniteDuration()) {
        changed_.Wait(&mutex_);
      } else {
        changed_.WaitWithTimeout(&mutex_, wait);
      }
    }
    return std::nullopt;
  }

  // To be called after each Take, when the work on the key has ended.
  void Done(const Key& key) {
    MutexLock lock(&mutex_);
    core_.Done(key, clock_->Now());
    changed_.Signal();
  }

  // Take returns nullopt from now on; waiting keys are dropped.
  void ShutDown() {
    MutexLock lock(&mutex_);
    shut_down_ = true;
    changed_.SignalAll();
  }

  // For metrics, as QueueCore's.
  size_t depth() const {
    MutexLock lock(&mutex_);
    return core_.depth();
  }

  size_t processing() const {
    MutexLock lock(&mutex_);
    return core_.processing();
  }

 private:
  const Clock* const clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  QueueCore core_ ABSL_GUARDED_BY(mutex_);
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_WORK_QUEUE_H_
