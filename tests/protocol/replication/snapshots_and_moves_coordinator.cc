// The steps of the coordinators.
#include <algorithm>

#include "tests/protocol/replication/snapshots_and_moves.h"

namespace sluice::protocol_models {
namespace {

using State = SnapshotsAndMoves::State;
using Coordinator = SnapshotsAndMoves::Coordinator;
using Shard = SnapshotsAndMoves::Shard;
using View = SnapshotsAndMoves::View;

constexpr int kTarget = 2;  // of a move
constexpr uint8_t kAllPartitions = 3;

void Exit(Coordinator& coordinator) {
  const uint8_t term = coordinator.term;
  coordinator = Coordinator{};
  coordinator.term = term;
  coordinator.view = kNone;
}

void ClearReplies(Coordinator& coordinator) {
  coordinator.replies = 0;
  for (int i = 0; i < SnapshotsAndMoves::kShards; ++i) {
    coordinator.reply_view[i] = coordinator.reply_has[i] = coordinator.reply_pins[i] = 0;
    coordinator.reply_snapshot[i] = 0;
    coordinator.reply_version[i][0] = coordinator.reply_version[i][1] = 0;
  }
}

void CloseSnapshot(Coordinator& coordinator) {
  coordinator.snapshot = coordinator.snapshot_written = coordinator.snapshot_is_past = 0;
}

bool HigherIsClaimed(const State& state, int attempt) {
  for (int a = attempt + 1; a < SnapshotsAndMoves::kAttempts; ++a) {
    if (state.claims[a]) return true;
  }
  return false;
}

// The owners of a view as its coordinator sees them.
struct Owners {
  bool installed = true;  // all of them have the view
  bool closed = true;     // all of them have the last version
  int lowest = kNone;
  int highest = 0;
};

Owners OwnersOf(const State& state, int view, int steps) {
  Owners owners;
  for (int p = 0; p < SnapshotsAndMoves::kPartitions; ++p) {
    const Shard& shard = state.shards[state.views[view].owner[p]];
    owners.installed = owners.installed && shard.view == view && !shard.empty && shard.alive;
    owners.closed = owners.closed && shard.version[p] == steps;
    owners.lowest = std::min<int>(owners.lowest, shard.version[p]);
    owners.highest = std::max<int>(owners.highest, shard.version[p]);
  }
  return owners;
}

bool AnyShardIsNew(const State& state, int shards) {
  for (int i = 0; i < shards; ++i) {
    if (!state.shards[i].alive || state.shards[i].empty) return true;
  }
  return false;
}

}  // namespace

void SnapshotsAndMoves::StartPause(State& state, int c, Reason reason, int after_step) const {
  Coordinator& coordinator = state.coordinators[c];
  coordinator.phase = kPauses;
  coordinator.reason = reason;
  coordinator.after_step = Byte(after_step);
  coordinator.pause = coordinator.pause % 15 + 1;
  ClearReplies(coordinator);
  const bool waits = reason == kJoin || reason == kMove;
  SendToAll(state, c,
            {waits ? kPauseAfterStep : kPauseNow, 0, Byte(after_step), coordinator.pause});
}

void SnapshotsAndMoves::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  bool refused = false;
  for (const Shard& shard : state.shards) {
    refused = refused || (shard.alive && shard.term > before.term);
  }
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  if (refused) {
    Exit(coordinator);
    steps.Add(next, "a shard refuses C%d, which exits", c);
  }
  if (before.phase == kIdle && !state.end_record) AddIdleSteps(state, c, steps);
  if (before.snapshot && before.view != kNone && before.snapshot_written == kAllPartitions) {
    AddIndex(state, c, steps);
  }
  if (before.phase == kPauses) AddPauseSteps(state, c, steps);
  if (before.phase == kDecided) {
    next = state;
    SendToAll(next, c, {kInstall, before.view, 0, before.pause});
    coordinator.phase = kIdle;
    coordinator.reason = kNoReason;
    coordinator.after_step = 0;
    ClearReplies(coordinator);
    steps.Add(next, "C%d sends the Install of view %d", c, before.view);
  }
  if (state.end_record && before.phase == kIdle) AddFinish(state, c, steps);
  if (state.coordinator_crashes && state.faults) {
    next = state;
    --next.coordinator_crashes, --next.faults;
    Exit(coordinator);
    steps.AddFault(next, "C%d crashes", c);
  }
}

void SnapshotsAndMoves::AddIdleSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  if (before.view == kNone) {
    State next = state;
    StartPause(next, c, kSurvey, 0);
    steps.Add(next, "C%d pauses all shards, as a new coordinator", c);
    return;
  }
  AddViewChanges(state, c, steps);
  AddSnapshotSteps(state, c, steps);
  AddLastCommit(state, c, steps);
  AddEnd(state, c, steps);
}

void SnapshotsAndMoves::AddViewChanges(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const View& view = state.views[before.view];
  const bool worker_died = view.workers != state.workers && !state.workers_finished;
  State next = state;
  if (worker_died || AnyShardIsNew(state, options_.shards)) {
    StartPause(next, c, kDeath, 0);
    steps.Add(next, "C%d sees a death, and sends Pause(Now)", c);
    return;
  }
  const Owners owners = OwnersOf(state, before.view, options_.steps);
  for (int k = owners.lowest; k < options_.steps - 1 && state.joins; ++k) {
    next = state;
    --next.joins;
    StartPause(next, c, kJoin, k);
    steps.AddFault(next, "C%d adds a worker, and sends Pause(AfterStep %d)", c, k);
  }
  if (!options_.move || view.owner[0] != 0 || !owners.installed) return;
  if (owners.lowest >= options_.steps - 1) return;
  if (state.move == kNoMove && before.moves < 1) {
    next = state;
    next.move = kMoveBegun;
    ++next.coordinators[c].moves;
    steps.AddFault(next, "C%d begins to move P0 from S0 to S2", c);
  }
  AddMoveStops(state, c, steps);
}

void SnapshotsAndMoves::AddMoveStops(const State& state, int c, Steps<State>& steps) const {
  const uint8_t view = state.coordinators[c].view;
  const Owners owners = OwnersOf(state, view, options_.steps);
  const Shard& target = state.shards[kTarget];
  if (state.move != kMoveBegun || !state.source_sends || !Contains(target.has, 0)) return;
  if (target.view != view || target.version[0] + 1 < state.shards[0].version[0]) return;
  for (int k = owners.lowest; k < options_.steps - 1 && k <= owners.highest + 1; ++k) {
    State next = state;
    next.move = kMoveStops;
    StartPause(next, c, kMove, k);
    steps.Add(next, "C%d sends Pause(AfterStep %d): the target is near", c, k);
  }
}

void SnapshotsAndMoves::AddSnapshotSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const uint8_t* indexes = state.indexes[state.views[before.view].attempt];
  const Owners owners = OwnersOf(state, before.view, options_.steps);
  auto open = [&](State& next, int version) {
    Coordinator& coordinator = next.coordinators[c];
    CloseSnapshot(coordinator);
    coordinator.snapshot = Byte(version + 1);
    SendToAll(next, c, {kOpenSnapshot, 0, coordinator.snapshot, 0});
  };
  State next = state;
  if (before.snapshot && before.snapshot_is_past) {
    const int later =
        std::min<int>(std::max<int>(owners.highest + 1, before.snapshot), options_.steps);
    open(next, later);
    steps.Add(next, "C%d opens a later snapshot, of version %d", c, later);
  }
  if (before.snapshot || !owners.installed || AnyShardIsNew(state, options_.shards)) return;
  const int last = std::min<int>(options_.steps, owners.lowest + 2);
  for (int version = owners.lowest; version <= last && state.snapshots; ++version) {
    if (indexes[version]) continue;
    next = state;
    --next.snapshots;
    open(next, version);
    steps.AddFault(next, "C%d opens a snapshot of version %d", c, version);
  }
  if (options_.end && owners.closed && before.final != kNotFinal && !indexes[options_.steps]) {
    next = state;
    open(next, options_.steps);
    steps.Add(next, "C%d opens the final snapshot", c);
  }
}

void SnapshotsAndMoves::AddIndex(const State& state, int c, Steps<State>& steps) const {
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  const int attempt = state.views[coordinator.view].attempt;
  const int version = coordinator.snapshot - 1;
  if (!state.indexes[attempt][version]) {
    next.indexes[attempt][version] = 1;
    const uint8_t committed = state.committed[attempt][version];
    for (uint8_t file : state.files[attempt][version]) {
      if (!file || file != committed) next.error = kMixedIndex;
    }
  }
  CloseSnapshot(coordinator);
  steps.Add(next, "C%d writes the index of attempt %d, version %d", c, attempt, version);
}

void SnapshotsAndMoves::AddLastCommit(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const View& view = state.views[before.view];
  const Owners owners = OwnersOf(state, before.view, options_.steps);
  if (!owners.closed || !owners.installed || before.final != kNotFinal) return;
  if (AnyShardIsNew(state, options_.shards)) return;
  State next = state;
  next.coordinators[c].final = kCommitted;
  const uint8_t tag = state.shards[view.owner[0]].tag[0];
  Commit(next, view.attempt, options_.steps, tag);
  if (state.shards[view.owner[1]].tag[1] != tag) next.error = kCommitTakenBack;
  if (options_.last_commit_is_told) SendToAll(next, c, {kLastCommitted, before.view, 0, 0});
  steps.Add(next, "C%d commits the last version", c);
}

void SnapshotsAndMoves::AddEnd(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const uint8_t attempt = state.views[before.view].attempt;
  State next = state;
  if (options_.end_is_claimed && HigherIsClaimed(state, attempt)) {
    Exit(next.coordinators[c]);
    steps.Add(next, "C%d finds a higher attempt, and exits", c);
  } else if (options_.end && state.indexes[attempt][options_.steps] && before.final != kNotFinal) {
    next.end_record = attempt;
    if (HigherIsClaimed(state, attempt)) next.error = kEndsTwice;
    steps.Add(next, "C%d writes the end record of attempt %d", c, attempt);
  }
}

void SnapshotsAndMoves::AddFinish(const State& state, int c, Steps<State>& steps) const {
  State next = state;
  if (!state.workers_finished) {
    next.workers_finished = 1;
    steps.Add(next, "C%d sends Finish to the workers", c);
    return;
  }
  bool needed = state.coordinators[c].final != kSentFinish;
  for (int i = 0; i < options_.shards && options_.late_shards_are_told_of_end; ++i) {
    if (!state.shards[i].alive || state.shards[i].ending == kFinished) continue;
    bool sent = false;
    const auto& channel = state.messages[c][i];
    for (int m = 0; m < channel.count; ++m) sent = sent || channel.items[m].type == kFinish;
    needed = needed || !sent;
  }
  if (!needed) return;
  next.coordinators[c].final = kSentFinish;
  for (int i = 0; i < options_.shards; ++i) {
    if (state.shards[i].ending != kFinished) Send(next, c, i, {kFinish, 0, 0, 0});
  }
  steps.Add(next, "C%d sends Finish to the shards", c);
}

void SnapshotsAndMoves::AddPauseSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  uint8_t alive = 0;
  bool lacks_pause = false;
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive) continue;
    Include(alive, i);
    if (Contains(before.replies, i) || state.shards[i].promised_to == c) continue;
    bool queued = false;
    const auto& channel = state.messages[c][i];
    for (int m = 0; m < channel.count; ++m) {
      queued = queued || channel.items[m].type <= kPauseAfterStep;
    }
    lacks_pause = lacks_pause || !queued;
  }
  const bool all_alive = CountOf(alive) == options_.shards;
  const bool dead =
      before.view != kNone && (state.views[before.view].workers != state.workers ||
                               state.shards[0].empty || state.shards[1].empty || !all_alive);
  const bool waits = before.reason == kJoin || before.reason == kMove;
  const bool all_replied = (before.replies & alive) == alive;
  State next = state;
  const bool stops_move = before.reason == kMove && state.move == kMoveStops;
  if (waits && !all_replied && dead) {
    if (stops_move) next.move = kMoveBegun;
    StartPause(next, c, kDeath, 0);
    steps.Add(next, "C%d sees a death while it waits, and sends Pause(Now)", c);
  } else if (lacks_pause && !waits) {
    StartPause(next, c, kDeath, 0);
    steps.Add(next, "C%d pauses again: a shard has started", c);
  }
  if (all_alive && all_replied) {
    next = state;
    if (stops_move) next.move = kMoveBegun;
    Decide(next, c);
    steps.Add(next, "C%d has all replies, and decides", c);
  }
}

void SnapshotsAndMoves::Decide(State& state, int c) const {
  Coordinator& coordinator = state.coordinators[c];
  auto newer = [&](int a, int b) {
    if (a == b || a == kNone) return false;
    if (b == kNone) return true;
    const View &x = state.views[a], &y = state.views[b];
    if (x.attempt != y.attempt) return x.attempt > y.attempt;
    return x.term != y.term ? x.term > y.term : x.number > y.number;
  };
  int newest = kNone;
  for (int i = 0; i < options_.shards; ++i) {
    if (Contains(coordinator.replies, i) && newer(coordinator.reply_view[i], newest)) {
      newest = coordinator.reply_view[i];
    }
  }
  if (state.view_count >= kViews) {
    state.error = kTooManyViews;
    return;
  }
  const bool none = newest == kNone;
  for (int v = 0; v < state.view_count && none; ++v) {
    if (newer(v, newest)) newest = v;
  }
  View view = state.views[newest];
  ++view.number;
  view.term = coordinator.term;
  view.restores = view.snapshot = 0;
  if (none || !DecideFirstStep(state, coordinator, newest, view)) {
    Restore(state, c, view);
    return;
  }
  view.reach = view.first_step;
  view.workers = state.workers;
  if (coordinator.reason == kSurvey && !options_.move_continues && state.move != kMoved) {
    state.move = kNoMove;
    state.source_sends = 0;
  }
  // R10: the target counts only when it has the step.
  const int version = coordinator.reply_version[kTarget][0];
  if (coordinator.reason == kMove && state.move != kNoMove &&
      Contains(coordinator.replies, kTarget) && Contains(coordinator.reply_has[kTarget], 0) &&
      coordinator.reply_view[kTarget] == newest &&
      (version == view.first_step || version == view.first_step + 1)) {
    view.owner[0] = kTarget;
    state.move = kMoved;
  }
  DecideSnapshot(coordinator, view);
  coordinator.view = state.view_count++;
  coordinator.phase = kDecided;
  coordinator.final = kNotFinal;
  state.views[coordinator.view] = view;
}

// Returns false if a partition is lost.
bool SnapshotsAndMoves::DecideFirstStep(const State& state, const Coordinator& coordinator,
                                        int newest, View& view) const {
  const View& old = state.views[newest];
  uint8_t first_step = kNone;
  for (int p = 0; p < kPartitions; ++p) {
    const int owner = old.owner[p];
    const uint8_t reply_view = coordinator.reply_view[owner];
    if (!state.shards[owner].alive || !Contains(coordinator.replies, owner) ||
        !Contains(coordinator.reply_has[owner], p) || reply_view == kNone) {
      return false;
    }
    if (state.views[reply_view].attempt != old.attempt) {
      if (options_.older_attempt == OlderAttempt::kIsLost) return false;
      if (options_.older_attempt == OlderAttempt::kLoads) view.restores = 1;
    }
    // R3: a shard without the newest view is at that view's first step.
    first_step = std::min(
        first_step, reply_view == newest ? coordinator.reply_version[owner][p] : old.first_step);
  }
  view.first_step = first_step;
  return true;
}

// R14: the view names the open snapshot unless a shard is past it without a pin.
void SnapshotsAndMoves::DecideSnapshot(Coordinator& coordinator, View& view) const {
  if (options_.view_change == ViewChange::kAbandons) CloseSnapshot(coordinator);
  if (options_.view_change != ViewChange::kNamesSnapshot) return;
  if (!coordinator.snapshot || view.restores) return;
  bool possible = true;
  for (int p = 0; p < kPartitions && coordinator.snapshot - 1 < view.first_step; ++p) {
    bool pinned = Contains(coordinator.snapshot_written, p);
    for (int i = 0; i < options_.shards; ++i) {
      pinned = pinned || (Contains(coordinator.replies, i) &&
                          coordinator.reply_snapshot[i] == coordinator.snapshot &&
                          Contains(coordinator.reply_pins[i], p));
    }
    possible = possible && pinned;
  }
  if (possible) {
    view.snapshot = coordinator.snapshot;
  } else {
    CloseSnapshot(coordinator);
  }
}

// Claims the next attempt, with the newest checkpoint of the highest claimed one as its parent.
void SnapshotsAndMoves::Restore(State& state, int c, View view) const {
  Coordinator& coordinator = state.coordinators[c];
  if (options_.end_is_claimed && state.end_record) {
    coordinator.phase = kIdle;
    coordinator.replies = 0;
    return;
  }
  int parent = std::max(coordinator.highest_claim, view.attempt);
  const int attempt = parent + 1;
  if (attempt >= kAttempts) {
    state.error = kTooManyAttempts;
    return;
  }
  if (state.claims[attempt]) {
    Exit(coordinator);
    return;
  }
  int version = options_.steps;
  while (version >= 0 && !state.indexes[parent][version]) --version;
  if (version < 0 && parent > 1) {
    version = state.claims[parent] & 15;
    parent = state.claims[parent] >> 4;
    if (!state.indexes[parent][version]) version = -1;
  }
  const uint8_t tag = version < 0 ? 0 : state.files[parent][version][0];
  if (!tag || state.files[parent][version][1] != tag ||
      (state.committed[parent][version] && state.committed[parent][version] != tag)) {
    state.error = kBadRestore;
    return;
  }
  state.claims[attempt] = Byte(parent << 4 | version);
  state.move = kNoMove;
  state.source_sends = 0;
  state.move_messages.Clear();
  view.attempt = Byte(attempt);
  view.first_step = view.reach = Byte(version);
  view.restores = 1;
  view.restored_tag = tag;
  view.owner[0] = 0;
  view.owner[1] = 1;
  view.workers = state.workers;
  coordinator.highest_claim = Byte(attempt);
  CloseSnapshot(coordinator);
  coordinator.final = kNotFinal;
  coordinator.view = state.view_count++;
  coordinator.phase = kDecided;
  state.views[coordinator.view] = view;
}

void SnapshotsAndMoves::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
  int alive = 0;
  int used = 0;
  uint8_t highest = 0;
  for (int c = 0; c < kCoordinators; ++c) {
    alive += state.coordinators[c].alive;
    if (state.coordinators[c].term) used = c + 1;
    highest = std::max(highest, state.coordinators[c].term);
  }
  if (used == kCoordinators) return;
  State next = state;
  Coordinator& coordinator = next.coordinators[used];
  coordinator.alive = 1;
  coordinator.term = Byte(highest + 1);
  coordinator.view = kNone;
  for (int attempt = 2; attempt < kAttempts; ++attempt) {
    if (state.claims[attempt]) coordinator.highest_claim = Byte(attempt);
  }
  if (alive == 0) {
    if (next.move == kMoveStops) next.move = kMoveBegun;
    steps.Add(next, "a new coordinator C%d starts", used);
  } else if (alive == 1 && state.second_coordinators && state.faults) {
    --next.second_coordinators, --next.faults;
    steps.AddFault(next, "a second coordinator C%d starts", used);
  }
}

}  // namespace sluice::protocol_models
