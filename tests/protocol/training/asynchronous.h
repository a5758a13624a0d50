// Asynchronous training (docs/protocol.md, section 8): leases recorded at the arbiter, permits,
// updates that are staged, acked and applied; view changes in which the highest clock wins; second
// copies of partitions, also copies that are made while training continues; workers that are
// suspected, crash and return; up to three coordinators.
//
// Two workers and one that may start, two shards with one partition each; shard 0 has partition 0
// and is the arbiter. A sample is one update. An ack, a permit and a shard's reply to a coordinator
// are one step with what they answer. The model ends where a partition has no copy left.
#ifndef SLUICE_TESTS_PROTOCOL_TRAINING_ASYNCHRONOUS_H_
#define SLUICE_TESTS_PROTOCOL_TRAINING_ASYNCHRONOUS_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Asynchronous {
 public:
  struct Options {
    uint8_t samples = 2;
    uint8_t lease = 1;  // samples
    bool copies = false;
    bool makes_copies = false;  // with copies: training begins before they are whole
    bool one_owner = false;     // shard 0 owns both partitions

    uint8_t faults = 2;
    uint8_t worker_crashes = 0;
    uint8_t suspicions = 0;
    uint8_t shard_crashes = 0;
    uint8_t coordinator_crashes = 0;
    uint8_t second_coordinators = 0;
    uint8_t starts = 0;              // of workers while others run
    bool same_index_starts = false;  // a crashed worker's index may start again
    uint8_t arbiter_moves = 0;

    // R2.
    bool promise = true;
    // R6: a worker sends Apply once all shards have acked; else to each shard that has.
    bool applies_after_all_acks = true;
    // R6, with copies: a shard acks once its follower has the update, too.
    bool acks_after_follower = true;
    // With copies: an owner applies an update at once, and answers once its follower has it
    // applied.
    bool answers_after_follower = true;
    // With copies: an owner sends the updates that it has staged before the state of the copy.
    bool sends_staged_before_state = true;
    // R7: a worker that was expelled returns as a new incarnation, and clocks belong to
    // incarnations.
    bool returns_as_new_incarnation = true;
    bool clocks_belong_to_incarnations = true;
    // R8: a recorded lease is given again on request, after the arbiter has confirmed that the
    // coordinator is not replaced.
    bool gives_lease_again = true;
    bool arbiter_confirms = true;
    // R8: the arbiter refuses to record a lease for a replaced coordinator.
    bool arbiter_refuses_old_terms = true;
    // R8, with copies: a lease counts as recorded once the arbiter's follower has it.
    bool follower_has_leases = true;
    // Permits end with the view (section 8.2).
    bool permits_end_with_view = true;
  };

  static constexpr int kWorkers = 3;
  static constexpr int kPartitions = 2;
  static constexpr int kShards = 2;
  static constexpr int kCoordinators = 3;
  static constexpr int kViews = 9;

  enum Error : uint8_t {
    kNoError,
    kAppliedTwice,
    kUpdateIsMissing,
    kLeasedTwice,
    kChannelIsFull,
    kTooManyViews,
    kApplyWithoutUpdate,
    kFollowerOutOfStep,
    kSampleIsLost,
    kAnsweredUpdateIsLost,
  };
  enum Phase : uint8_t { kIdle, kPauses, kDecided };
  enum Change : uint8_t { kNoChange, kMovesArbiter, kAddsWorkers };

  struct View {
    uint8_t number, term, members;
    uint8_t incarnation[kWorkers], owner[kPartitions], follower[kPartitions];
    uint8_t clock[kWorkers], kept_sample[kWorkers];  // the newest update that is kept
    uint8_t leases[kWorkers];
    uint8_t applied;  // samples
  };
  struct Worker {
    uint8_t alive, view, incarnation, clock;
    uint8_t lease;   // samples
    uint8_t update;  // the sample + 1 that it computes
    uint8_t permit, pushed, acked, apply_sent, applied;
  };
  struct Copy {
    uint8_t has, applied;
    uint8_t clock[kWorkers], staged_clock[kWorkers], staged_sample[kWorkers];  // sample + 1
    uint8_t waits_for_follower;  // workers whose Apply is answered when the follower has it
    uint8_t begun;               // owner: the follower gets all updates from now on
  };
  struct Shard {
    uint8_t alive, term, view, promised, promised_to, permits;
    uint8_t leases[kWorkers];
    Copy copies[kPartitions];
  };
  struct Coordinator {
    uint8_t alive, term;
    Phase phase;
    uint8_t view, replies, suspects;
    Change change;
    uint8_t leases[kWorkers];
    uint8_t recording;  // the worker + 1 whose lease the arbiter is to record
    uint8_t recording_samples, recorded;
  };
  enum PushType : uint8_t { kUpdate = 1, kApply };
  struct Push {
    PushType type;
    uint8_t view, clock, partition, sample;
  };
  enum ShardMessageType : uint8_t { kStage = 1, kStaged, kApplyCopy, kApplied, kCopyState };
  struct ShardMessage {
    ShardMessageType type;
    uint8_t view, worker, clock, partition, sample;
    uint8_t applied, clocks[kWorkers];  // of a copy's state
  };
  enum MessageType : uint8_t { kPause = 1, kInstall = 3, kRecordLease };
  struct Message {
    MessageType type;
    uint8_t view, worker, samples;
  };
  struct State {
    Error error;
    uint8_t view_count, faults, worker_crashes, suspicions, coordinator_crashes;
    uint8_t second_coordinators, shard_crashes, starts, arbiter_moves;
    View views[kViews];
    Worker workers[kWorkers];
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    Queue<Push, 5> pushes[kWorkers][kShards];
    Queue<ShardMessage, 7> between[kShards][kShards];
    Queue<Message, 3> messages[kCoordinators][kShards];
  };

  explicit Asynchronous(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  uint8_t AllSamples() const { return Byte((1 << options_.samples) - 1); }

  void AddWorkerStart(const State& state, int worker, Steps<State>& steps) const;
  void AddAdoption(const State& state, int worker, Steps<State>& steps) const;
  void AddUpdateSteps(const State& state, int worker, Steps<State>& steps) const;

  void AddPushArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddCopies(const State& state, int shard, Steps<State>& steps) const;
  void AddShardMessageArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddMessageArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddShardCrash(const State& state, int shard, Steps<State>& steps) const;
  void ReceivePush(State& state, int worker, int shard, const Push& push) const;
  void ReceiveShardMessage(State& state, int from, int shard, const ShardMessage& message) const;
  void RecordLease(State& state, int coordinator, int shard, const Message& message) const;
  void Install(State& state, int shard, int view) const;
  void InstallCopy(State& state, int shard, int partition, int old_view) const;

  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddViewChanges(const State& state, int coordinator, Steps<State>& steps) const;
  void AddLeaseSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddLease(const State& state, int coordinator, int worker, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;
  bool Decide(State& state, int coordinator) const;
  void Restore(State& state, Coordinator& coordinator, View view) const;
  void DecideClocks(State& state, View& view) const;
  bool DecideMembers(const State& state, const Coordinator& coordinator, const View& old,
                     View& view) const;
  void MoveArbiter(State& state, View& view) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_TRAINING_ASYNCHRONOUS_H_
