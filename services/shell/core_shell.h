// The part of a shell that is the same in every role: the executor that guards the core, the timer
// that calls it at its deadlines, the periodic publication of metrics, the liveness check, and the
// end.

#ifndef SLUICE_SERVICES_SHELL_CORE_SHELL_H_
#define SLUICE_SERVICES_SHELL_CORE_SHELL_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/common/check.h"
#include "services/common/threads/notification.h"
#include "services/common/threads/serial_executor.h"
#include "services/common/time/clock.h"
#include "services/common/time/deadline_timer.h"
#include "services/common/time/liveness.h"

namespace sluice {

// An event for CoreShell::Event: calls `method` of the core with `args` and the time.
template <typename Core, typename... Parameters, typename... Args>
auto Call(void (Core::*method)(Parameters...), Args... args) {
  return [method, args = std::make_tuple(std::move(args)...)](Core& core, absl::Time now) mutable {
    std::apply([&](Args&... arg) { (core.*method)(std::move(arg)..., now); }, args);
  };
}

// A Core has events `OnX(..., now)`, `OnTick(now)`, `NextDeadline()` and `TakeActions()`, which
// returns a vector of variants. The role passes events to it with Event, from any thread. No lock
// is held while the core or the role runs.
//
// The role's destructor calls Close, stops the threads that give events, and then calls Stop: no
// task of the executor runs any more when the role's members are destroyed.
template <typename Core>
class CoreShell {
 public:
  using Action = typename decltype(std::declval<Core&>().TakeActions())::value_type;

  static constexpr absl::Duration kPublicationInterval = absl::Seconds(1);

  // The interface to a role's own code. All calls come on the executor.
  class Role {
   public:
    // Before each event.
    virtual void BeforeEvent(Core&) {}
    // Carries out one action of the core; may move from it. Must not block for long: it runs on the
    // executor.
    virtual void PerformAction(Action& action) = 0;
    // After the actions of an event. `worth` is the event's (EventOptions).
    virtual void AfterActions(size_t /*worth*/) {}
    // After each event but the last: does what is due outside the core, and returns when it must be
    // called again at the latest.
    virtual absl::Time ServeDeadlines(absl::Time /*now*/) { return absl::InfiniteFuture(); }
    // Updates the metrics: each kPublicationInterval, and after the last event.
    virtual void Publish(absl::Time now) = 0;

   protected:
    ~Role() = default;
  };

  struct EventOptions {
    size_t bytes = 0;  // memory that the event holds while it waits, for accounting only
    // Other events are sure to follow, so fewer bytes than this may wait to be sent with theirs.
    size_t worth = 0;
    // A long event: runs on the executor's own thread.
    bool post = false;
  };

  // `clock` and `role` must outlive the shell. `name`: of the executor's thread.
  CoreShell(std::string name, const Clock* clock, Role* role)
      : clock_(clock),
        role_(role),
        executor_({.name = std::move(name)}),
        liveness_(&executor_, kLivenessPatience, clock),
        timer_(clock, [this] { Event(Call(&Core::OnTick)); }) {}

  CoreShell(const CoreShell&) = delete;
  CoreShell& operator=(const CoreShell&) = delete;

  // Makes the core. Once, before the first event.
  template <typename... Args>
  void Start(Args&&... args) {
    core_.emplace(std::forward<Args>(args)...);
  }

  // Calls `event(core, now)`, then performs the actions that follow. After the end: no effect. An
  // event that consists of several calls PerformActions between them. Any thread.
  template <typename F>
  void Event(F event, EventOptions options = {}) {
    auto task = [this, event = std::move(event), worth = options.worth]() mutable {
      Handle(event, worth);
    };
    if (options.post) {
      executor_.Post(std::move(task), options.bytes);
    } else {
      executor_.Run(std::move(task), options.bytes);
    }
  }

  // Performs the core's actions, in order. False: the role has ended, and the remaining actions and
  // events are dropped. On the executor.
  bool PerformActions() {
    if (ended()) return false;
    for (Action& action : core_->TakeActions()) {
      role_->PerformAction(action);
      if (ended()) return false;
    }
    return true;
  }

  // Ends the role: no later event has an effect. On the executor, once.
  void End() {
    SLUICE_DCHECK(!ended(), "a role ends once");
    ended_.Notify();
  }

  // Ends the role if it has not ended: calls `end`, which calls End, on the executor, after the
  // events that were given before. Blocks until then. Not on the executor.
  template <typename F>
  void Close(F end) {
    executor_.Post([this, end = std::move(end)]() mutable {
      if (!ended()) end();
    });
    executor_.Flush();
  }

  // Ends the executor's thread; later tasks are dropped. Not on the executor.
  void Stop() { executor_.Stop(); }

  // Whether End was called. Everything that was written before is visible then. Any thread.
  bool ended() const { return ended_.HasBeenNotified(); }
  // Blocks until then.
  void Wait() const { ended_.Wait(); }

  // OK while the executor handles its tasks in time. Any thread; does not block.
  absl::Status Alive() { return liveness_.Check(); }

  const Clock& clock() const { return *clock_; }
  // For how long events have been handled, the current one not included. On the executor.
  absl::Duration busy() const { return busy_; }
  SerialExecutor& executor() { return executor_; }
  // On the executor, after Start.
  Core& core() { return *core_; }

 private:
  // Handles one event, and sets the timer for the next deadline. On the executor.
  template <typename F>
  void Handle(F& event, size_t worth) {
    if (ended()) return;
    SLUICE_DCHECK(core_.has_value(), "events follow Start");

    const absl::Time now = clock_->Now();
    role_->BeforeEvent(*core_);
    event(*core_, now);
    PerformActions();
    role_->AfterActions(worth);

    const absl::Time own = ended() ? now : role_->ServeDeadlines(now);
    if (ended() || now >= next_publication_) {
      next_publication_ = now + kPublicationInterval;
      role_->Publish(now);
    }
    if (!ended()) timer_.Set(std::min({core_->NextDeadline(), own, next_publication_}));
    busy_ += clock_->Now() - now;
  }

  const Clock* const clock_;
  Role* const role_;

  // Used only by the executor's tasks.
  std::optional<Core> core_;
  absl::Time next_publication_ = absl::InfinitePast();
  absl::Duration busy_;

  Notification ended_;
  SerialExecutor executor_;
  Liveness liveness_;
  DeadlineTimer timer_;  // last: its thread uses all of the above
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_SHELL_CORE_SHELL_H_
