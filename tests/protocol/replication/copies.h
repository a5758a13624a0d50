// Second copies and moves of partitions in synchronous training (docs/protocol.md, section 7, R4
// and R10): copies that are made while training continues, streams between shards that break,
// promotion when an owner dies, moves at view changes, coordinators that are replaced, loss
// records.
//
// The workers are abstract, as in snapshots_and_moves.h. An owner has one step of each partition
// open, so at most one entry of its log for each partition is in flight to each receiver. A
// receiver carries out an owner's entries in their order, and its ack of one acks all entries
// before it. Frames that are in flight when their sender installs a view are lost. A Pause and its
// reply are one step. The Install of a view may arrive as long as its shard is bound by the view's
// Pause, also after the death of the coordinator. Two partitions, up to three shards, two
// coordinators at a time. The model ends where a new attempt begins.
#ifndef SLUICE_TESTS_PROTOCOL_REPLICATION_COPIES_H_
#define SLUICE_TESTS_PROTOCOL_REPLICATION_COPIES_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Copies {
 public:
  // The further effect of a planned view change.
  enum class Plan {
    kNone,
    kSwap,   // owner and follower of partition 0
    kMove,   // partition 0 to shard 2, the target from the start
    kDrain,  // shard 0 leaves
  };
  // How a copy counts if its shard lacks the newest view.
  enum class OlderCopy {
    // R3: it counts if the newest view assigns it to the shard, and it can be at the first step.
    kCheckedAgainstNewest,
    kAsReplied,
  };

  struct Options {
    uint8_t shards = 2;
    uint8_t steps = 2;
    bool followers = true;       // each partition has a follower on another shard
    bool whole_at_start = true;  // the followers' copies
    bool third_in_view = true;   // shard 2 is in the first view, without partitions
    // Shard 0 owns both partitions; shard 1 follows partition 0, and shard 2 partition 1.
    bool one_owner = false;
    bool snapshot = false;  // of version 1, open from the start
    Plan plan = Plan::kNone;

    uint8_t faults = 2;
    uint8_t changes = 0;  // planned view changes
    uint8_t shard_crashes = 0;
    uint8_t suspicions = 0;  // wrong ones
    uint8_t breaks = 0;      // of a stream between two shards
    uint8_t coordinator_crashes = 0;
    uint8_t second_coordinators = 0;

    // An owner closes a step only when the copies hold it, also those that are not whole yet.
    bool gates_from_start = true;
    bool base_is_committed = true;    // the version with which a copy begins
    bool drops_others = true;         // an Install drops the copies that it does not name whole
    bool resends = true;              // after a break
    bool answers_repetitions = true;  // while promised: acks the steps that a whole copy has
    // An entry that a promised shard drops is not acked with an entry behind it.
    bool acks_stop_at_dropped_entry = true;
    // Each queued step fills the receiver's queue: it holds its acks back until the copy is whole.
    bool queue_is_full = false;
    bool promise_releases_acks = true;
    // An Install goes first to the shards that lose a partition or a whole copy by it.
    bool losers_first = true;
    // A planned change begins when all shards have installed the view.
    bool plans_wait_for_installs = true;
    // R2.
    bool promise = true;
    bool promised_stays_partial = true;  // a copy does not become whole
    // R3.
    bool older_view_is_at_first_step = true;
    OlderCopy older_copy = OlderCopy::kCheckedAgainstNewest;
    // R4.
    bool claim = true;
    bool carries_out_records = true;  // a new coordinator, first of all
    // R10.
    bool copies_count_for_after_step = true;
    // R14.
    bool snapshot_is_abandoned = true;  // when an owner has died with its pins
  };

  static constexpr int kPartitions = 2;
  static constexpr int kShards = 3;
  static constexpr int kCoordinators = 2;
  static constexpr int kViews = 14;
  static constexpr int kRecords = 6;

  enum Error : uint8_t {
    kNoError,
    kCommitTakenBack,
    kContentsDiffer,
    kCopyOutOfStep,
    kNotHeld,
    kCannotRollBack,
    kBehindView,
    kTooManyViews,
    kGivenUp,
  };
  enum Pausing : uint8_t { kRunning, kWaiting, kPromised };

  struct View {
    uint8_t term, number, first_step, shards;
    uint8_t owner[kPartitions], follower[kPartitions], target[kPartitions];
    uint8_t whole[kPartitions];  // shards whose copies the Install names
    uint8_t losers;              // shards that lose something, or are drained
    uint8_t record;
    uint8_t reach;  // a worker can have all partitions at this step
  };
  // The content of a version has four bits for each of its steps: the view in which the step was
  // closed, plus 1.
  struct Shard {
    uint16_t content[kPartitions];
    uint16_t queue[kPartitions];  // steps of a copy that is not whole
    uint8_t alive, term, view;
    Pausing pausing;
    uint8_t pause, after_step;
    uint8_t holds, undo;  // owned partitions and whole copies
    uint8_t receives;     // copies that are not whole
    // Owned partitions with all contributions to the step, and with the snapshot's version pinned;
    // shards that receive a copy; frames in flight to and from them.
    uint8_t complete, pinned;
    uint8_t gates[kPartitions], acked[kPartitions];
    uint8_t sends_state[kPartitions], sends_step[kPartitions], sends_ack[kPartitions];
    uint8_t base[kPartitions][kShards];
    // Receivers whose entry of partition 1 is ahead of that of partition 0; neither is acked.
    uint8_t swapped;
  };
  struct Reply {
    uint8_t view, holds, undo, version[kPartitions];
  };
  struct Coordinator {
    uint8_t alive, term, pausing, view, number, planned;
    uint8_t after_step;  // plus 1; 0: Now
    uint8_t lost;        // shards that it has expelled
    uint8_t record, replies;
    Reply reply[kShards];
  };
  struct State {
    uint16_t committed;
    Shard shards[kShards];
    View views[kViews];
    Coordinator coordinators[kCoordinators];
    uint8_t records[kRecords];
    uint8_t record_count, view_count, highest_term;
    Error error;
    uint8_t restored, unprotected, losses;
    uint8_t snapshot, written;
    uint8_t faults, shard_crashes, suspicions, breaks, changes, coordinator_crashes;
    uint8_t second_coordinators;
  };

  static int VersionOf(uint16_t content) {
    int version = 0;
    while (content >> (4 * version) & 15) ++version;
    return version;
  }

  explicit Copies(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  void AddTraining(const State& state, int shard, Steps<State>& steps) const;
  void AddCopying(const State& state, int shard, int partition, Steps<State>& steps) const;
  void AddBreaks(const State& state, int shard, Steps<State>& steps) const;
  void AddInstalls(const State& state, int shard, Steps<State>& steps) const;
  void AddCrash(const State& state, int shard, Steps<State>& steps) const;
  void Gate(State& state, int from, int to, int partition) const;
  bool MayReceiveStep(const State& state, int from, int to, int partition) const;
  bool HoldsAcksBack(const Shard& receiver) const;
  bool ReceiveStep(State& state, int from, int to, int partition) const;
  void ReceiveState(State& state, int from, int to, int partition) const;
  void TryClose(State& state, int shard, int partition) const;
  void Commit(State& state, uint16_t content) const;
  void Install(State& state, int shard, int view) const;
  void CheckAfterStep(State& state, int shard) const;
  void Reach(State& state, int view) const;
  void CountLoss(State& state, int shard) const;

  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddViewChanges(const State& state, int coordinator, Steps<State>& steps) const;
  void AddPauses(const State& state, int coordinator, Steps<State>& steps) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;
  void StartPause(State& state, int coordinator, int after_step, bool planned) const;
  void PauseShard(State& state, int coordinator, int shard) const;
  void SendReply(State& state, int shard) const;
  void Decide(State& state, int coordinator) const;
  bool ChooseOwners(const State& state, const Coordinator& coordinator, int newest,
                    View& view) const;
  void CarryOutPlan(const Coordinator& coordinator, int newest, const State& state,
                    View& view) const;
  void AssignCopies(const State& state, const Coordinator& coordinator, int newest,
                    View& view) const;
  bool Holds(const State& state, const Coordinator& coordinator, int newest, int shard,
             int partition) const;
  bool CanStand(const State& state, const Coordinator& coordinator, int newest, int shard,
                int partition, int first_step) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_REPLICATION_COPIES_H_
