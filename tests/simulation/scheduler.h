// Simulated time: the order of events, which the seed alone determines.
#ifndef SLUICE_TESTS_SIMULATION_SCHEDULER_H_
#define SLUICE_TESTS_SIMULATION_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace sluice::simulation {

// The one source of randomness of a simulation.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t Next() { return engine_(); }
  // In [0, n); n > 0.
  uint64_t Below(uint64_t n) { return engine_() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  absl::Duration Between(absl::Duration low, absl::Duration high) {
    const auto span = static_cast<uint64_t>(absl::ToInt64Nanoseconds(high - low));
    return low + absl::Nanoseconds(static_cast<int64_t>(Below(span + 1)));
  }

 private:
  std::mt19937_64 engine_;
};

// Events run one at a time, by time, then in the order in which they were planned.
class Scheduler {
 public:
  absl::Time now() const { return now_; }
  uint64_t events() const { return events_; }

  void At(absl::Time time, std::function<void()> event) {
    queue_.push({std::max(time, now_), next_++, std::move(event)});
  }
  void After(absl::Duration delay, std::function<void()> event) {
    At(now_ + delay, std::move(event));
  }
  // False if no event is planned.
  bool RunOne() {
    if (queue_.empty()) return false;
    Event event = std::move(const_cast<Event&>(queue_.top()));
    queue_.pop();
    now_ = event.time;
    ++events_;
    event.run();
    return true;
  }

 private:
  struct Event {
    absl::Time time;
    uint64_t number;
    std::function<void()> run;
    // A priority queue returns its largest element first.
    friend bool operator<(const Event& a, const Event& b) {
      return a.time != b.time ? a.time > b.time : a.number > b.number;
    }
  };

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  uint64_t next_ = 0;
  uint64_t events_ = 0;
  std::priority_queue<Event> queue_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_SCHEDULER_H_
