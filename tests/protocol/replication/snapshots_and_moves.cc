#include "tests/protocol/replication/snapshots_and_moves.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using Model = SnapshotsAndMoves;
using State = Model::State;
using View = Model::View;

constexpr uint8_t kFirstTag = 100;
constexpr int kTarget = 2;

const char* TextOf(Model::Error error) {
  switch (error) {
    case Model::kNoError:
      return "";
    case Model::kMixedIndex:
      return "an index names files that are not of the committed version";
    case Model::kCannotRollBack:
      return "the version to return to is gone";
    case Model::kBehindView:
      return "a shard is behind the view's first step";
    case Model::kCommitTakenBack:
      return "a committed version is taken back";
    case Model::kTwoViews:
      return "two different views with one id are installed";
    case Model::kChannelIsFull:
      return "a channel of the model is full";
    case Model::kTooManyViews:
      return "the model has too few views";
    case Model::kMoveOutOfStep:
      return "the target of a move applies a gradient to another version";
    case Model::kNotHeld:
      return "an owner does not have its partition";
    case Model::kBadRestore:
      return "an attempt has no checkpoint, or one that mixes versions";
    case Model::kUncommittedFile:
      return "a file has a version that is not the committed one";
    case Model::kTooManySteps:
      return "the model has too few versions";
    case Model::kEndsTwice:
      return "an attempt ends the job after a higher one was claimed";
    case Model::kTooManyAttempts:
      return "the model has too few attempts";
  }
  return "";
}

}  // namespace

State SnapshotsAndMoves::Initial() const {
  State state{};
  state.view_count = 1;
  View& view = state.views[0];
  view.attempt = view.term = view.number = 1;
  view.owner[1] = 1;
  view.workers = state.workers = 1;
  for (int i = 0; i < kShards; ++i) {
    Shard& shard = state.shards[i];
    shard.promised_to = kNone;
    if (i >= options_.shards) continue;
    shard.alive = shard.term = 1;
    if (i >= kPartitions) continue;
    Include(shard.has, i);
    shard.tag[i] = kFirstTag;
  }
  for (Coordinator& coordinator : state.coordinators) coordinator.view = kNone;
  state.coordinators[0].alive = state.coordinators[0].term = 1;
  state.coordinators[0].view = 0;
  state.indexes[1][0] = 1;
  state.files[1][0][0] = state.files[1][0][1] = state.committed[1][0] = kFirstTag;
  state.faults = options_.faults;
  state.worker_crashes = options_.worker_crashes;
  state.coordinator_crashes = options_.coordinator_crashes;
  state.shard_crashes = options_.shard_crashes;
  state.joins = options_.joins;
  state.snapshots = options_.snapshots;
  state.second_coordinators = options_.second_coordinators;
  return state;
}

// No snapshot is open.
bool SnapshotsAndMoves::AllSettled(const State& state) const {
  for (const Shard& shard : state.shards) {
    if (shard.alive && (shard.pinned & ~shard.written)) return false;
  }
  for (const Coordinator& coordinator : state.coordinators) {
    if (coordinator.alive && coordinator.snapshot) return false;
  }
  return true;
}

bool SnapshotsAndMoves::Done(const State& state) const {
  int newest = kNone;
  for (const Shard& shard : state.shards) {
    if (!shard.alive) continue;
    if (options_.end) {
      if (shard.ending != kFinished) return false;
      continue;
    }
    if (shard.empty || (newest != kNone && newest != shard.view)) return false;
    newest = shard.view;
  }
  if (options_.end) return state.end_record && state.workers_finished;
  if (newest == kNone) return false;
  for (int p = 0; p < kPartitions; ++p) {
    const Shard& owner = state.shards[state.views[newest].owner[p]];
    if (!owner.alive || owner.version[p] != options_.steps) return false;
  }
  return AllSettled(state);
}

std::string SnapshotsAndMoves::Violation(const State& state) const {
  if (state.error != kNoError) return TextOf(state.error);
  for (int i = 0; i < kShards; ++i) {
    for (int j = i + 1; j < kShards; ++j) {
      const Shard &a = state.shards[i], &b = state.shards[j];
      const View &x = state.views[a.view], &y = state.views[b.view];
      if (a.alive && b.alive && a.view != b.view && x.attempt == y.attempt && x.term == y.term &&
          x.number == y.number) {
        return TextOf(kTwoViews);
      }
    }
  }
  return "";
}

void SnapshotsAndMoves::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.error != kNoError) return;
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive) {
      State next = state;
      Shard& shard = next.shards[i];
      shard.alive = shard.empty = 1;
      shard.promised_to = kNone;
      shard.term = 0;
      steps.Add(next, "a new shard S%d starts", i);
      continue;
    }
    if (!state.shards[i].empty) {
      AddTraining(state, i, steps);
      AddWrites(state, i, steps);
    }
    AddMessageArrivals(state, i, steps);
    AddShardCrash(state, i, steps);
  }
  if (options_.move) AddMoveSteps(state, steps);
  AddWorkerCrashes(state, steps);
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

void SnapshotsAndMoves::Commit(State& state, int attempt, int version, uint8_t tag) const {
  if (version >= kVersions) {
    state.error = kTooManySteps;
    return;
  }
  uint8_t& committed = state.committed[attempt][version];
  if (committed && committed != tag) state.error = kCommitTakenBack;
  committed = tag;
}

void SnapshotsAndMoves::Send(State& state, int c, int i, const Message& message) const {
  if (!state.shards[i].alive) return;
  if (state.messages[c][i].Full()) {
    state.error = kChannelIsFull;
  } else {
    state.messages[c][i].Push(message);
  }
}

void SnapshotsAndMoves::SendToAll(State& state, int c, const Message& message) const {
  for (int i = 0; i < options_.shards; ++i) Send(state, c, i, message);
}

void SnapshotsAndMoves::AddWorkerCrashes(const State& state, Steps<State>& steps) const {
  if (!state.worker_crashes || !state.faults || state.workers_finished) return;
  for (uint8_t last = 0; last < 8; ++last) {
    State next = state;
    --next.worker_crashes, --next.faults;
    ++next.workers;
    next.last_pushes = last;
    steps.AddFault(next, "a worker crashes; of its last pushes, %#x arrive", last);
  }
}

void SnapshotsAndMoves::AddMoveSteps(const State& state, Steps<State>& steps) const {
  State next = state;
  if (!state.move_messages.Empty()) {
    const MoveMessage message = next.move_messages.Pop();
    Shard& target = next.shards[kTarget];
    const View &theirs = state.views[message.view], &ours = state.views[target.view];
    const int order = theirs.attempt != ours.attempt ? theirs.attempt - ours.attempt
                      : theirs.term != ours.term     ? theirs.term - ours.term
                                                     : theirs.number - ours.number;
    if (target.pausing != kPromised && order <= 0) {
      if (order < 0) {
        if (message.is_base) {
          next.move = kNoMove;
          next.source_sends = 0;
        }
      } else if (ours.owner[0] == kTarget) {
        // The move is over.
      } else if (message.is_base) {
        Include(target.has, 0);
        target.version[0] = message.step;
        target.tag[0] = message.tag;
        Exclude(target.undo, 0);
        target.undo_tag[0] = 0;
        CheckAfterStep(next, kTarget);
      } else if (Contains(target.has, 0)) {
        if (message.step != target.version[0]) next.error = kMoveOutOfStep;
        target.undo_tag[0] = target.tag[0];
        Include(target.undo, 0);
        ++target.version[0];
        target.tag[0] = message.tag;
        CheckAfterStep(next, kTarget);
      }
      steps.Add(next, "S2 receives step %d of the move, of view %d", message.step, message.view);
    }
  }
  const Shard& source = state.shards[0];
  if (state.move != kMoveBegun || state.source_sends || !source.alive || source.empty) return;
  if (state.views[source.view].owner[0] != 0 || source.pausing == kPromised) return;
  if (Contains(source.undo, 0) || state.move_messages.Full()) return;
  next = state;
  next.source_sends = 1;
  next.move_messages.Push({1, source.view, source.version[0], source.tag[0]});
  steps.Add(next, "S0 sends P0 as of version %d to S2", source.version[0]);
}

}  // namespace sluice::protocol_models
