// Sums over a step (docs/protocol.md, section 7.15): the parts that members give in the middle of a
// computation, and a view that changes meanwhile.
//
// Two or three workers, one or two shards, coordinators one after another. The owner of partition 0
// makes the sums; its streams to the workers have the parts, the pushes and the messages of members
// that need no further sum, in order. The step has two samples. A sum and a gradient are the view
// that they are of: those of another view are of another division of the samples.
#ifndef SLUICE_TESTS_PROTOCOL_TRAINING_STEP_SUMS_H_
#define SLUICE_TESTS_PROTOCOL_TRAINING_STEP_SUMS_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class StepSums {
 public:
  struct Options {
    uint8_t workers = 2;
    uint8_t shards = 1;
    uint8_t steps = 1;
    uint8_t sums = 2;  // of a step
    uint8_t faults = 2;
    uint8_t worker_crashes = 0;
    uint8_t joins = 0;
    uint8_t suspicions = 0;
    uint8_t shard_crashes = 0;    // of the owner of partition 0; the other shard has a copy
    uint8_t takeovers = 0;        // a coordinator crashes, and the next one makes a view
    uint8_t changes = 0;          // a view with the same members
    uint8_t breaks = 0;           // of a worker's stream to the owner of partition 0
    bool members_differ = false;  // the second worker needs one sum less

    // The rules.
    bool install_drops_sums = true;
    bool install_drops_gradients = true;
    bool install_begins_again = true;  // else a computation continues with its next sum
    bool old_parts_are_ignored = true;
    bool old_answers_are_ignored = true;
    bool answers_are_compared = true;  // with the sum that the worker waits for
    bool parts_are_repeated = true;    // on a new stream
    bool repeated_parts_count_once = true;
    bool repeated_parts_are_answered = true;
    bool older_steps_are_ignored = true;
    bool only_computing_members_count = true;
    bool members_say_that_they_are_done = true;
  };

  static constexpr int kWorkers = 3;
  static constexpr int kShards = 2;
  static constexpr int kViews = 6;

  enum Wrong : uint8_t {
    kNothing,
    kPartsOfTwoViews,
    kPartTwice,
    kOldSum,
    kAnotherSum,
    kMixedGradients,
    kRefused,
    kFailed,
  };
  enum Kind : uint8_t { kPart, kPush, kDone };
  enum Phase : uint8_t { kOutside, kComputes, kWaitsForSum, kHasGradient, kPushed, kFinished };

  struct Frame {
    Kind kind;
    uint8_t view, step, number;
    uint8_t of;  // a gradient: the view of its sums
  };
  struct Answer {
    uint8_t view, step, number;
    uint8_t of;  // the view of its parts
  };
  struct Worker {
    uint8_t alive;
    Phase phase;
    uint8_t view, step, number;
    uint8_t computed, of;  // the samples of its gradient, and the view of their sums
    Queue<Frame, 8> sent;
    Queue<Answer, 6> answers;
  };
  struct Shard {
    uint8_t dead, view, promise;
  };
  struct Partition {
    uint8_t version;
    uint8_t given, of;  // members whose gradients are here, and the view of the gradients' sums
  };
  // Of the owner of partition 0.
  struct Sums {
    uint8_t step, number, done, of;  // of the parts
    uint8_t parts;                   // members
    uint8_t finished, finished_step, finished_number, finished_of;
  };
  struct View {
    uint8_t decided, members, owner, version;
  };
  struct Coordinator {
    uint8_t making;  // a view; 0: none
    uint8_t newest, promised, without;
  };
  struct State {
    Wrong wrong;
    uint8_t faults, worker_crashes, joins, suspicions, shard_crashes, takeovers, changes, breaks;
    Worker workers[kWorkers];
    Shard shards[kShards];
    Partition partitions[kShards];
    Sums sums;
    View views[kViews];
    Coordinator coordinator;
  };

  explicit StepSums(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  int Needed(int worker) const { return options_.sums - (options_.members_differ && worker == 1); }
  void AddWorkerSteps(const State& state, int worker, Steps<State>& steps) const;
  void AddDeliveries(const State& state, int worker, Steps<State>& steps) const;
  void AddViewSteps(const State& state, Steps<State>& steps) const;
  void AddInstalls(const State& state, int view, Steps<State>& steps) const;
  void AddWorkerFaults(const State& state, int worker, Steps<State>& steps) const;
  void AddFaults(const State& state, Steps<State>& steps) const;

  void BeginStep(State& state, int worker) const;
  void Install(State& state, int worker, int view) const;
  void TakeAnswer(State& state, int worker) const;
  void TakeFrame(State& state, int worker) const;
  void TakePart(State& state, int worker, const Frame& frame) const;
  void TakePush(State& state, int worker, int partition, const Frame& frame) const;
  void Give(State& state, int worker) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_TRAINING_STEP_SUMS_H_
