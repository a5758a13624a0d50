// A split cluster: the two halves of a job with two copies of each partition (docs/protocol.md,
// "Not in this version", R4).
//
// Two shards have one partition: A owns it, B follows. The network splits, with A on one side and B
// on the other, and heals. A coordinator is on one side; up to six run, two at a time. The storage,
// which all coordinators reach, has the loss records: each names the shards that continue.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_SPLIT_CLUSTER_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_SPLIT_CLUSTER_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class SplitCluster {
 public:
  struct Options {
    uint8_t steps = 2;
    uint8_t faults = 3;
    uint8_t splits = 1;
    uint8_t shard_crashes = 1;
    uint8_t coordinator_crashes = 1;
    uint8_t second_coordinators = 1;

    // R4: a view that leaves out a shard is claimed in the storage first.
    bool claim = true;
    // R1: an Install belongs to one Pause.
    bool installs_name_pause = true;
    // R1: a coordinator that a shard refuses exits.
    bool refused_exits = true;
  };

  static constexpr int kShards = 2;
  static constexpr int kCoordinators = 6;
  static constexpr int kViews = 12;
  static constexpr int kRecords = 6;

  enum Network : uint8_t { kWhole, kSplit, kHealed };

  struct View {
    uint8_t number, term, shards, record, first_step, pause;
  };
  struct Shard {
    uint8_t alive, view, term, promised, promised_to, version;
    uint8_t alone;  // it closed a step without the other shard
    uint8_t pause;
  };
  struct Coordinator {
    uint8_t alive, term, pausing, view, replies, side, pause;
    uint8_t record;  // the newest loss record that it knows; 0: none
  };
  struct State {
    uint8_t two_histories, rolled_back, restored;
    Network network;
    uint8_t faults, splits, shard_crashes, coordinator_crashes, second_coordinators;
    uint8_t view_count, record_count;
    uint8_t records[kRecords];  // the shards that continue
    View views[kViews];
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    uint8_t installs[kCoordinators][kShards];  // in flight: a view, or kNone
  };

  explicit SplitCluster(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  void AddTraining(const State& state, Steps<State>& steps) const;
  void AddFaults(const State& state, Steps<State>& steps) const;
  void AddInstall(const State& state, int coordinator, int shard, Steps<State>& steps) const;
  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddPauseSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddNextPause(const State& state, int coordinator, Steps<State>& steps) const;
  void AddDecision(const State& state, int coordinator, Steps<State>& steps) const;
  void AddRestore(const State& state, int coordinator, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_SPLIT_CLUSTER_H_
