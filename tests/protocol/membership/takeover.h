// Takeover of a job by a new coordinator within an attempt (docs/protocol.md, 6.3).
//
// Up to three coordinators with rising terms. One that is replaced does not know it: it may do
// nothing for any time, and continue at any moment. A new coordinator decides its first view from
// the shards' replies to its Pause, while messages of its predecessors still arrive. Each of them
// also writes checkpoints: shards write the files of a snapshot, then the coordinator writes the
// index that names them, and removes files of snapshots that were abandoned. All coordinators reach
// one storage. A checkpoint is lost if a file that the newest index names is removed.
//
// Two shards with one partition each; abstract workers, as in snapshots_and_moves.h.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_TAKEOVER_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_TAKEOVER_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Takeover {
 public:
  // When a coordinator removes a file that no index names.
  enum class Removal {
    kNever,
    kBelowOwnIndex,  // once the coordinator itself has written the index of a later version
    // Once it has written the index of a later version, or has found one when it took over; or once
    // WhenOver says that no index will name the file. For `abandoned` only. (Coordinators do this,
    // with kNever for `found`.)
    kOnceOver,
    kAtOnce,
  };

  // Why no coordinator will write the index of a version. A part that is false is left out.
  struct WhenOver {
    // A later version is committed: the coordinators after this one do not return to the version,
    bool later_is_committed = true;
    // if that happened in a view of this coordinator. A later one may be about to write the index.
    bool in_own_view = true;
    // The version is later than the first step of this coordinator's first view. So the shards have
    // not written it for the coordinators before this one.
    bool after_own_first_step = true;
    // This coordinator has not asked for the version's index.
    bool index_is_not_asked_for = true;
  };

  struct Options {
    uint8_t steps = 2;
    uint8_t second_coordinators = 1;
    uint8_t coordinator_crashes = 0;
    uint8_t view_changes = 1;  // besides those of new coordinators
    uint8_t snapshots = 2;
    uint8_t abandons = 1;  // of snapshots, for instance because a write failed

    // The files of an abandoned snapshot.
    Removal abandoned = Removal::kBelowOwnIndex;
    // The files of other coordinators' snapshots.
    Removal found = Removal::kBelowOwnIndex;
    WhenOver when_over;
    // An index that was asked for may be written although the snapshot is abandoned then.
    bool asked_index_is_written = false;
    // A snapshot's files and index are named by its coordinator's term, too.
    bool names_have_terms = false;

    // R1: shards refuse lower terms. (The other parts of R1 are in synchronous.h.)
    bool lower_terms_are_refused = true;
    // R2.
    bool promise = true;
    // R3: a shard without the newest view is at that view's first step.
    bool older_view_is_at_first_step = true;
  };

  static constexpr int kShards = 2;
  static constexpr int kCoordinators = 3;
  static constexpr int kViews = 8;
  static constexpr int kVersions = 4;

  enum Error : uint8_t {
    kNoError,
    kTwoViews,
    kCommitTakenBack,
    kCannotRollBack,
    kBehindView,
    kUncommittedFile,
    kTooManyViews,
    kChannelIsFull,
  };
  enum Phase : uint8_t { kIdle, kPauses };
  enum MessageType : uint8_t { kPause = 1, kInstall, kOpenSnapshot };

  struct View {
    uint8_t term, number, first_step;
    uint8_t reach;  // a worker can have both partitions at this step
  };
  struct Message {
    MessageType type;
    uint8_t view, version, pause;
  };
  struct Shard {
    uint8_t term, view, promised, promised_to, pause;
    uint8_t version, tag, has_undo, undo_tag;
    uint8_t pushed;    // a push of the current step has arrived
    uint8_t snapshot;  // the version + 1 that it is to pin
    uint8_t snapshot_of, pinned_tag, written;
  };
  struct Coordinator {
    uint8_t alive, term;
    Phase phase;
    uint8_t view, pause, replies;
    uint8_t reply_view[kShards], reply_version[kShards];
    uint8_t snapshot;  // the version + 1
    uint8_t reported, verified;
    uint8_t abandoned;  // versions
    uint8_t newest_index;
    // For kOnceOver.
    uint8_t first_step;  // of its first view
    uint8_t committed;   // the highest version that was committed in its views
    uint8_t asked;       // versions that it abandoned when it had asked for their indexes
  };
  // The storage. Without terms in names, all coordinators use one place.
  struct Place {
    uint8_t files[kVersions];  // partitions
    uint8_t indexes;           // versions
  };
  struct State {
    Error error;
    uint8_t view_count, second_coordinators, coordinator_crashes, view_changes, snapshots;
    uint8_t abandons;
    View views[kViews];
    Shard shards[kShards];
    Coordinator coordinators[kCoordinators];
    Queue<Message, 4> messages[kCoordinators][kShards];
    uint8_t committed[kVersions];  // tags
    Place places[kCoordinators];
  };

  explicit Takeover(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  int PlaceOf(int coordinator) const { return options_.names_have_terms ? coordinator : 0; }

  void AddTraining(const State& state, int shard, Steps<State>& steps) const;
  void AddWrite(const State& state, int shard, Steps<State>& steps) const;
  void AddArrival(const State& state, int coordinator, int shard, Steps<State>& steps) const;
  void Receive(State& state, int coordinator, int shard, const Message& message) const;
  void Install(State& state, int shard, int view) const;
  void Commit(State& state, int version, uint8_t tag, int view) const;
  void Abandon(Coordinator& coordinator) const;
  void Pin(State& state, int shard) const;

  void AddCoordinatorSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddViewChange(const State& state, int coordinator, Steps<State>& steps) const;
  void AddSnapshotSteps(const State& state, int coordinator, Steps<State>& steps) const;
  void AddRemovals(const State& state, int coordinator, Steps<State>& steps) const;
  bool Removes(const State& state, int coordinator, int version, Removal removal) const;
  void AddCoordinatorStart(const State& state, Steps<State>& steps) const;
  void Decide(State& state, int coordinator) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_TAKEOVER_H_
