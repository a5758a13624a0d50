#ifndef SLUICE_SERVICES_COMMON_TIME_CLOCK_H_
#define SLUICE_SERVICES_COMMON_TIME_CLOCK_H_

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// The source of the time. Any thread. Code that depends on the time asks a Clock, so that tests and
// the simulator can set the time.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// Starts at the wall clock's time when it is made, and is steady from then on: it never goes back,
// and stepping the machine's clock moves no timer.
class RealClock final : public Clock {
 public:
  RealClock() : start_(absl::Now()), steady_start_(std::chrono::steady_clock::now()) {}
  absl::Time Now() const override {
    return start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

 private:
  const absl::Time start_;
  const std::chrono::steady_clock::time_point steady_start_;
};

// Advances only when a test moves it.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(absl::Time now = absl::UnixEpoch()) : now_(now) {}
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  // Wakes no thread: a DeadlineTimer looks again when the real time that was left has passed.
  void Advance(absl::Duration by) {
    MutexLock lock(&mutex_);
    now_ += by;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_TIME_CLOCK_H_
