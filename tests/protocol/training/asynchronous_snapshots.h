// Snapshots of asynchronous training (docs/protocol.md, sections 8.3, 8.4 and 10): the Install of a
// view pins the snapshot that the view names, because no Apply is in flight then.
//
// Two workers, two shards with one partition each, one coordinator. An update of a worker is its
// clock. Applies of one update reach the two shards at different times.
#ifndef SLUICE_TESTS_PROTOCOL_TRAINING_ASYNCHRONOUS_SNAPSHOTS_H_
#define SLUICE_TESTS_PROTOCOL_TRAINING_ASYNCHRONOUS_SNAPSHOTS_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class AsynchronousSnapshots {
 public:
  struct Options {
    uint8_t updates = 2;  // of each worker
    uint8_t snapshots = 2;
    uint8_t view_changes = 1;  // besides those for snapshots and deaths
    uint8_t worker_crashes = 1;

    // Section 10: a view change makes the snapshot; else a shard pins when it receives
    // OpenSnapshot.
    bool install_pins = true;
    // R2.
    bool promise = true;
    // R6: a worker sends Apply once both shards have acked.
    bool applies_after_all_acks = true;
  };

  static constexpr int kWorkers = 2;
  static constexpr int kShards = 2;
  static constexpr int kViews = 6;

  enum MessageType : uint8_t { kPause = 1, kInstall, kOpenSnapshot };

  struct View {
    uint8_t members, snapshot;
    uint8_t clock[kWorkers];
  };
  struct Worker {
    uint8_t alive, view, clock, staged, applying, applied;
  };
  struct Shard {
    uint8_t view, promised, snapshot;
    uint8_t clock[kWorkers], staged[kWorkers], pinned[kWorkers];
  };
  struct Message {
    MessageType type;
    uint8_t value;  // the view, or the snapshot
  };
  struct State {
    uint8_t update_is_missing, view_count, snapshots, view_changes, worker_crashes;
    uint8_t pausing, replies, opens, last_snapshot;
    uint8_t reply_clock[kShards][kWorkers];
    View views[kViews];
    Worker workers[kWorkers];
    Shard shards[kShards];
    Queue<Message, 4> messages[kShards];
  };

  explicit AsynchronousSnapshots(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  void AddWorkerSteps(const State& state, int worker, Steps<State>& steps) const;
  void AddUpdateSteps(const State& state, int worker, int shard, Steps<State>& steps) const;
  void AddArrival(const State& state, int shard, Steps<State>& steps) const;
  void Install(State& state, int shard, int view) const;
  void AddCoordinatorSteps(const State& state, Steps<State>& steps) const;
  void Decide(State& state) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_TRAINING_ASYNCHRONOUS_SNAPSHOTS_H_
