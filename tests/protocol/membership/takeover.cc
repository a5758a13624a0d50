#include "tests/protocol/membership/takeover.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using Model = Takeover;
using State = Model::State;
using Coordinator = Model::Coordinator;
using View = Model::View;

constexpr uint8_t kBothShards = 3;
constexpr uint8_t kFirstTag = 100;

const char* TextOf(Model::Error error) {
  switch (error) {
    case Model::kNoError:
      return "";
    case Model::kTwoViews:
      return "two different views with one id are installed";
    case Model::kCommitTakenBack:
      return "a committed version is taken back";
    case Model::kCannotRollBack:
      return "the version to return to is gone";
    case Model::kBehindView:
      return "a shard is behind the view's first step";
    case Model::kUncommittedFile:
      return "a file has a version that is not the committed one";
    case Model::kTooManyViews:
      return "the model has too few views";
    case Model::kChannelIsFull:
      return "a channel of the model is full";
  }
  return "";
}

void Exit(Coordinator& coordinator) {
  const uint8_t term = coordinator.term;
  coordinator = Coordinator{};
  coordinator.term = term;
  coordinator.view = kNone;
}

void SendToAll(State& state, int c, const Model::Message& message) {
  for (auto& channel : state.messages[c]) {
    if (channel.Full()) {
      state.error = Model::kChannelIsFull;
    } else {
      channel.Push(message);
    }
  }
}

void CloseSnapshot(Coordinator& coordinator) {
  coordinator.snapshot = coordinator.reported = coordinator.verified = 0;
}

bool HaveOneId(const State& state, int a, int b) {
  const View &x = state.views[a], &y = state.views[b];
  return x.term == y.term && x.number == y.number;
}

bool IsNewer(const State& state, int a, int b) {
  const View &x = state.views[a], &y = state.views[b];
  return x.term != y.term ? x.term > y.term : x.number > y.number;
}

int NewestIndex(const State& state) {
  int newest = 0;
  for (const Model::Place& place : state.places) {
    for (int v = 0; v < Model::kVersions; ++v) {
      if (Contains(place.indexes, v)) newest = std::max(newest, v);
    }
  }
  return newest;
}

}  // namespace

State Takeover::Initial() const {
  State state{};
  state.view_count = 1;
  state.views[0].term = state.views[0].number = 1;
  for (Shard& shard : state.shards) {
    shard.term = 1;
    shard.promised_to = shard.snapshot_of = kNone;
    shard.tag = kFirstTag;
  }
  for (Coordinator& coordinator : state.coordinators) coordinator.view = kNone;
  state.coordinators[0].alive = state.coordinators[0].term = 1;
  state.coordinators[0].view = 0;
  state.committed[0] = kFirstTag;
  state.places[0].files[0] = kBothShards;
  Include(state.places[0].indexes, 0);
  state.second_coordinators = options_.second_coordinators;
  state.coordinator_crashes = options_.coordinator_crashes;
  state.view_changes = options_.view_changes;
  state.snapshots = options_.snapshots;
  state.abandons = options_.abandons;
  return state;
}

bool Takeover::Done(const State& state) const {
  for (const Shard& shard : state.shards) {
    if (shard.promised || shard.version != options_.steps) return false;
    if (shard.view != state.shards[0].view) return false;
  }
  for (const Coordinator& coordinator : state.coordinators) {
    if (coordinator.alive && coordinator.snapshot) return false;
  }
  return true;
}

std::string Takeover::Violation(const State& state) const {
  if (state.error != kNoError) return TextOf(state.error);
  const int a = state.shards[0].view, b = state.shards[1].view;
  if (a != b && HaveOneId(state, a, b)) return TextOf(kTwoViews);
  const int newest = NewestIndex(state);
  for (const Place& place : state.places) {
    if (Contains(place.indexes, newest) && place.files[newest] != kBothShards) {
      return "a file that the newest index names is missing";
    }
  }
  return "";
}

void Takeover::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.error != kNoError) return;
  for (int i = 0; i < kShards; ++i) {
    AddTraining(state, i, steps);
    AddWrite(state, i, steps);
    for (int c = 0; c < kCoordinators; ++c) {
      if (!state.messages[c][i].Empty()) AddArrival(state, c, i, steps);
    }
  }
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

void Takeover::AddTraining(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  if ((before.promised && options_.promise) || before.version >= options_.steps) return;
  State next = state;
  Shard& shard = next.shards[i];
  View& view = next.views[before.view];
  if (!before.pushed) {
    if (view.reach < before.version) return;
    shard.pushed = 1;
    shard.has_undo = shard.undo_tag = 0;
    Commit(next, before.version, before.tag, before.view);
    steps.Add(next, "S%d receives the first push of step %d", i, before.version);
    return;
  }
  shard.pushed = 0;
  shard.has_undo = 1;
  shard.undo_tag = before.tag;
  ++shard.version;
  shard.tag = Byte(before.view + 1);
  Pin(next, i);
  const Shard& other = next.shards[1 - i];
  if (other.view == before.view) {
    view.reach = std::max(view.reach, std::min(shard.version, other.version));
  }
  steps.Add(next, "S%d closes step %d", i, before.version);
}

void Takeover::Commit(State& state, int version, uint8_t tag, int view) const {
  uint8_t& committed = state.committed[version];
  if (committed && committed != tag) state.error = kCommitTakenBack;
  committed = tag;
  if (options_.abandoned != Removal::kOnceOver) return;
  // The shards report it. Nothing depends on when, except that a coordinator removes files later.
  Coordinator& coordinator = state.coordinators[state.views[view].term - 1];
  if (coordinator.alive) coordinator.committed = std::max(coordinator.committed, Byte(version));
}

void Takeover::Pin(State& state, int i) const {
  Shard& shard = state.shards[i];
  if (shard.snapshot == shard.version + 1) shard.pinned_tag = shard.tag;
}

void Takeover::AddWrite(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  if (!before.pinned_tag || before.written) return;
  const int version = before.snapshot - 1;
  // A shard learns of a commit from a push of the next step, or from its view.
  if (before.version <= version && !before.pushed &&
      state.views[before.view].first_step < version) {
    return;
  }
  State next = state;
  const int c = before.snapshot_of;
  if (state.committed[version] != before.pinned_tag) next.error = kUncommittedFile;
  Include(next.places[PlaceOf(c)].files[version], i);
  next.shards[i].written = 1;
  Coordinator& coordinator = next.coordinators[c];
  if (coordinator.alive && coordinator.snapshot == before.snapshot) {
    Include(coordinator.reported, i);
  }
  steps.Add(next, "S%d writes its file of version %d for C%d", i, version, c);
}

void Takeover::AddArrival(const State& state, int c, int i, Steps<State>& steps) const {
  static constexpr const char* kNames[] = {"", "Pause", "Install", "OpenSnapshot"};
  State next = state;
  Shard& shard = next.shards[i];
  Coordinator& coordinator = next.coordinators[c];
  const Message message = next.messages[c][i].Pop();
  if (coordinator.term < shard.term && options_.lower_terms_are_refused) {
    if (coordinator.alive) Exit(coordinator);
    steps.Add(next, "S%d refuses C%d's %s, and C%d exits", i, c, kNames[message.type], c);
    return;
  }
  shard.term = std::max(shard.term, coordinator.term);
  Receive(next, c, i, message);
  steps.Add(next, "S%d receives C%d's %s (view %d, version %d)", i, c, kNames[message.type],
            message.view, message.version);
}

void Takeover::Receive(State& state, int c, int i, const Message& message) const {
  Shard& shard = state.shards[i];
  Coordinator& coordinator = state.coordinators[c];
  switch (message.type) {
    case kPause:
      shard.promised = 1;
      shard.promised_to = Byte(c);
      shard.pause = message.pause;
      if (coordinator.alive && coordinator.phase == kPauses && coordinator.pause == message.pause) {
        Include(coordinator.replies, i);
        coordinator.reply_view[i] = shard.view;
        coordinator.reply_version[i] = shard.version;
      }
      break;
    case kInstall: {
      const bool answers = shard.promised && shard.promised_to == c && shard.pause == message.pause;
      if (!answers) break;
      if (message.view != shard.view && HaveOneId(state, message.view, shard.view)) {
        state.error = kTwoViews;
      } else if (IsNewer(state, message.view, shard.view)) {
        Install(state, i, message.view);
      }
      break;
    }
    case kOpenSnapshot:
      if (shard.version > message.version) {
        if (coordinator.alive && coordinator.snapshot == message.version + 1) {
          Abandon(coordinator);
        }
        break;
      }
      shard.snapshot = Byte(message.version + 1);
      shard.snapshot_of = Byte(c);
      shard.pinned_tag = shard.written = 0;
      Pin(state, i);
      break;
  }
}

void Takeover::Install(State& state, int i, int index) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[index];
  shard.view = Byte(index);
  shard.promised = shard.pause = shard.pushed = 0;
  shard.promised_to = kNone;
  // The Install names no snapshot (R14).
  shard.snapshot = shard.pinned_tag = shard.written = 0;
  shard.snapshot_of = kNone;
  if (shard.version == view.first_step + 1 && shard.has_undo) {
    --shard.version;
    shard.tag = shard.undo_tag;
  }
  shard.has_undo = shard.undo_tag = 0;
  if (shard.version > view.first_step) state.error = kCannotRollBack;
  if (shard.version < view.first_step) state.error = kBehindView;
  if (state.error == kNoError) Commit(state, view.first_step, shard.tag, index);
}

void Takeover::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  bool refused = false;
  for (const Shard& shard : state.shards) refused = refused || shard.term > before.term;
  if (refused && options_.lower_terms_are_refused) {
    Exit(coordinator);
    steps.Add(next, "a shard refuses C%d's heartbeat, and C%d exits", c, c);
  }
  AddViewChange(state, c, steps);
  AddSnapshotSteps(state, c, steps);
  AddRemovals(state, c, steps);
  if (state.coordinator_crashes) {
    next = state;
    --next.coordinator_crashes;
    Exit(coordinator);
    steps.AddFault(next, "C%d crashes", c);
  }
}

void Takeover::AddViewChange(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  if (before.phase == kPauses) {
    if (before.replies != kBothShards) return;
    Decide(next, c);
    steps.Add(next, "C%d has all replies, and sends the Install of view %d", c, state.view_count);
    return;
  }
  if (before.view != kNone && !state.view_changes) return;
  if (before.view != kNone) --next.view_changes;
  coordinator.phase = kPauses;
  coordinator.replies = 0;
  ++coordinator.pause;
  Abandon(coordinator);
  SendToAll(next, c, {kPause, 0, 0, coordinator.pause});
  if (before.view == kNone) {
    steps.Add(next, "C%d takes over, and pauses the shards", c);
  } else {
    steps.AddFault(next, "C%d changes the view, and pauses the shards", c);
  }
}

void Takeover::Decide(State& state, int c) const {
  Coordinator& coordinator = state.coordinators[c];
  if (state.view_count >= kViews) {
    state.error = kTooManyViews;
    return;
  }
  const int a = coordinator.reply_view[0], b = coordinator.reply_view[1];
  const int newest = IsNewer(state, b, a) ? b : a;
  View view = state.views[newest];
  uint8_t first_step = kNone;
  for (int i = 0; i < kShards; ++i) {
    const bool older = coordinator.reply_view[i] != newest && options_.older_view_is_at_first_step;
    first_step = std::min(first_step, older ? view.first_step : coordinator.reply_version[i]);
  }
  ++view.number;
  view.term = coordinator.term;
  view.first_step = view.reach = first_step;
  if (options_.abandoned == Removal::kOnceOver) {
    if (coordinator.view == kNone) {
      coordinator.first_step = first_step;
      coordinator.newest_index = Byte(NewestIndex(state));
    }
    coordinator.committed = std::max(coordinator.committed, first_step);
  }
  coordinator.view = state.view_count++;
  state.views[coordinator.view] = view;
  coordinator.phase = kIdle;
  coordinator.replies = 0;
  for (int i = 0; i < kShards; ++i) coordinator.reply_view[i] = coordinator.reply_version[i] = 0;
  SendToAll(state, c, {kInstall, coordinator.view, 0, coordinator.pause});
}

// The coordinator abandons its open snapshot.
void Takeover::Abandon(Coordinator& coordinator) const {
  if (!coordinator.snapshot) return;
  const int version = coordinator.snapshot - 1;
  Include(coordinator.abandoned, version);
  if (coordinator.verified && options_.asked_index_is_written) Include(coordinator.asked, version);
  CloseSnapshot(coordinator);
}

void Takeover::AddSnapshotSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const Place& place = state.places[PlaceOf(c)];
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  for (int version = 1; version < options_.steps; ++version) {
    if (!Contains(before.asked, version) || Contains(place.indexes, version)) continue;
    next = state;
    Include(next.places[PlaceOf(c)].indexes, version);
    steps.AddFault(next, "C%d's index of the abandoned version %d is written", c, version);
  }
  if (!before.snapshot) {
    if (before.phase != kIdle || before.view == kNone || !state.snapshots) return;
    // The last version is never committed by a push (snapshots_and_moves.h models its commit).
    for (int version = 1; version < options_.steps; ++version) {
      if (Contains(place.indexes, version) || version < before.newest_index) continue;
      next = state;
      --next.snapshots;
      coordinator.snapshot = Byte(version + 1);
      Exclude(coordinator.abandoned, version);
      SendToAll(next, c, {kOpenSnapshot, 0, Byte(version), 0});
      steps.AddFault(next, "C%d opens a snapshot of version %d", c, version);
    }
    return;
  }
  const int version = before.snapshot - 1;
  if (state.abandons) {
    next = state;
    --next.abandons;
    Abandon(coordinator);
    steps.AddFault(next, "C%d abandons its snapshot of version %d", c, version);
  }
  if (before.reported != kBothShards) return;
  next = state;
  if (!before.verified) {
    if (place.files[version] == kBothShards) {
      coordinator.verified = 1;
      steps.Add(next, "C%d finds all files of version %d in the storage", c, version);
    } else {
      Abandon(coordinator);
      steps.Add(next, "C%d misses a file of version %d, and abandons the snapshot", c, version);
    }
    return;
  }
  Include(next.places[PlaceOf(c)].indexes, version);
  coordinator.newest_index = std::max(coordinator.newest_index, Byte(version));
  CloseSnapshot(coordinator);
  steps.Add(next, "C%d writes the index of version %d", c, version);
}

bool Takeover::Removes(const State& state, int c, int version, Removal removal) const {
  const Coordinator& coordinator = state.coordinators[c];
  if (removal == Removal::kNever) return false;
  if (removal == Removal::kAtOnce || version < coordinator.newest_index) return true;
  if (removal == Removal::kBelowOwnIndex) return false;
  const WhenOver& when = options_.when_over;
  int committed = coordinator.committed;
  for (int v = 0; v < kVersions && !when.in_own_view; ++v) {
    if (state.committed[v]) committed = v;
  }
  return (version < committed || !when.later_is_committed) &&
         (version > coordinator.first_step || !when.after_own_first_step) &&
         !(Contains(coordinator.asked, version) && when.index_is_not_asked_for);
}

// Removes one file that no index names.
void Takeover::AddRemovals(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  for (int place = 0; place < kCoordinators; ++place) {
    for (int version = 1; version < options_.steps; ++version) {
      const bool own = place == PlaceOf(c) && Contains(before.abandoned, version);
      // A coordinator knows what it abandoned itself; for other files it reads the indexes.
      if (!own && (Contains(state.places[place].indexes, version) || before.view == kNone ||
                   before.snapshot == version + 1)) {
        continue;
      }
      const Removal removal = own ? options_.abandoned : options_.found;
      if (!Removes(state, c, version, removal)) continue;
      for (int i = 0; i < kShards; ++i) {
        if (!Contains(state.places[place].files[version], i)) continue;
        State next = state;
        Exclude(next.places[place].files[version], i);
        steps.AddFault(next, "C%d removes S%d's file of version %d", c, i, version);
      }
    }
  }
}

void Takeover::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
  int alive = 0;
  int used = 0;
  for (int c = 0; c < kCoordinators; ++c) {
    alive += state.coordinators[c].alive;
    if (state.coordinators[c].term) used = c + 1;
  }
  if (used == kCoordinators) return;
  State next = state;
  Coordinator& coordinator = next.coordinators[used];
  coordinator.alive = 1;
  coordinator.term = Byte(used + 1);
  coordinator.view = kNone;
  if (alive == 0) {
    steps.Add(next, "a new coordinator C%d starts", used);
  } else if (state.second_coordinators) {
    --next.second_coordinators;
    steps.AddFault(next, "C%d starts; its predecessor is frozen, or was cut off", used);
  }
}

}  // namespace sluice::protocol_models
