// Calls back once a deadline has passed. A shell uses it to drive a pure core's OnTick.

#ifndef SLUICE_SERVICES_COMMON_TIME_DEADLINE_TIMER_H_
#define SLUICE_SERVICES_COMMON_TIME_DEADLINE_TIMER_H_

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice {

class DeadlineTimer {
 public:
  // `clock` must outlive the timer. `on_deadline` is called on the timer's own thread, without a
  // lock, and may call Set. The call may come a little early or for a deadline that was replaced
  // meanwhile, so it must check the time.
  DeadlineTimer(const Clock* clock, std::function<void()> on_deadline);
  // Waits for a running callback; no further one is made. Must not be called from the callback.
  ~DeadlineTimer();

  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // Replaces the deadline; InfiniteFuture: none; the past: at once. Cheap when the new one is not
  // earlier than the current one.
  void Set(absl::Time deadline);

 private:
  // The timer's thread.
  void Loop();

  const Clock* const clock_;
  const std::function<void()> on_deadline_;
  Mutex mutex_;  // protects what follows; not held while calling back
  CondVar changed_;
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // The thread sleeps until then, and checks deadline_ again when it wakes.
  absl::Time wakes_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when the other members exist
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TIME_DEADLINE_TIMER_H_
