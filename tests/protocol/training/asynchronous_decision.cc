// The coordinator's decision of a view.
#include <algorithm>

#include "tests/protocol/training/asynchronous.h"

namespace sluice::protocol_models {
namespace {

using State = Asynchronous::State;
using Shard = Asynchronous::Shard;
using View = Asynchronous::View;
using Worker = Asynchronous::Worker;

bool Has(const State& state, int shard, int partition) {
  return shard != kNone && state.shards[shard].alive && state.shards[shard].copies[partition].has;
}

}  // namespace

// Returns false if no worker can be a member.
bool Asynchronous::Decide(State& state, int c) const {
  if (state.view_count >= kViews) {
    state.error = kTooManyViews;
    return true;
  }
  Coordinator& coordinator = state.coordinators[c];
  int newest = kNone;
  for (const Shard& shard : state.shards) {
    if (!shard.alive || shard.view == newest) continue;
    const View& view = state.views[shard.view];
    if (newest == kNone || view.term > state.views[newest].term ||
        (view.term == state.views[newest].term && view.number > state.views[newest].number)) {
      newest = shard.view;
    }
  }
  const View old = state.views[newest];
  View view = old;
  ++view.number;
  view.term = coordinator.term;
  for (int p = 0; p < kPartitions; ++p) {
    if (!Has(state, old.owner[p], p)) {
      view.owner[p] = old.follower[p];
      view.follower[p] = kNone;
    } else if (!Has(state, old.follower[p], p)) {
      view.follower[p] = kNone;
    }
    if (!Has(state, view.owner[p], p)) {
      Restore(state, coordinator, view);
      return true;
    }
  }

  DecideClocks(state, view);
  const Shard& arbiter = state.shards[view.owner[0]];
  for (int w = 0; w < kWorkers; ++w) {
    view.leases[w] = arbiter.view == newest ? arbiter.leases[w] : old.leases[w];
  }
  if (!DecideMembers(state, coordinator, old, view)) return false;
  if (coordinator.change == kMovesArbiter && state.shards[0].view == newest) {
    MoveArbiter(state, view);
  }
  coordinator.change = kNoChange;
  coordinator.suspects = 0;
  coordinator.view = state.view_count++;
  coordinator.phase = kDecided;
  for (int w = 0; w < kWorkers; ++w) coordinator.leases[w] = view.leases[w];
  state.views[coordinator.view] = view;
  return true;
}

void Asynchronous::Restore(State& state, Coordinator& coordinator, View view) const {
  for (int p = 0; p < kPartitions; ++p) view.owner[p] = view.follower[p] = kNone;
  view.members = 0;
  coordinator.view = state.view_count++;
  coordinator.phase = kIdle;
  state.views[coordinator.view] = view;
  for (Shard& shard : state.shards) shard.view = coordinator.view;
}

// The highest clock wins: an update that one shard has applied is applied by all.
void Asynchronous::DecideClocks(State& state, View& view) const {
  view.applied = 0;
  for (int w = 0; w < kWorkers; ++w) {
    uint8_t clock = 0;
    uint8_t sample = 0;
    for (const Shard& shard : state.shards) {
      for (const Copy& copy : shard.copies) {
        if (!shard.alive || !copy.has) continue;
        view.applied |= copy.applied;
        if (state.views[shard.view].incarnation[w] == view.incarnation[w]) {
          clock = std::max(clock, copy.clock[w]);
        }
      }
    }
    for (const Shard& shard : state.shards) {
      for (const Copy& copy : shard.copies) {
        if (shard.alive && copy.has && clock && copy.staged_clock[w] == clock) {
          sample = copy.staged_sample[w];
        }
      }
    }
    view.clock[w] = clock;
    view.kept_sample[w] = sample;
    const Worker& worker = state.workers[w];
    if (worker.alive && worker.incarnation == view.incarnation[w] && worker.clock > clock) {
      state.error = kAnsweredUpdateIsLost;
    }
  }
}

bool Asynchronous::DecideMembers(const State& state, const Coordinator& coordinator,
                                 const View& old, View& view) const {
  uint8_t members = 0;
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& worker = state.workers[w];
    if (Contains(old.members, w) && worker.alive && !Contains(coordinator.suspects, w) &&
        worker.incarnation <= old.incarnation[w]) {
      Include(members, w);
    }
  }
  uint8_t added = 0;
  for (int w = 0; w < kWorkers; ++w) {
    if (coordinator.change != kAddsWorkers && members) break;
    if (!state.workers[w].alive || Contains(members, w)) continue;
    if (Contains(coordinator.suspects, w) && members) continue;
    Include(added, w);
  }
  for (int w = 0; w < kWorkers; ++w) {
    if (!Contains(members, w)) view.leases[w] = 0;
    view.leases[w] &= ~view.applied;
    if (!Contains(added, w)) continue;
    if (state.workers[w].incarnation > old.incarnation[w]) {
      view.incarnation[w] = state.workers[w].incarnation;
    } else if (options_.returns_as_new_incarnation) {
      view.incarnation[w] = Byte(old.incarnation[w] + 1);
    }
  }
  view.members = members | added;
  return view.members != 0;
}

// Partition 0 moves to shard 1 with what it has staged of the kept updates, or owner and follower
// change places.
void Asynchronous::MoveArbiter(State& state, View& view) const {
  if (!state.shards[0].alive || !state.shards[1].alive) return;
  if (view.owner[0] != 0) return;
  view.owner[0] = 1;
  if (view.follower[0] == 1) {
    view.follower[0] = 0;
    return;
  }
  Copy copy = state.shards[0].copies[0];
  for (int w = 0; w < kWorkers; ++w) {
    if (view.clock[w] <= copy.clock[w] || copy.staged_clock[w] != view.clock[w]) continue;
    Include(copy.applied, copy.staged_sample[w] - 1);
    copy.clock[w] = view.clock[w];
    copy.staged_clock[w] = copy.staged_sample[w] = 0;
  }
  state.shards[1].copies[0] = copy;
}

}  // namespace sluice::protocol_models
