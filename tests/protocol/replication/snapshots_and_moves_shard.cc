// The steps of the shards.
#include <algorithm>

#include "tests/protocol/replication/snapshots_and_moves.h"

namespace sluice::protocol_models {
namespace {

using State = SnapshotsAndMoves::State;
using Coordinator = SnapshotsAndMoves::Coordinator;
using Shard = SnapshotsAndMoves::Shard;
using View = SnapshotsAndMoves::View;

constexpr int kTarget = 2;  // of a move

bool IsNewer(const View& a, const View& b) {
  if (a.attempt != b.attempt) return a.attempt > b.attempt;
  return a.term != b.term ? a.term > b.term : a.number > b.number;
}

void DropPin(Shard& shard, int p) {
  Exclude(shard.pinned, p);
  Exclude(shard.written, p);
  shard.pinned_tag[p] = 0;
}

void DropSnapshot(Shard& shard) {
  shard.snapshot = 0;
  for (int p = 0; p < SnapshotsAndMoves::kPartitions; ++p) DropPin(shard, p);
}

}  // namespace

void SnapshotsAndMoves::Reply(State& state, int i) const {
  Shard& shard = state.shards[i];
  shard.pausing = kPromised;
  Coordinator& coordinator = state.coordinators[shard.promised_to];
  if (!coordinator.alive || coordinator.phase != kPauses) return;
  if (coordinator.pause != shard.pause) return;
  Include(coordinator.replies, i);
  coordinator.reply_view[i] = shard.empty ? kNone : shard.view;
  coordinator.reply_has[i] = shard.has;
  coordinator.reply_pins[i] = shard.pinned | shard.written;
  coordinator.reply_snapshot[i] = shard.snapshot;
  for (int p = 0; p < kPartitions; ++p) coordinator.reply_version[i][p] = shard.version[p];
}

void SnapshotsAndMoves::CheckAfterStep(State& state, int i) const {
  const Shard& shard = state.shards[i];
  if (shard.pausing != kWaiting) return;
  const View& view = state.views[shard.view];
  for (int p = 0; p < kPartitions; ++p) {
    if (view.owner[p] == i && shard.version[p] <= shard.after_step) return;
  }
  if (state.move == kMoveStops && i == kTarget && view.owner[0] != kTarget &&
      state.shards[0].alive && !(Contains(shard.has, 0) && shard.version[0] > shard.after_step)) {
    return;
  }
  Reply(state, i);
}

void SnapshotsAndMoves::Pin(State& state, int i) const {
  Shard& shard = state.shards[i];
  if (!shard.snapshot || shard.empty) return;
  for (int p = 0; p < kPartitions; ++p) {
    if (!Contains(shard.has, p) || state.views[shard.view].owner[p] != i) continue;
    if (shard.version[p] != shard.snapshot - 1 || Contains(shard.pinned, p)) continue;
    Include(shard.pinned, p);
    shard.pinned_tag[p] = shard.tag[p];
  }
}

void SnapshotsAndMoves::SetSnapshot(State& state, int i, uint8_t snapshot) const {
  Shard& shard = state.shards[i];
  if (shard.snapshot != snapshot) {
    DropSnapshot(shard);
    shard.snapshot = snapshot;
  }
  Pin(state, i);
}

void SnapshotsAndMoves::Close(State& state, int i, int p) const {
  Shard& shard = state.shards[i];
  View& view = state.views[shard.view];
  const uint8_t tag = Byte(shard.view + 1);
  if (options_.move && p == 0 && i == 0 && state.source_sends && state.shards[kTarget].alive) {
    if (state.move_messages.Full()) {
      state.error = kChannelIsFull;
      return;
    }
    state.move_messages.Push({0, shard.view, shard.version[0], tag});
  }
  shard.undo_tag[p] = shard.tag[p];
  Include(shard.undo, p);
  ++shard.version[p];
  shard.tag[p] = tag;
  Exclude(shard.pushed, p);
  Pin(state, i);
  uint8_t lowest = kNone;
  for (int q = 0; q < kPartitions; ++q) {
    const Shard& owner = state.shards[view.owner[q]];
    const bool present = owner.alive && owner.view == shard.view && !owner.empty;
    lowest = std::min(lowest, present ? owner.version[q] : uint8_t{0});
  }
  view.reach = std::max(view.reach, lowest);
  CheckAfterStep(state, i);
}

void SnapshotsAndMoves::AddTraining(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  const View& view = state.views[before.view];
  const bool all_live = view.workers == state.workers;
  if (before.pausing == kPromised) return;
  for (int p = 0; p < kPartitions; ++p) {
    const uint8_t version = before.version[p];
    if (view.owner[p] != i || version >= options_.steps) continue;
    State next = state;
    Shard& shard = next.shards[i];
    if (!Contains(before.pushed, p)) {
      if (view.reach < version || (!all_live && !Contains(state.last_pushes, 2))) continue;
      // A push of the step commits the version that it was computed on.
      Include(shard.pushed, p);
      Commit(next, view.attempt, version, before.tag[p]);
      for (int q = 0; q < kPartitions; ++q) {
        if (view.owner[q] != i || before.version[q] != version) continue;
        Exclude(shard.undo, q);
        shard.undo_tag[q] = 0;
      }
      steps.Add(next, "S%d receives the first push of step %d of P%d", i, version, p);
    } else if (all_live || Contains(state.last_pushes, p)) {
      Close(next, i, p);
      if (!all_live) Exclude(next.last_pushes, p);
      steps.Add(next, "S%d closes step %d of P%d", i, version, p);
    }
  }
}

void SnapshotsAndMoves::AddWrites(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  const View& view = state.views[before.view];
  const int version = before.snapshot - 1;
  for (int p = 0; p < kPartitions; ++p) {
    if (!Contains(before.pinned, p) || Contains(before.written, p)) continue;
    const bool later_push =
        view.owner[p] == i && (before.version[p] > version ||
                               (before.version[p] == version && Contains(before.pushed, p)));
    const bool committed = later_push || view.first_step >= version ||
                           (version == options_.steps && before.ending == kLastIsCommitted);
    if (!committed && options_.writes_committed_only) continue;

    State next = state;
    const uint8_t tag = before.pinned_tag[p];
    uint8_t& file = next.files[view.attempt][version][p];
    if (!file) file = tag;
    const uint8_t truth = state.committed[view.attempt][version];
    if (options_.writes_committed_only && truth && truth != tag) next.error = kUncommittedFile;
    Include(next.shards[i].written, p);
    for (Coordinator& coordinator : next.coordinators) {
      if (coordinator.alive && coordinator.snapshot == before.snapshot &&
          coordinator.view != kNone && state.views[coordinator.view].attempt == view.attempt) {
        Include(coordinator.snapshot_written, p);
      }
    }
    steps.Add(next, "S%d writes the file of P%d, version %d", i, p, version);
  }
}

void SnapshotsAndMoves::AddMessageArrivals(const State& state, int i, Steps<State>& steps) const {
  static constexpr const char* kNames[] = {
      "", "Pause(Now)", "Pause(AfterStep)", "Install", "OpenSnapshot", "LastCommitted", "Finish"};
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.messages[c][i].Empty()) continue;
    State next = state;
    Coordinator& coordinator = next.coordinators[c];
    const Message message = next.messages[c][i].Pop();
    if (coordinator.term < next.shards[i].term) {
      if (coordinator.alive) {
        const uint8_t term = coordinator.term;
        coordinator = Coordinator{};
        coordinator.term = term;
        coordinator.view = kNone;
      }
      steps.Add(next, "S%d refuses C%d's message, and C%d exits", i, c, c);
      continue;
    }
    next.shards[i].term = coordinator.term;
    Receive(next, c, i, message);
    steps.Add(next, "S%d receives C%d's %s (view %d, step %d)", i, c, kNames[message.type],
              message.view, message.step);
  }
}

void SnapshotsAndMoves::Receive(State& state, int c, int i, const Message& message) const {
  Shard& shard = state.shards[i];
  Coordinator& coordinator = state.coordinators[c];
  const View& view = state.views[shard.view];
  switch (message.type) {
    case kPauseNow:
    case kPauseAfterStep:
      shard.pause = message.pause;
      shard.promised_to = Byte(c);
      if (message.type == kPauseNow || shard.pausing == kPromised) {
        Reply(state, i);
      } else {
        shard.pausing = kWaiting;
        shard.after_step = message.step;
        CheckAfterStep(state, i);
      }
      break;
    case kInstall:
      if (message.pause == shard.pause && shard.promised_to == c &&
          IsNewer(state.views[message.view], view)) {
        Install(state, i, message.view);
      }
      break;
    case kOpenSnapshot: {
      if (shard.snapshot == message.step) break;
      bool past = false;
      for (int p = 0; p < kPartitions && !shard.empty; ++p) {
        past = past || (view.owner[p] == i && shard.version[p] > message.step - 1);
      }
      if (!past) {
        SetSnapshot(state, i, message.step);
      } else if (coordinator.alive && coordinator.snapshot == message.step) {
        coordinator.snapshot_is_past = 1;
      }
      break;
    }
    case kLastCommitted:
      if (shard.view != message.view || shard.pausing == kPromised) break;
      shard.ending = kLastIsCommitted;
      shard.undo = 0;
      shard.undo_tag[0] = shard.undo_tag[1] = 0;
      break;
    case kFinish:
      shard.ending = kFinished;
      break;
  }
}

void SnapshotsAndMoves::Install(State& state, int i, int index) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[index];
  const uint8_t old_attempt = shard.empty ? 0 : state.views[shard.view].attempt;
  shard.view = Byte(index);
  shard.pausing = kRunning;
  shard.after_step = shard.pause = shard.pushed = shard.empty = 0;
  shard.promised_to = kNone;
  if (shard.ending != kFinished) shard.ending = kTrains;
  if (view.restores && old_attempt != view.attempt) {
    Load(state, i);
    return;
  }
  if (!RollBack(state, i)) return;
  if (options_.view_change == ViewChange::kNamesNothing) {
    Pin(state, i);
  } else {
    SetSnapshot(state, i, view.snapshot);
  }
}

// Loads the attempt's checkpoint.
void SnapshotsAndMoves::Load(State& state, int i) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[shard.view];
  DropSnapshot(shard);
  shard.has = shard.undo = 0;
  for (int p = 0; p < kPartitions; ++p) {
    shard.undo_tag[p] = shard.tag[p] = shard.version[p] = 0;
    if (view.owner[p] != i) continue;
    Include(shard.has, p);
    shard.version[p] = view.first_step;
    shard.tag[p] = view.restored_tag;
    Commit(state, view.attempt, view.first_step, view.restored_tag);
  }
  if (view.snapshot && options_.view_change != ViewChange::kNamesNothing) {
    SetSnapshot(state, i, view.snapshot);
  }
}

bool SnapshotsAndMoves::RollBack(State& state, int i) const {
  Shard& shard = state.shards[i];
  uint8_t keeps = 0;
  for (int p = 0; p < kPartitions; ++p) {
    if (!RollBackPartition(state, i, p, keeps)) return false;
  }
  shard.has = keeps;
  shard.undo = 0;
  for (int p = 0; p < kPartitions; ++p) {
    shard.undo_tag[p] = 0;
    if (!Contains(keeps, p)) shard.version[p] = shard.tag[p] = 0;
  }
  if (state.views[shard.view].owner[0] == kTarget) state.source_sends = 0;
  return true;
}

// Returns false if the partition cannot be at the view's first step.
bool SnapshotsAndMoves::RollBackPartition(State& state, int i, int p, uint8_t& keeps) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[shard.view];
  const bool owns = view.owner[p] == i;
  const bool is_target = options_.move && p == 0 && i == kTarget && !owns &&
                         Contains(shard.has, 0) && state.move != kNoMove;
  if (!owns && !is_target) {
    const bool pinned = Contains(shard.pinned, p) && !Contains(shard.written, p);
    if (pinned && (shard.snapshot - 1 > view.first_step || !options_.source_keeps_pin)) {
      DropPin(shard, p);
    }
    return true;
  }
  if (!Contains(shard.has, p)) {
    state.error = kNotHeld;
    return false;
  }
  const uint8_t newest = shard.version[p];
  if (newest == view.first_step + 1 && Contains(shard.undo, p)) {
    --shard.version[p];
    shard.tag[p] = shard.undo_tag[p];
    if (shard.snapshot == newest + 1 && Contains(shard.pinned, p)) {
      if (Contains(shard.written, p)) state.error = kUncommittedFile;
      DropPin(shard, p);
      if (options_.view_change == ViewChange::kNamesNothing) DropSnapshot(shard);
    }
  }
  if (shard.version[p] == view.first_step) {
    Include(keeps, p);
    if (owns) Commit(state, view.attempt, view.first_step, shard.tag[p]);
    return true;
  }
  if (owns) {
    state.error = shard.version[p] < view.first_step ? kBehindView : kCannotRollBack;
    return false;
  }
  state.move = kNoMove;
  state.source_sends = 0;
  return true;
}

void SnapshotsAndMoves::AddShardCrash(const State& state, int i, Steps<State>& steps) const {
  if (!state.shard_crashes || !state.faults || i == kTarget) return;
  State next = state;
  --next.shard_crashes, --next.faults;
  next.shards[i] = Shard{};
  next.shards[i].promised_to = kNone;
  for (int c = 0; c < kCoordinators; ++c) {
    next.messages[c][i].Clear();
    Coordinator& coordinator = next.coordinators[c];
    Exclude(coordinator.replies, i);
    coordinator.reply_view[i] = coordinator.reply_has[i] = coordinator.reply_pins[i] = 0;
    coordinator.reply_snapshot[i] = 0;
    for (int p = 0; p < kPartitions; ++p) coordinator.reply_version[i][p] = 0;
  }
  if (i == 0) {
    next.move_messages.Clear();
    next.source_sends = 0;
    if (next.move != kMoved) next.move = kNoMove;
  }
  steps.AddFault(next, "S%d crashes", i);
}

}  // namespace sluice::protocol_models
