// The steps of the coordinators.
#include <algorithm>

#include "tests/protocol/replication/copies.h"

namespace sluice::protocol_models {
namespace {

using Model = Copies;
using State = Model::State;
using Coordinator = Model::Coordinator;
using Shard = Model::Shard;
using View = Model::View;

void Exit(Coordinator& coordinator) {
  coordinator = Coordinator{};
  coordinator.view = kNone;
}

// Restores the job from a checkpoint: an error unless it was unprotected at some time.
void Restore(State& state) {
  state.restored = 1;
  if (!state.unprotected) state.error = Model::kGivenUp;
}

bool IsNewer(const State& state, int a, int b) {
  if (a == b || a == kNone) return false;
  if (b == kNone) return true;
  const View &x = state.views[a], &y = state.views[b];
  return x.term != y.term ? x.term > y.term : x.number > y.number;
}

uint8_t Alive(const State& state) {
  uint8_t alive = 0;
  for (int i = 0; i < Model::kShards; ++i) {
    if (state.shards[i].alive) Include(alive, i);
  }
  return alive;
}

}  // namespace

void Copies::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive || Contains(before.lost, i)) continue;
    if (state.shards[i].term <= before.term) continue;
    Exit(next.coordinators[c]);
    steps.Add(next, "S%d refuses C%d, which exits", i, before.term);
    break;
  }
  for (int i = 0; i < options_.shards && state.suspicions && state.faults; ++i) {
    if (!state.shards[i].alive || Contains(before.lost, i)) continue;
    next = state;
    --next.suspicions, --next.faults;
    CountLoss(next, i);
    Include(next.coordinators[c].lost, i);
    Exclude(next.coordinators[c].replies, i);
    next.coordinators[c].reply[i] = Reply{};
    if (!before.pausing || before.after_step) StartPause(next, c, 0, false);
    steps.AddFault(next, "C%d suspects S%d wrongly, and expels it", before.term, i);
  }
  if (state.coordinator_crashes && state.faults) {
    next = state;
    --next.coordinator_crashes, --next.faults;
    Exit(next.coordinators[c]);
    steps.AddFault(next, "C%d crashes", before.term);
  }
  if (before.pausing) {
    AddPauses(state, c, steps);
  } else {
    AddViewChanges(state, c, steps);
  }
}

void Copies::StartPause(State& state, int c, int after_step, bool planned) const {
  Coordinator& coordinator = state.coordinators[c];
  coordinator.pausing = 1;
  ++coordinator.number;
  coordinator.planned = planned;
  coordinator.after_step = Byte(after_step);
  coordinator.replies = 0;
  for (Reply& reply : coordinator.reply) reply = Reply{};
}

void Copies::AddViewChanges(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  if (before.view == kNone) {
    StartPause(next, c, 0, false);
    steps.Add(next, "C%d pauses all shards, as a new coordinator", before.term);
    return;
  }
  const View& view = state.views[before.view];
  if ((view.shards | view.losers) & ~Alive(state)) {
    StartPause(next, c, 0, false);
    steps.Add(next, "C%d sees a death, and sends Pause(Now)", before.term);
    return;
  }
  if (!state.changes || !state.faults) return;
  for (int i = 0; i < options_.shards && options_.plans_wait_for_installs; ++i) {
    if (Contains(view.shards | view.losers, i) && state.shards[i].view != before.view) return;
  }
  int lowest = options_.steps;
  for (int p = 0; p < kPartitions; ++p) {
    lowest = std::min(lowest, VersionOf(state.shards[view.owner[p]].content[p]));
  }
  // 0: Now; else AfterStep of the step before.
  for (int after = 0; after <= options_.steps; ++after) {
    if (after && after <= lowest) continue;
    next = state;
    --next.changes, --next.faults;
    StartPause(next, c, after, true);
    steps.AddFault(next, "C%d plans a view, and sends Pause(%s %d)", before.term,
                   after ? "AfterStep" : "Now", after - 1);
  }
}

void Copies::AddPauses(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const uint8_t expected = Byte(Alive(state) & ~before.lost);
  State next = state;
  for (int i = 0; i < options_.shards; ++i) {
    const Shard& shard = state.shards[i];
    if (!Contains(expected, i) || shard.term > before.term) continue;
    if (shard.term == before.term && shard.pause == before.number) continue;
    next = state;
    PauseShard(next, c, i);
    steps.Add(next, "S%d receives Pause %d of C%d%s", i, before.number, before.term,
              next.shards[i].pausing == kPromised ? ", and replies" : "");
  }
  if (before.after_step && before.view != kNone &&
      (state.views[before.view].shards & ~Alive(state))) {
    next = state;
    StartPause(next, c, 0, false);
    steps.Add(next, "C%d sees a death while it waits, and sends Pause(Now)", before.term);
  }
  if (expected && (expected & ~before.replies) == 0) {
    next = state;
    Decide(next, c);
    steps.Add(next, "C%d has all replies", before.term);
  }
  if (!expected && state.coordinators[c].alive) {
    next = state;
    Restore(next);
    steps.Add(next, "C%d has no shard", before.term);
  }
}

void Copies::PauseShard(State& state, int c, int i) const {
  Shard& shard = state.shards[i];
  const Coordinator& coordinator = state.coordinators[c];
  shard.term = coordinator.term;
  shard.pause = coordinator.number;
  if (!coordinator.after_step || shard.pausing == kPromised || shard.view == kNone) {
    SendReply(state, i);
  } else {
    shard.pausing = kWaiting;
    shard.after_step = Byte(coordinator.after_step - 1);
    CheckAfterStep(state, i);
  }
}

void Copies::SendReply(State& state, int i) const {
  Shard& shard = state.shards[i];
  shard.pausing = kPromised;
  shard.after_step = 0;
  for (Coordinator& coordinator : state.coordinators) {
    if (!coordinator.alive || !coordinator.pausing || coordinator.term != shard.term) continue;
    if (coordinator.number != shard.pause) continue;
    Include(coordinator.replies, i);
    Reply& reply = coordinator.reply[i];
    reply.view = shard.view;
    reply.holds = shard.holds;
    reply.undo = shard.undo;
    for (int p = 0; p < kPartitions; ++p) {
      reply.version[p] = Contains(shard.holds, p) ? Byte(VersionOf(shard.content[p])) : uint8_t{0};
    }
  }
}

// The shard has the partition, or a whole copy, in the newest view.
bool Copies::Holds(const State& state, const Coordinator& coordinator, int newest, int i,
                   int p) const {
  if (i == kNone || !state.shards[i].alive || !Contains(coordinator.replies, i)) return false;
  const Reply& reply = coordinator.reply[i];
  if (!Contains(reply.holds, p)) return false;
  if (reply.view == newest || options_.older_copy == OlderCopy::kAsReplied) return true;
  // R3.
  const View& view = state.views[newest];
  if (view.owner[p] != i && view.follower[p] != i && view.target[p] != i) return false;
  return reply.version[p] == view.first_step ||
         (reply.version[p] == view.first_step + 1 && Contains(reply.undo, p));
}

// Whether shard i, which holds the partition, can be at `first_step`.
bool Copies::CanStand(const State& state, const Coordinator& coordinator, int newest, int i, int p,
                      int first_step) const {
  const Reply& reply = coordinator.reply[i];
  if (reply.view != newest && options_.older_view_is_at_first_step) {
    return first_step == state.views[newest].first_step;
  }
  return reply.version[p] == first_step ||
         (reply.version[p] == first_step + 1 && Contains(reply.undo, p));
}

// An owner that is gone is replaced by a shard with a whole copy. Returns false if there is none.
bool Copies::ChooseOwners(const State& state, const Coordinator& coordinator, int newest,
                          View& view) const {
  const View old = view;
  view.first_step = kNone;
  for (int p = 0; p < kPartitions; ++p) {
    int owner = kNone;
    for (int i : {old.target[p], old.follower[p], old.owner[p]}) {
      if (Contains(view.shards, i) && Holds(state, coordinator, newest, i, p)) owner = i;
    }
    if (owner == kNone) return false;
    view.owner[p] = Byte(owner);
    const Reply& reply = coordinator.reply[owner];
    const bool older = reply.view != newest && options_.older_view_is_at_first_step;
    view.first_step = std::min(view.first_step, older ? old.first_step : reply.version[p]);
  }
  return true;
}

void Copies::CarryOutPlan(const Coordinator& coordinator, int newest, const State& state,
                          View& view) const {
  auto whole = [&](int i, int p) {
    return Contains(view.shards, i) && Holds(state, coordinator, newest, i, p) &&
           CanStand(state, coordinator, newest, i, p, view.first_step);
  };
  switch (options_.plan) {
    case Plan::kNone:
      break;
    case Plan::kSwap:
      if (whole(view.follower[0], 0)) std::swap(view.owner[0], view.follower[0]);
      break;
    case Plan::kMove:
      if (!whole(view.target[0], 0)) break;
      if (options_.followers) view.follower[0] = view.owner[0];
      view.owner[0] = view.target[0];
      view.target[0] = kNone;
      break;
    case Plan::kDrain:
      if (!Contains(view.shards, 0)) return;
      for (int p = 0; p < kPartitions; ++p) {
        if (view.owner[p] == 0 && !whole(view.follower[p], p)) return;
      }
      for (int p = 0; p < kPartitions; ++p) {
        if (view.owner[p] == 0) view.owner[p] = view.follower[p];
      }
      Exclude(view.shards, 0);
      Include(view.losers, 0);
      break;
  }
}

void Copies::AssignCopies(const State& state, const Coordinator& coordinator, int newest,
                          View& view) const {
  for (int p = 0; p < kPartitions; ++p) {
    auto whole = [&](int i) {
      return Holds(state, coordinator, newest, i, p) &&
             CanStand(state, coordinator, newest, i, p, view.first_step);
    };
    auto possible = [&](int i) { return Contains(view.shards, i) && view.owner[p] != i; };
    if (!possible(view.target[p])) view.target[p] = kNone;
    if (!possible(view.follower[p])) view.follower[p] = kNone;
    for (int i = 0; i < kShards && options_.followers && view.follower[p] == kNone; ++i) {
      if (possible(i) && view.target[p] != i) view.follower[p] = Byte(i);
    }
    view.whole[p] = 0;
    for (uint8_t i : {view.follower[p], view.target[p]}) {
      if (i != kNone && whole(i)) Include(view.whole[p], i);
    }
    for (int i = 0; i < kShards; ++i) {
      const bool loses = Contains(coordinator.replies, i) && view.owner[p] != i &&
                         Contains(coordinator.reply[i].holds, p) && !Contains(view.whole[p], i);
      if (loses && Contains(view.shards, i)) Include(view.losers, i);
    }
  }
}

void Copies::Decide(State& state, int c) const {
  Coordinator& coordinator = state.coordinators[c];
  int newest = kNone;
  for (int i = 0; i < options_.shards; ++i) {
    if (!Contains(coordinator.replies, i)) continue;
    if (IsNewer(state, coordinator.reply[i].view, newest)) newest = coordinator.reply[i].view;
  }
  if (newest == kNone) {
    return Restore(state);
  }
  if (state.view_count >= kViews) {
    state.error = kTooManyViews;
    return;
  }
  View view = state.views[newest];
  if (view.record > coordinator.record) {
    coordinator.record = state.record_count;  // it reads the records again, and decides then
    return;
  }
  uint8_t present = 0;
  for (int i = 0; i < options_.shards; ++i) {
    const bool is_new = coordinator.reply[i].view == kNone;
    if (Contains(coordinator.replies, i) && state.shards[i].alive &&
        (is_new || Contains(view.shards, i))) {
      Include(present, i);
    }
  }
  // R4: a loss record that was not carried out is carried out first.
  uint8_t continuing = view.shards;
  if (options_.carries_out_records && view.record < coordinator.record)
    continuing &= state.records[coordinator.record - 1];
  present &= Byte(continuing | ~view.shards);
  view.shards = present;
  view.losers = 0;
  if (!ChooseOwners(state, coordinator, newest, view)) {
    return Restore(state);
  }
  if (coordinator.planned && !state.snapshot) {
    CarryOutPlan(coordinator, newest, state, view);
    if (state.losses) state.unprotected = 1;
  }
  AssignCopies(state, coordinator, newest, view);
  if ((continuing & ~present) && options_.claim) {
    if (state.record_count != coordinator.record || state.record_count >= kRecords) {
      Exit(coordinator);
      return;
    }
    state.records[state.record_count++] = view.shards;
    coordinator.record = state.record_count;
  }
  const bool takes_over = coordinator.view == kNone;
  bool owners_change = false;
  for (int p = 0; p < kPartitions; ++p) {
    owners_change = owners_change || view.owner[p] != state.views[newest].owner[p];
  }
  const bool past = owners_change && state.snapshot && state.snapshot <= view.first_step + 1;
  if (takes_over || (past && options_.snapshot_is_abandoned)) state.snapshot = state.written = 0;
  view.term = coordinator.term;
  view.number = coordinator.number;
  view.record = coordinator.record;
  view.reach = view.first_step;
  coordinator.view = state.view_count++;
  coordinator.lost |= Byte(7 & ~(view.shards | view.losers));
  coordinator.pausing = coordinator.planned = coordinator.after_step = coordinator.replies = 0;
  for (Reply& reply : coordinator.reply) reply = Reply{};
  state.views[coordinator.view] = view;
}

void Copies::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
  int alive = 0;
  int free = kNone;
  for (int c = kCoordinators; c-- > 0;) {
    alive += state.coordinators[c].alive;
    if (!state.coordinators[c].alive) free = c;
  }
  if (free == kNone) return;
  State next = state;
  Coordinator& coordinator = next.coordinators[free];
  coordinator.alive = 1;
  coordinator.term = ++next.highest_term;
  coordinator.view = kNone;
  coordinator.record = state.record_count;
  if (alive == 0) {
    steps.Add(next, "a new coordinator C%d starts", coordinator.term);
  } else if (state.second_coordinators && state.faults) {
    --next.second_coordinators, --next.faults;
    steps.AddFault(next, "a second coordinator C%d starts", coordinator.term);
  }
}

}  // namespace sluice::protocol_models
