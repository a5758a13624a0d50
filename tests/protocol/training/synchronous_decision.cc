// The coordinator's decision of a view.
#include <algorithm>

#include "tests/protocol/training/synchronous.h"

namespace sluice::protocol_models {

// Returns false if no view is possible.
bool Synchronous::Decide(State& state, int c) const {
  Coordinator& coordinator = state.coordinators[c];
  int newest = kNone;
  for (int i = 0; i < options_.shards; ++i) {
    if (!Contains(coordinator.replies, i) || !state.shards[i].alive) continue;
    if (Compare(state, coordinator.reply_view[i], newest) > 0) newest = coordinator.reply_view[i];
  }
  if (newest == kNone) return false;
  if (state.view_count >= kViews) {
    state.error = kTooManyViews;
    return true;
  }
  const View old = state.views[newest];
  if (options_.after_survey != AfterSurvey::kNewView && coordinator.reason == kSurvey) {
    bool dead = MemberIsDead(state, old);
    for (int i = 0; i < options_.shards; ++i) dead = dead || !state.shards[i].alive;
    if (!dead) {
      coordinator.view = Byte(newest);
      coordinator.phase = kDecided;
      return true;
    }
  }

  View view = old;
  view.number = Byte(old.number + 1);
  view.term = coordinator.term;
  if (!ChooseOwners(state, coordinator, newest, view)) {
    Restore(state, coordinator, view);
    return true;
  }
  uint8_t members = 0;
  uint8_t alive = 0;
  for (int w = 0; w < kWorkers; ++w) {
    if (!state.workers[w].alive) continue;
    Include(alive, w);
    if (Contains(old.members, w) && !Contains(coordinator.suspects, w)) Include(members, w);
  }
  if (coordinator.reason == kJoin || !members) members = alive;
  if (!members) return false;
  view.members = members;
  coordinator.suspects = 0;
  if (coordinator.reason == kMove && state.shards[2].alive && Contains(coordinator.replies, 2) &&
      Contains(coordinator.reply_has[2], 0)) {
    const int version = coordinator.reply_version[2][0];
    if (!options_.target_counts_with_step || version == view.first_step ||
        version == view.first_step + 1) {
      view.owner[0] = 2;
      view.follower[0] = kNone;
      state.move = kMoved;
    }
  }
  coordinator.view = state.view_count++;
  coordinator.phase = kDecided;
  state.views[coordinator.view] = view;
  return true;
}

// A partition's owner is the newest view's owner if it replied, else its follower. The first step
// is the lowest version of an owner or follower. Returns false if a partition has no copy.
bool Synchronous::ChooseOwners(const State& state, const Coordinator& coordinator, int newest,
                               View& view) const {
  const View old = state.views[newest];
  view.first_step = kNone;
  for (int p = 0; p < kPartitions; ++p) {
    auto has = [&](int i) {
      return i != kNone && state.shards[i].alive && Contains(coordinator.replies, i) &&
             Contains(coordinator.reply_has[i], p);
    };
    // R3: a shard without the newest view is at that view's first step.
    auto version = [&](int i) {
      return coordinator.reply_view[i] == newest ? coordinator.reply_version[i][p] : old.first_step;
    };
    const uint8_t owner = old.owner[p], follower = old.follower[p];
    if (has(owner)) {
      view.owner[p] = owner;
      view.follower[p] = has(follower) ? follower : kNone;
    } else if (has(follower)) {
      view.owner[p] = follower;
      view.follower[p] = kNone;
    } else {
      view.first_step = old.first_step;
      return false;
    }
    view.first_step = std::min(view.first_step, version(view.owner[p]));
    if (view.follower[p] != kNone) {
      view.first_step = std::min(view.first_step, version(view.follower[p]));
    }
  }
  return true;
}

void Synchronous::Restore(State& state, Coordinator& coordinator, View view) const {
  for (int p = 0; p < kPartitions; ++p) view.owner[p] = view.follower[p] = kNone;
  view.members = 0;
  coordinator.view = state.view_count++;
  coordinator.phase = kDecided;
  state.views[coordinator.view] = view;
  for (int i = 0; i < options_.shards; ++i) {
    state.shards[i].view = coordinator.view;
    state.shards[i].has = 0;
  }
}

}  // namespace sluice::protocol_models
