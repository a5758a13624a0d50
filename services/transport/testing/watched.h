#ifndef SLUICE_SERVICES_TRANSPORT_TESTING_WATCHED_H_
#define SLUICE_SERVICES_TRANSPORT_TESTING_WATCHED_H_

#include <gtest/gtest.h>

#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// State that tests wait on.
template <typename State>
class Watched {
 public:
  void Change(const std::function<void(State*)>& change) {
    MutexLock lock(&mutex_);
    change(&state_);
    changed_.SignalAll();
  }
  // Returns the state once the condition holds; fails the test if it does not within 30 s.
  State WaitFor(const std::function<bool(const State&)>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    MutexLock lock(&mutex_);
    while (!condition(state_)) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) {
        ADD_FAILURE() << "the condition did not hold within 30 s";
        break;
      }
    }
    return state_;
  }
  State Now() {
    MutexLock lock(&mutex_);
    return state_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  State state_ ABSL_GUARDED_BY(mutex_) = State();
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_TESTING_WATCHED_H_
