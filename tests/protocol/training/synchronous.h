// Synchronous training (docs/protocol.md, sections 5 and 7): pushes, closes, undo and commit; view
// changes by up to three coordinators, whose messages may arrive after their death; second copies
// of partitions; sums across shards; a move of partition 0 to a third shard.
//
// Two workers and one that joins, two partitions, a step of three microbatches. A pull is one step
// with its answer, and so is a shard's reply to a coordinator. The model ends where a partition has
// no copy left.
#ifndef SLUICE_TESTS_PROTOCOL_TRAINING_SYNCHRONOUS_H_
#define SLUICE_TESTS_PROTOCOL_TRAINING_SYNCHRONOUS_H_

#include <cstdint>
#include <string>
#include <utility>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Synchronous {
 public:
  // The action of a new coordinator after it has all replies.
  enum class AfterSurvey {
    kNewView,        // R3: always decides a new view
    kInstallsAgain,  // sends the newest view again; a shard that has it begins it again
    kContinues,      // sends the newest view again; a shard that has it continues
  };

  struct Options {
    uint8_t shards = 2;
    uint8_t steps = 3;
    bool copies = false;
    bool sums = false;  // a step closes once all shards know the sums of all partitions
    bool move = false;  // of partition 0 to shard 2
    uint8_t joins_per_coordinator = 2;
    bool last_step_commits = false;  // the job is done only when the last version is committed

    uint8_t faults = 2;
    uint8_t worker_crashes = 0;
    uint8_t suspicions = 0;
    uint8_t joins = 0;
    uint8_t shard_crashes = 0;
    uint8_t coordinator_crashes = 0;
    uint8_t second_coordinators = 0;

    // R1.
    bool views_have_terms = true;
    bool pauses_are_numbered = true;
    bool terms_are_unique = true;
    bool refused_exits = true;
    // R2.
    bool promise = true;
    // R3.
    AfterSurvey after_survey = AfterSurvey::kNewView;
    // R5.
    bool now_overrides = true;
    bool after_step_waits_for_followers = true;
    // R9.
    bool drops_older_pulls = true;
    // R10.
    bool target_rolls_back = true;
    bool target_counts_with_step = true;
    // The coordinator commits the last version, which no later push commits (section 7.4).
    bool coordinator_commits_last = true;
  };

  static constexpr int kWorkers = 3;
  static constexpr int kPartitions = 2;
  static constexpr int kShards = 3;
  static constexpr int kCoordinators = 3;
  static constexpr int kViews = 10;
  static constexpr uint8_t kAllMicrobatches = 7;

  enum Error : uint8_t {
    kNoError,
    kAddedTwice,
    kIncompleteStep,
    kCannotRollBack,
    kBehindView,
    kTwoViews,
    kPushAhead,
    kFollowerOutOfStep,
    kTooManyViews,
    kChannelIsFull,
    kMoveOutOfStep,
    kNotHeld,
  };
  enum Pausing : uint8_t { kRunning, kWaiting, kPromised };
  enum Phase : uint8_t { kIdle, kPauses, kDecided };
  // Why a coordinator pauses.
  enum Reason : uint8_t { kNoReason, kDeath, kJoin, kSurvey, kMove };
  enum MoveState : uint8_t { kNoMove, kMoveBegun, kMoveStops, kMoved };

  struct View {
    uint8_t number, term, members, first_step;
    uint8_t owner[kPartitions], follower[kPartitions];
  };
  struct Push {
    uint8_t view, step, partition, microbatches;
  };
  enum ShardMessageType : uint8_t { kGradient = 1, kGradientAck, kSum, kBase };
  struct ShardMessage {
    ShardMessageType type;
    uint8_t view, partition, step;
  };
  enum MessageType : uint8_t { kPauseNow = 1, kPauseAfterStep, kInstall };
  struct Message {
    MessageType type;
    uint8_t view, step, pause;
  };
  struct Worker {
    uint8_t alive, view, step;
    uint8_t pulled[kPartitions];  // versions, or kNone
    uint8_t pushed;               // partitions
    uint8_t has_gradient, gradient;
  };
  struct Shard {
    uint8_t alive, term, view;
    Pausing pausing;
    uint8_t after_step, promised_to, pause, has, undo;
    uint8_t version[kPartitions];
    uint8_t complete[kPartitions];      // the members that have pushed this step
    uint8_t microbatches[kPartitions];  // that have arrived
    uint8_t sent_to_follower, sums, sends_to_target;
  };
  struct Coordinator {
    uint8_t alive, term;
    Phase phase;
    uint8_t view;
    Reason reason;
    uint8_t after_step, replies;
    uint8_t reply_view[kShards], reply_version[kShards][kPartitions], reply_has[kShards];
    uint8_t suspects, changes, pause;
  };
  struct State {
    Error error;
    uint8_t view_count, faults, worker_crashes, suspicions, coordinator_crashes;
    uint8_t second_coordinators, shard_crashes, joins;
    MoveState move;
    View views[kViews];
    Worker workers[kWorkers];
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    Queue<Push, 4> pushes[kWorkers][kShards];
    Queue<ShardMessage, 5> between[kShards][kShards];
    Queue<Message, 3> messages[kCoordinators][kShards];
  };

  explicit Synchronous(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  int Compare(const State& state, int a, int b) const;

  void AddWorkerSteps(const State& state, int worker, Steps<State>& steps) const;
  void AddAdoption(const State& state, int worker, Steps<State>& steps) const;
  void AddPull(const State& state, int worker, int partition, Steps<State>& steps) const;
  void AddPush(const State& state, int worker, int partition, Steps<State>& steps) const;
  void AddJoin(const State& state, Steps<State>& steps) const;

  void AddPushArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddShardMessageArrivals(const State& state, int shard, Steps<State>& steps) const;
  void ReceiveBase(State& state, int shard, const ShardMessage& message) const;
  void ReceiveGradient(State& state, int from, int shard, const ShardMessage& message) const;
  void AddMessageArrivals(const State& state, int shard, Steps<State>& steps) const;
  void AddMoveBase(const State& state, Steps<State>& steps) const;
  void AddShardCrash(const State& state, int shard, Steps<State>& steps) const;
  void Reply(State& state, int shard) const;
  void CheckAfterStep(State& state, int shard) const;
  void Send(State& state, int from, int to, const ShardMessage& message) const;
  void Close(State& state, int shard, int partition) const;
  void TryClose(State& state, int shard) const;
  void Install(State& state, int shard, int view) const;
  void RollBack(State& state, int shard, int view) const;

  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddViewChanges(const State& state, int coordinator, Steps<State>& steps) const;
  std::pair<int, int> Versions(const State& state, const View& view) const;
  void AddLastCommit(const State& state, int coordinator, Steps<State>& steps) const;
  void AddMoveSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddPauseSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;
  bool MemberIsDead(const State& state, const View& view) const;
  void StartPause(State& state, int coordinator, Reason reason, int after_step) const;
  bool Decide(State& state, int coordinator) const;
  bool ChooseOwners(const State& state, const Coordinator& coordinator, int newest,
                    View& view) const;
  void Restore(State& state, Coordinator& coordinator, View view) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_TRAINING_SYNCHRONOUS_H_
