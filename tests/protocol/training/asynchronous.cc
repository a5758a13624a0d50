#include "tests/protocol/training/asynchronous.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using Model = Asynchronous;
using State = Model::State;
using Coordinator = Model::Coordinator;
using View = Model::View;
using Worker = Model::Worker;

constexpr uint8_t kAllPartitions = 3;

const char* TextOf(Model::Error error) {
  switch (error) {
    case Model::kNoError:
      return "";
    case Model::kAppliedTwice:
      return "a sample is applied twice to one partition";
    case Model::kUpdateIsMissing:
      return "a shard never had an update that another shard has applied";
    case Model::kLeasedTwice:
      return "a sample is leased twice";
    case Model::kChannelIsFull:
      return "a channel of the model is full";
    case Model::kTooManyViews:
      return "the model has too few views";
    case Model::kApplyWithoutUpdate:
      return "a shard receives Apply of an update that it has not staged";
    case Model::kFollowerOutOfStep:
      return "a follower is out of step";
    case Model::kSampleIsLost:
      return "an update is acked as a repetition, but its sample was never applied";
    case Model::kAnsweredUpdateIsLost:
      return "an update is lost that its worker knows to be applied";
  }
  return "";
}

// Views are compared by (term, number).
bool IsNewer(const State& state, int a, int b) {
  if (a == b || a == kNone) return false;
  if (b == kNone) return true;
  const View &x = state.views[a], &y = state.views[b];
  return x.term != y.term ? x.term > y.term : x.number > y.number;
}

void Exit(Coordinator& coordinator) {
  uint8_t term = coordinator.term;
  coordinator = Coordinator{};
  coordinator.term = term;
  coordinator.view = kNone;
}

bool HasPartition(const View& view, int shard) {
  for (int p = 0; p < Model::kPartitions; ++p) {
    if (view.owner[p] == shard || view.follower[p] == shard) return true;
  }
  return false;
}

void Pause(State& state, int c) {
  Coordinator& coordinator = state.coordinators[c];
  coordinator.phase = Model::kPauses;
  coordinator.replies = 0;
  coordinator.recording = coordinator.recording_samples = coordinator.recorded = 0;
  for (int i = 0; i < Model::kShards; ++i) {
    if (!state.shards[i].alive) continue;
    if (state.messages[c][i].Full()) {
      state.error = Model::kChannelIsFull;
    } else {
      state.messages[c][i].Push({Model::kPause, 0, 0, 0});
    }
  }
}

}  // namespace

State Asynchronous::Initial() const {
  State state{};
  state.view_count = 1;
  View& view = state.views[0];
  view.number = view.term = 1;
  view.members = 3;
  for (int p = 0; p < kPartitions; ++p) {
    view.owner[p] = options_.one_owner ? 0 : Byte(p);
    view.follower[p] = options_.copies ? Byte(1 - view.owner[p]) : kNone;
  }
  for (int w = 0; w < kWorkers; ++w) {
    state.workers[w].alive = w < 2;
    state.workers[w].view = w < 2 ? 0 : kNone;
  }
  for (int i = 0; i < kShards; ++i) {
    Shard& shard = state.shards[i];
    shard.alive = shard.term = 1;
    shard.promised_to = kNone;
    for (int p = 0; p < kPartitions; ++p) {
      const bool whole = options_.copies && !options_.makes_copies;
      shard.copies[p].has = view.owner[p] == i || (whole && view.follower[p] == i);
      shard.copies[p].begun = whole && view.owner[p] == i;
    }
  }
  for (Coordinator& coordinator : state.coordinators) coordinator.view = kNone;
  state.coordinators[0].alive = state.coordinators[0].term = 1;
  state.coordinators[0].view = 0;
  state.faults = options_.faults;
  state.worker_crashes = options_.worker_crashes;
  state.suspicions = options_.suspicions;
  state.coordinator_crashes = options_.coordinator_crashes;
  state.second_coordinators = options_.second_coordinators;
  state.shard_crashes = options_.shard_crashes;
  state.starts = options_.starts;
  state.arbiter_moves = options_.arbiter_moves;
  return state;
}

bool Asynchronous::Done(const State& state) const {
  int newest = kNone;
  for (const Shard& shard : state.shards) {
    if (shard.alive && IsNewer(state, shard.view, newest)) newest = shard.view;
  }
  if (newest == kNone) return true;
  const View& view = state.views[newest];
  for (int p = 0; p < kPartitions; ++p) {
    if (view.owner[p] == kNone) return true;
    const Shard& owner = state.shards[view.owner[p]];
    if (!owner.alive || owner.view != newest) return false;
    if (owner.copies[p].applied != AllSamples()) return false;
    if (view.follower[p] == kNone) continue;
    const Shard& follower = state.shards[view.follower[p]];
    if (follower.alive && follower.view == newest && follower.copies[p].applied != AllSamples()) {
      return false;
    }
  }
  return true;
}

std::string Asynchronous::Violation(const State& state) const { return TextOf(state.error); }

void Asynchronous::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.error != kNoError) return;
  for (int w = 0; w < kWorkers; ++w) {
    if (!state.workers[w].alive) {
      AddWorkerStart(state, w, steps);
      continue;
    }
    AddAdoption(state, w, steps);
    if (state.workers[w].view == kNone) continue;
    AddUpdateSteps(state, w, steps);
    if (state.worker_crashes && state.faults) {
      State next = state;
      --next.worker_crashes, --next.faults;
      next.workers[w] = Worker{};
      steps.AddFault(next, "W%d crashes", w);
    }
  }
  for (int i = 0; i < kShards; ++i) {
    if (!state.shards[i].alive) continue;
    AddPushArrivals(state, i, steps);
    AddCopies(state, i, steps);
    AddShardMessageArrivals(state, i, steps);
    AddMessageArrivals(state, i, steps);
    AddShardCrash(state, i, steps);
  }
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

void Asynchronous::AddWorkerStart(const State& state, int w, Steps<State>& steps) const {
  bool none = true;
  for (const Worker& worker : state.workers) none = none && !worker.alive;
  const bool wished = state.starts && (w == 2 || options_.same_index_starts);
  if (!(none && w == 2) && !wished) return;
  State next = state;
  Worker& worker = next.workers[w];
  if (next.starts) --next.starts;
  worker.alive = 1;
  worker.view = kNone;
  uint8_t highest = 0;
  for (int i = 0; i < state.view_count; ++i) {
    highest = std::max(highest, state.views[i].incarnation[w]);
  }
  worker.incarnation = Byte(highest + (w < 2));
  if (none) {
    steps.Add(next, "W%d starts", w);
  } else {
    steps.AddFault(next, "W%d starts", w);
  }
}

void Asynchronous::AddAdoption(const State& state, int w, Steps<State>& steps) const {
  const Worker& before = state.workers[w];
  for (int index = 0; index < state.view_count; ++index) {
    if (!IsNewer(state, index, before.view)) continue;
    State next = state;
    Worker& worker = next.workers[w];
    const View& view = state.views[index];
    const bool was_member = before.view != kNone && Contains(state.views[before.view].members, w) &&
                            state.views[before.view].incarnation[w] == before.incarnation;
    const bool is_member = Contains(view.members, w) && view.incarnation[w] >= before.incarnation;
    worker.view = Byte(index);
    worker.pushed = worker.acked = worker.apply_sent = worker.applied = 0;
    if (options_.permits_end_with_view) worker.permit = 0;
    if (!is_member || !was_member || view.incarnation[w] != before.incarnation) {
      worker.lease = worker.update = worker.permit = 0;
      if (view.incarnation[w] > before.incarnation) {
        worker.incarnation = view.incarnation[w];
        worker.clock = 0;
      }
    }
    steps.Add(next, "W%d adopts view %d", w, index);
  }
}

void Asynchronous::AddUpdateSteps(const State& state, int w, Steps<State>& steps) const {
  const Worker& before = state.workers[w];
  const View& view = state.views[before.view];
  if (!Contains(view.members, w) || view.incarnation[w] != before.incarnation) return;
  State next = state;
  Worker& worker = next.workers[w];
  const uint8_t clock = Byte(before.clock + 1);
  if (!before.update && before.lease) {
    worker.update = Byte(__builtin_ctz(before.lease) + 1);
    steps.Add(next, "W%d computes sample %d, its update %d", w, worker.update - 1, clock);
  }
  const Shard& arbiter = state.shards[view.owner[0]];
  // There is one permit.
  if (before.update && !before.permit && arbiter.alive && arbiter.view == before.view &&
      !arbiter.promised && !arbiter.permits) {
    next = state;
    worker.permit = 1;
    Include(next.shards[view.owner[0]].permits, w);
    steps.Add(next, "W%d receives a permit", w);
  }
  for (int p = 0; p < kPartitions; ++p) {
    const int owner = view.owner[p];
    if (!state.shards[owner].alive || state.pushes[w][owner].Full()) continue;
    if (before.permit && before.update && !Contains(before.pushed, p)) {
      next = state;
      Include(worker.pushed, p);
      next.pushes[w][owner].Push({kUpdate, before.view, clock, Byte(p), before.update});
      steps.Add(next, "W%d pushes update %d of P%d to S%d", w, clock, p, owner);
    }
    const bool acked = options_.applies_after_all_acks ? before.acked == kAllPartitions
                                                       : Contains(before.acked, p);
    if (acked && !Contains(before.apply_sent, p)) {
      next = state;
      Include(worker.apply_sent, p);
      next.pushes[w][owner].Push({kApply, before.view, clock, Byte(p), before.update});
      steps.Add(next, "W%d sends Apply of update %d of P%d to S%d", w, clock, p, owner);
    }
  }
}

void Asynchronous::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  if (before.phase == kIdle) {
    if (before.view == kNone) {
      Pause(next, c);
      steps.Add(next, "C%d pauses all shards, as a new coordinator", c);
    } else {
      if (state.views[before.view].owner[0] == kNone) return;  // the model's end
      AddViewChanges(state, c, steps);
      AddLeaseSteps(state, c, steps);
    }
  } else if (before.phase == kPauses) {
    uint8_t alive = 0;
    for (int i = 0; i < kShards; ++i) {
      if (state.shards[i].alive) Include(alive, i);
    }
    if (alive && (before.replies & alive) == alive) {
      const bool decided = Decide(next, c);
      if (decided) steps.Add(next, "C%d has all replies, and decides a view", c);
      // A coordinator that has no view, or the model's end, takes no other step.
      if (!decided || next.error != kNoError || next.coordinators[c].phase == kIdle) return;
    }
  } else {
    for (int i = 0; i < kShards; ++i) {
      if (!state.shards[i].alive) continue;
      if (state.messages[c][i].Full()) {
        next.error = kChannelIsFull;
      } else {
        next.messages[c][i].Push({kInstall, before.view, 0, 0});
      }
    }
    next.coordinators[c].phase = kIdle;
    next.coordinators[c].replies = 0;
    steps.Add(next, "C%d sends the Install of view %d", c, before.view);
  }
  if (state.coordinator_crashes && state.faults) {
    next = state;
    --next.coordinator_crashes, --next.faults;
    Exit(next.coordinators[c]);
    steps.AddFault(next, "C%d crashes", c);
  }
}

void Asynchronous::AddViewChanges(const State& state, int c, Steps<State>& steps) const {
  const View& view = state.views[state.coordinators[c].view];
  bool dead = false;
  bool newcomer = false;
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& worker = state.workers[w];
    const bool member = Contains(view.members, w);
    dead = dead || (member && (!worker.alive || worker.incarnation > view.incarnation[w]));
    newcomer = newcomer || (worker.alive && !member);
  }
  for (int i = 0; i < kShards; ++i) {
    dead = dead || (!state.shards[i].alive && HasPartition(view, i));
  }
  State next = state;
  if (dead) {
    Pause(next, c);
    steps.Add(next, "C%d sees a death, and pauses", c);
    return;
  }
  if (newcomer && state.view_count < kViews - 2) {
    next.coordinators[c].change = kAddsWorkers;
    Pause(next, c);
    steps.Add(next, "C%d adds a worker, and pauses", c);
  }
  for (int w = 0; w < kWorkers && state.suspicions && state.faults; ++w) {
    if (!Contains(view.members, w)) continue;
    next = state;
    --next.suspicions, --next.faults;
    Include(next.coordinators[c].suspects, w);
    Pause(next, c);
    steps.AddFault(next, "C%d suspects W%d wrongly, and pauses", c, w);
  }
  if (state.arbiter_moves) {
    next = state;
    --next.arbiter_moves;
    next.coordinators[c].change = kMovesArbiter;
    Pause(next, c);
    steps.AddFault(next, "C%d moves P0, and pauses", c);
  }
}

void Asynchronous::AddLeaseSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const View& view = state.views[before.view];
  if (!before.recording) {
    for (int w = 0; w < kWorkers; ++w) {
      const Worker& worker = state.workers[w];
      if (Contains(view.members, w) && worker.alive && worker.view == before.view &&
          worker.incarnation == view.incarnation[w] && !worker.lease && !worker.update) {
        AddLease(state, c, w, steps);
      }
    }
  } else if (before.recorded) {
    State next = state;
    Coordinator& coordinator = next.coordinators[c];
    const int w = before.recording - 1;
    Worker& worker = next.workers[w];
    coordinator.leases[w] |= before.recording_samples;
    if (worker.alive && worker.view == before.view && worker.incarnation == view.incarnation[w]) {
      worker.lease |= before.recording_samples;
    }
    coordinator.recording = coordinator.recording_samples = coordinator.recorded = 0;
    steps.Add(next, "C%d gives W%d samples %#x", c, w, before.recording_samples);
  }
}

// The worker has requested a lease.
void Asynchronous::AddLease(const State& state, int c, int w, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const View& view = state.views[before.view];
  const int owner = view.owner[0];
  const Shard& arbiter = state.shards[owner];
  if (!arbiter.alive || state.messages[c][owner].Full()) return;
  const bool installed = arbiter.view == before.view;
  const uint8_t applied = view.applied | (installed ? arbiter.copies[0].applied : 0);
  const uint8_t unfinished = before.leases[w] & ~applied;
  State next = state;
  if (unfinished) {
    const bool confirmed = installed && !arbiter.promised && arbiter.term <= before.term;
    if (!options_.gives_lease_again || (!confirmed && options_.arbiter_confirms)) return;
    next.workers[w].lease = unfinished;
    steps.Add(next, "C%d gives W%d its lease of samples %#x again", c, w, unfinished);
    return;
  }
  uint8_t open = AllSamples() & ~applied;
  for (uint8_t leased : before.leases) open &= ~leased;
  uint8_t samples = 0;
  for (int sample = 0; sample < options_.samples; ++sample) {
    if (Contains(open, sample) && CountOf(samples) < options_.lease) Include(samples, sample);
  }
  if (!samples) return;
  Coordinator& coordinator = next.coordinators[c];
  coordinator.recording = Byte(w + 1);
  coordinator.recording_samples = samples;
  coordinator.recorded = 0;
  next.messages[c][owner].Push({kRecordLease, before.view, Byte(w), samples});
  steps.Add(next, "C%d asks the arbiter S%d to record samples %#x for W%d", c, owner, samples, w);
}

void Asynchronous::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
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
  } else if (alive == 1 && state.second_coordinators && state.faults) {
    --next.second_coordinators, --next.faults;
    steps.AddFault(next, "a second coordinator C%d starts", used);
  }
}

}  // namespace sluice::protocol_models
