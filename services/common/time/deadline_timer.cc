#include "services/common/time/deadline_timer.h"

#include <utility>

namespace sluice {

DeadlineTimer::DeadlineTimer(const Clock* clock, std::function<void()> on_deadline)
    : clock_(clock), on_deadline_(std::move(on_deadline)), thread_([this] { Loop(); }) {}

DeadlineTimer::~DeadlineTimer() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.Signal();
  thread_.join();
}

void DeadlineTimer::Set(absl::Time deadline) {
  MutexLock lock(&mutex_);
  deadline_ = deadline;
  if (deadline < wakes_at_) changed_.Signal();
}

void DeadlineTimer::Loop() {
  while (true) {
    {
      MutexLock lock(&mutex_);
      while (!stopping_ && deadline_ > clock_->Now()) {
        wakes_at_ = deadline_;
        // The clock may differ from the condition variable's, so wait for the difference.
        changed_.WaitWithTimeout(&mutex_, deadline_ - clock_->Now());
      }
      wakes_at_ = absl::InfinitePast();  // awake: needs no signal
      if (stopping_) return;
      deadline_ = absl::InfiniteFuture();
    }
    on_deadline_();
  }
}

}  // namespace sluice
