// The protocol around synchronous training (docs/protocol.md, sections 6.1, 10 and 11): snapshots
// and their files, a move of partition 0 to shard 2, new attempts after a shard's death, the end of
// the job.
//
// The workers are abstract: a push of a step may arrive wherever a worker could have had all
// partitions at that step (View::reach). Each version has a tag, the view in which it was closed,
// so the model checks contents and not only numbers. Two partitions, two shards and the target of
// the move, up to three coordinators.
#ifndef SLUICE_TESTS_PROTOCOL_REPLICATION_SNAPSHOTS_AND_MOVES_H_
#define SLUICE_TESTS_PROTOCOL_REPLICATION_SNAPSHOTS_AND_MOVES_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class SnapshotsAndMoves {
 public:
  // How a view change treats the open snapshot.
  enum class ViewChange {
    kNamesSnapshot,  // R14: the Install names it; a shard that drops its pin pins again
    kAbandons,       // the Install names none
    kNamesNothing,   // a shard that drops its pin drops the request with it
  };
  // How a view treats a shard of an older attempt.
  enum class OlderAttempt {
    kLoads,      // R3: the view names its attempt's checkpoint, and the shard loads it
    kIsLost,     // the coordinator claims another attempt
    kRollsBack,  // the shard rolls back like every other
  };

  struct Options {
    uint8_t shards = 2;
    uint8_t steps = 2;
    uint8_t snapshots = 1;
    bool move = false;
    bool end = false;  // the job ends with a checkpoint of the last version and an end record

    uint8_t faults = 2;
    uint8_t worker_crashes = 0;
    uint8_t joins = 0;
    uint8_t shard_crashes = 0;
    uint8_t coordinator_crashes = 0;
    uint8_t second_coordinators = 0;

    // R3.
    OlderAttempt older_attempt = OlderAttempt::kLoads;
    // R11.
    bool end_is_claimed = true;
    bool late_shards_are_told_of_end = true;
    // R14.
    ViewChange view_change = ViewChange::kNamesSnapshot;
    bool writes_committed_only = true;
    bool source_keeps_pin = true;  // after a move
    bool last_commit_is_told = true;
    // A new coordinator continues a move that it finds; else it drops it. Both hold.
    bool move_continues = true;
  };

  static constexpr int kPartitions = 2;
  static constexpr int kShards = 3;
  static constexpr int kCoordinators = 3;
  static constexpr int kViews = 12;
  static constexpr int kAttempts = 6;
  static constexpr int kVersions = 5;

  enum Error : uint8_t {
    kNoError,
    kMixedIndex,
    kCannotRollBack,
    kBehindView,
    kCommitTakenBack,
    kTwoViews,
    kChannelIsFull,
    kTooManyViews,
    kMoveOutOfStep,
    kNotHeld,
    kBadRestore,
    kUncommittedFile,
    kTooManySteps,
    kEndsTwice,
    kTooManyAttempts,
  };
  enum Pausing : uint8_t { kRunning, kWaiting, kPromised };
  enum Ending : uint8_t { kTrains, kLastIsCommitted, kFinished };
  enum Phase : uint8_t { kIdle, kPauses, kDecided };
  enum Reason : uint8_t { kNoReason, kDeath, kJoin, kSurvey, kMove };
  enum MoveState : uint8_t { kNoMove, kMoveBegun, kMoveStops, kMoved };
  enum Final : uint8_t { kNotFinal, kCommitted, kSentFinish = 3 };

  struct View {
    uint8_t attempt, term, number, first_step;
    uint8_t owner[kPartitions];
    uint8_t workers;   // the generation of its workers
    uint8_t reach;     // a worker can have all partitions at this step
    uint8_t snapshot;  // the step + 1
    uint8_t restores, restored_tag;
  };
  struct MoveMessage {
    uint8_t is_base, view, step, tag;
  };
  enum MessageType : uint8_t {
    kPauseNow = 1,
    kPauseAfterStep,
    kInstall,
    kOpenSnapshot,
    kLastCommitted,
    kFinish,
  };
  struct Message {
    MessageType type;
    uint8_t view, step, pause;
  };
  struct Shard {
    uint8_t alive, empty, term, view;
    Pausing pausing;
    uint8_t after_step, promised_to, pause, has, undo;
    uint8_t pushed;  // the partitions that have a push of the current step
    uint8_t version[kPartitions], tag[kPartitions], undo_tag[kPartitions];
    uint8_t snapshot;  // the step + 1 that it is to pin
    uint8_t pinned, pinned_tag[kPartitions], written;
    Ending ending;
  };
  struct Coordinator {
    uint8_t alive, term;
    Phase phase;
    uint8_t view;
    Reason reason;
    uint8_t after_step, replies;
    uint8_t reply_view[kShards], reply_version[kShards][kPartitions], reply_has[kShards];
    uint8_t reply_pins[kShards], reply_snapshot[kShards];
    uint8_t pause;
    uint8_t snapshot, snapshot_written, snapshot_is_past;
    uint8_t highest_claim;
    Final final;
    uint8_t moves;
  };
  struct State {
    Error error;
    uint8_t view_count, faults, worker_crashes, coordinator_crashes, shard_crashes, joins;
    uint8_t snapshots, second_coordinators;
    uint8_t workers;      // their generation: a crash begins the next one
    uint8_t last_pushes;  // of the worker that crashed: by partition; bit 2: it may begin a step
    MoveState move;
    uint8_t source_sends;
    uint8_t end_record;  // the attempt
    uint8_t workers_finished;
    View views[kViews];
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    Queue<MoveMessage, 8> move_messages;
    Queue<Message, 7> messages[kCoordinators][kShards];
    // By attempt and version: the tag of each file, the indexes, and the tag that was committed.
    uint8_t files[kAttempts][kVersions][kPartitions];
    uint8_t indexes[kAttempts][kVersions];
    uint8_t committed[kAttempts][kVersions];
    uint8_t claims[kAttempts];  // the parent: 16 * attempt + version
  };

  explicit SnapshotsAndMoves(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  void Commit(State& state, int attempt, int version, uint8_t tag) const;
  void Send(State& state, int coordinator, int shard, const Message& message) const;
  void SendToAll(State& state, int coordinator, const Message& message) const;
  bool AllSettled(const State& state) const;
  void AddWorkerCrashes(const State& state, Steps<State>& steps) const;
  void AddMoveSteps(const State& state, Steps<State>& steps) const;

  void AddTraining(const State& state, int shard, Steps<State>& steps) const;
  void AddWrites(const State& state, int shard, Steps<State>& steps) const;
  void AddMessageArrivals(const State& state, int shard, Steps<State>& steps) const;
  void Receive(State& state, int coordinator, int shard, const Message& message) const;
  void AddShardCrash(const State& state, int shard, Steps<State>& steps) const;
  void Reply(State& state, int shard) const;
  void CheckAfterStep(State& state, int shard) const;
  void Pin(State& state, int shard) const;
  void Close(State& state, int shard, int partition) const;
  void SetSnapshot(State& state, int shard, uint8_t snapshot) const;
  void Install(State& state, int shard, int view) const;
  void Load(State& state, int shard) const;
  bool RollBack(State& state, int shard) const;
  bool RollBackPartition(State& state, int shard, int partition, uint8_t& keeps) const;

  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddIdleSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddViewChanges(const State& state, int coordinator, Steps<State>& steps) const;
  void AddMoveStops(const State& state, int coordinator, Steps<State>& steps) const;
  void AddSnapshotSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddIndex(const State& state, int coordinator, Steps<State>& steps) const;
  void AddLastCommit(const State& state, int coordinator, Steps<State>& steps) const;
  void AddEnd(const State& state, int coordinator, Steps<State>& steps) const;
  void AddFinish(const State& state, int coordinator, Steps<State>& steps) const;
  void AddPauseSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;
  void StartPause(State& state, int coordinator, Reason reason, int after_step) const;
  void Decide(State& state, int coordinator) const;
  bool DecideFirstStep(const State& state, const Coordinator& coordinator, int newest,
                       View& view) const;
  void DecideSnapshot(Coordinator& coordinator, View& view) const;
  void Restore(State& state, int coordinator, View view) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_REPLICATION_SNAPSHOTS_AND_MOVES_H_
