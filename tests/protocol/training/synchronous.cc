#include "tests/protocol/training/synchronous.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using Model = Synchronous;
using State = Model::State;
using Coordinator = Model::Coordinator;
using View = Model::View;
using Worker = Model::Worker;

const char* TextOf(Model::Error error) {
  switch (error) {
    case Model::kNoError:
      return "";
    case Model::kAddedTwice:
      return "a microbatch is added twice";
    case Model::kIncompleteStep:
      return "a step closes without all of its microbatches";
    case Model::kCannotRollBack:
      return "the version to return to is gone";
    case Model::kBehindView:
      return "a shard is behind the view's first step";
    case Model::kTwoViews:
      return "two different views with one id are installed";
    case Model::kPushAhead:
      return "a worker pushes a step ahead of the partition";
    case Model::kFollowerOutOfStep:
      return "a follower is out of step";
    case Model::kTooManyViews:
      return "the model has too few views";
    case Model::kChannelIsFull:
      return "a channel of the model is full";
    case Model::kMoveOutOfStep:
      return "the target of a move applies a gradient to another version";
    case Model::kNotHeld:
      return "a new owner does not have its partition";
  }
  return "";
}

void Exit(Coordinator& coordinator) {
  uint8_t term = coordinator.term;
  coordinator = Coordinator{};
  coordinator.term = term;
  coordinator.view = kNone;
}

uint8_t MicrobatchesOf(int members, int worker) {
  if (!Contains(members, worker)) return 0;
  const int count = CountOf(members);
  const int rank = CountOf(members & ((1 << worker) - 1));
  uint8_t microbatches = 0;
  for (int b = 0; b < 3; ++b) {
    if (b % count == rank) Include(microbatches, b);
  }
  return microbatches;
}

// The worker has all of the next version.
void BeginNextStep(Worker& worker) {
  ++worker.step;
  worker.pushed = 0;
  worker.has_gradient = worker.gradient = 0;
}

}  // namespace

State Synchronous::Initial() const {
  State state{};
  state.view_count = 1;
  View& view = state.views[0];
  view.number = view.term = 1;
  view.members = 3;
  for (int p = 0; p < kPartitions; ++p) {
    view.owner[p] = Byte(p);
    view.follower[p] = options_.copies ? Byte(1 - p) : kNone;
  }
  for (int w = 0; w < kWorkers; ++w) {
    Worker& worker = state.workers[w];
    worker.alive = w < 2;
    worker.view = worker.pulled[0] = worker.pulled[1] = w < 2 ? 0 : kNone;
  }
  for (int i = 0; i < options_.shards; ++i) {
    Shard& shard = state.shards[i];
    shard.alive = shard.term = 1;
    shard.promised_to = kNone;
    for (int p = 0; p < kPartitions; ++p) {
      if (view.owner[p] == i || view.follower[p] == i) Include(shard.has, p);
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
  state.joins = options_.joins;
  return state;
}

bool Synchronous::Done(const State& state) const {
  int newest = kNone;
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive) continue;
    if (newest != kNone && newest != state.shards[i].view) return false;
    newest = state.shards[i].view;
  }
  if (newest == kNone) return true;
  for (int p = 0; p < kPartitions; ++p) {
    const int owner = state.views[newest].owner[p];
    if (owner == kNone) return true;
    const Shard& shard = state.shards[owner];
    if (!shard.alive || shard.version[p] != options_.steps) return false;
    if (options_.last_step_commits && Contains(shard.undo, p)) return false;
  }
  return true;
}

std::string Synchronous::Violation(const State& state) const {
  if (state.error != kNoError) return TextOf(state.error);
  for (int i = 0; i < options_.shards; ++i) {
    for (int j = i + 1; j < options_.shards; ++j) {
      const Shard &a = state.shards[i], &b = state.shards[j];
      if (a.alive && b.alive && a.view != b.view && Compare(state, a.view, b.view) == 0) {
        return TextOf(kTwoViews);
      }
    }
  }
  return "";
}

// As a receiver compares two views: below 0 if `a` is older, 0 if they have one id.
int Synchronous::Compare(const State& state, int a, int b) const {
  if (a == b) return 0;
  if (a == kNone) return -1;
  if (b == kNone) return 1;
  const View &x = state.views[a], &y = state.views[b];
  if (options_.views_have_terms && x.term != y.term) return x.term < y.term ? -1 : 1;
  return x.number - y.number;
}

void Synchronous::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.error != kNoError) return;
  for (int w = 0; w < kWorkers; ++w) {
    if (state.workers[w].alive) AddWorkerSteps(state, w, steps);
  }
  AddJoin(state, steps);
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive) continue;
    AddPushArrivals(state, i, steps);
    AddShardMessageArrivals(state, i, steps);
    AddMessageArrivals(state, i, steps);
    AddShardCrash(state, i, steps);
  }
  if (options_.move) AddMoveBase(state, steps);
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

void Synchronous::AddWorkerSteps(const State& state, int w, Steps<State>& steps) const {
  AddAdoption(state, w, steps);
  const uint8_t index = state.workers[w].view;
  if (index == kNone || !Contains(state.views[index].members, w)) return;
  for (int p = 0; p < kPartitions; ++p) {
    const int owner = state.views[index].owner[p];
    if (owner == kNone || !state.shards[owner].alive) continue;
    AddPull(state, w, p, steps);
    AddPush(state, w, p, steps);
  }
  if (state.worker_crashes && state.faults) {
    State next = state;
    --next.worker_crashes, --next.faults;
    next.workers[w] = Worker{};
    steps.AddFault(next, "W%d crashes", w);
  }
}

void Synchronous::AddAdoption(const State& state, int w, Steps<State>& steps) const {
  for (int index = 0; index < state.view_count; ++index) {
    if (Compare(state, index, state.workers[w].view) <= 0) continue;
    State next = state;
    Worker& worker = next.workers[w];
    const View& view = state.views[index];
    const bool member = Contains(view.members, w);
    worker.view = Byte(index);
    worker.pushed = 0;
    const bool keeps = worker.has_gradient && worker.step == view.first_step && member &&
                       (MicrobatchesOf(view.members, w) & ~worker.gradient) == 0;
    worker.has_gradient = keeps;
    if (!keeps) worker.gradient = 0;
    worker.step = view.first_step;
    for (uint8_t& pulled : worker.pulled) {
      bool drop = options_.drops_older_pulls ? pulled != view.first_step
                                             : pulled != kNone && pulled < view.first_step;
      if (drop || !member) pulled = kNone;
    }
    if (!member) worker.has_gradient = worker.gradient = worker.step = 0;
    steps.Add(next, "W%d adopts view %d with first step %d", w, index, view.first_step);
  }
}

void Synchronous::AddPull(const State& state, int w, int p, Steps<State>& steps) const {
  const Worker& before = state.workers[w];
  const int owner = state.views[before.view].owner[p];
  const Shard& shard = state.shards[owner];
  const uint8_t version = shard.version[p];
  const uint8_t pulled = before.pulled[p];
  State next = state;
  Worker& worker = next.workers[w];
  auto has_next = [&] {
    return worker.pulled[0] == worker.step + 1 && worker.pulled[1] == worker.step + 1;
  };
  const bool wanted =
      version == before.step || (version == before.step + 1 && Contains(before.pushed, p));
  if (Compare(state, shard.view, before.view) == 0 && Contains(shard.has, p) &&
      state.views[shard.view].owner[p] == owner && wanted &&
      (pulled == kNone || pulled < version)) {
    worker.pulled[p] = version;
    if (has_next()) BeginNextStep(worker);
    steps.Add(next, "W%d pulls version %d of P%d from S%d", w, version, p, owner);
  } else if (!options_.drops_older_pulls && has_next()) {
    BeginNextStep(worker);
    steps.Add(next, "W%d has version %d, part of it from an older view", w, before.step + 1);
  }
}

void Synchronous::AddPush(const State& state, int w, int p, Steps<State>& steps) const {
  const Worker& before = state.workers[w];
  const View& view = state.views[before.view];
  const int owner = view.owner[p];
  if (before.step >= options_.steps || Contains(before.pushed, p)) return;
  if (state.pushes[w][owner].Full()) return;
  if (!before.has_gradient) {
    for (uint8_t pulled : before.pulled) {
      bool newer = !options_.drops_older_pulls && pulled == before.step + 1;
      if (pulled != before.step && !newer) return;
    }
  }
  State next = state;
  Worker& worker = next.workers[w];
  const uint8_t microbatches = MicrobatchesOf(view.members, w);
  if (!worker.has_gradient) {
    worker.has_gradient = 1;
    worker.gradient = microbatches;
  }
  Include(worker.pushed, p);
  next.pushes[w][owner].Push({before.view, before.step, Byte(p), microbatches});
  steps.Add(next, "W%d pushes step %d of P%d to S%d in view %d", w, before.step, p, owner,
            before.view);
}

void Synchronous::AddJoin(const State& state, Steps<State>& steps) const {
  if (state.workers[2].alive) return;
  const bool none = !state.workers[0].alive && !state.workers[1].alive;
  if (!none && !state.joins) return;
  State next = state;
  Worker& worker = next.workers[2];
  if (next.joins) --next.joins;
  worker.alive = 1;
  worker.view = worker.pulled[0] = worker.pulled[1] = kNone;
  if (none) {
    steps.Add(next, "W2 starts");
  } else {
    steps.AddFault(next, "W2 starts");
  }
}

bool Synchronous::MemberIsDead(const State& state, const View& view) const {
  for (int w = 0; w < kWorkers; ++w) {
    if (Contains(view.members, w) && !state.workers[w].alive) return true;
  }
  for (int i = 0; i < options_.shards; ++i) {
    if (state.shards[i].alive) continue;
    for (int p = 0; p < kPartitions; ++p) {
      if (view.owner[p] == i || view.follower[p] == i) return true;
    }
  }
  return false;
}

void Synchronous::StartPause(State& state, int c, Reason reason, int after_step) const {
  Coordinator& coordinator = state.coordinators[c];
  coordinator.phase = kPauses;
  coordinator.reason = reason;
  coordinator.after_step = Byte(after_step);
  coordinator.replies = 0;
  if (options_.pauses_are_numbered) coordinator.pause = (coordinator.pause + 1) & 7;
  for (int i = 0; i < kShards; ++i) {
    coordinator.reply_view[i] = coordinator.reply_has[i] = 0;
    coordinator.reply_version[i][0] = coordinator.reply_version[i][1] = 0;
  }
  const bool waits = reason == kJoin || reason == kMove;
  const uint8_t view = coordinator.view == kNone ? 0 : coordinator.view;
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive) continue;
    if (state.messages[c][i].Full()) {
      state.error = kChannelIsFull;
      return;
    }
    state.messages[c][i].Push(
        {waits ? kPauseAfterStep : kPauseNow, view, Byte(after_step), coordinator.pause});
  }
}

void Synchronous::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  bool refused = false;
  for (int i = 0; i < options_.shards; ++i) {
    refused = refused || (state.shards[i].alive && state.shards[i].term > before.term);
  }
  if (refused && options_.refused_exits) {
    Exit(next.coordinators[c]);
    steps.Add(next, "a shard refuses C%d, which exits", c);
    next = state;
  }
  switch (before.phase) {
    case kIdle:
      if (before.view == kNone) {
        StartPause(next, c, kSurvey, 0);
        steps.Add(next, "C%d pauses all shards, as a new coordinator", c);
        break;
      }
      if (state.views[before.view].owner[0] == kNone) return;  // the model's end
      AddLastCommit(state, c, steps);
      AddViewChanges(state, c, steps);
      break;
    case kPauses:
      AddPauseSteps(state, c, steps);
      break;
    case kDecided: {
      Coordinator& coordinator = next.coordinators[c];
      for (int i = 0; i < options_.shards; ++i) {
        if (!state.shards[i].alive) continue;
        if (state.messages[c][i].Full()) {
          next.error = kChannelIsFull;
        } else {
          next.messages[c][i].Push({kInstall, before.view, 0, before.pause});
        }
      }
      const Coordinator decided = coordinator;
      Exit(coordinator);
      coordinator.alive = 1;
      coordinator.view = decided.view;
      coordinator.after_step = decided.after_step;
      coordinator.suspects = decided.suspects;
      coordinator.changes = decided.changes;
      coordinator.pause = decided.pause;
      steps.Add(next, "C%d sends the Install of view %d", c, before.view);
      break;
    }
  }
  if (state.coordinator_crashes && state.faults) {
    next = state;
    --next.coordinator_crashes, --next.faults;
    Exit(next.coordinators[c]);
    steps.AddFault(next, "C%d crashes", c);
  }
}

void Synchronous::AddViewChanges(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const View& view = state.views[before.view];
  State next = state;
  if (MemberIsDead(state, view)) {
    StartPause(next, c, kDeath, 0);
    steps.Add(next, "C%d sees a death, and sends Pause(Now)", c);
    return;
  }
  for (int w = 0; w < kWorkers && state.suspicions && state.faults; ++w) {
    if (!Contains(view.members, w) || view.members == 1 << w) continue;
    next = state;
    --next.suspicions, --next.faults;
    Include(next.coordinators[c].suspects, w);
    StartPause(next, c, kDeath, 0);
    steps.AddFault(next, "C%d suspects W%d wrongly, and sends Pause(Now)", c, w);
  }

  const auto [lowest, highest] = Versions(state, view);
  bool newcomer = false;
  for (int w = 0; w < kWorkers; ++w) {
    newcomer = newcomer || (state.workers[w].alive && !Contains(view.members, w));
  }
  if (newcomer && before.changes < options_.joins_per_coordinator) {
    for (int k = lowest; k < options_.steps - 1 && k <= highest; ++k) {
      next = state;
      ++next.coordinators[c].changes;
      StartPause(next, c, kJoin, k);
      steps.Add(next, "C%d adds a worker, and sends Pause(AfterStep %d)", c, k);
    }
  }
  if (options_.move && view.owner[0] == 0) AddMoveSteps(state, c, steps);
}

// The lowest and the highest version that an owner which is alive has of its partition.
std::pair<int, int> Synchronous::Versions(const State& state, const View& view) const {
  int lowest = kNone;
  int highest = 0;
  for (int p = 0; p < kPartitions; ++p) {
    const Shard& owner = state.shards[view.owner[p]];
    if (!owner.alive) continue;
    lowest = std::min<int>(lowest, owner.version[p]);
    highest = std::max<int>(highest, owner.version[p]);
  }
  return {lowest, highest};
}

void Synchronous::AddLastCommit(const State& state, int c, Steps<State>& steps) const {
  if (!options_.last_step_commits || !options_.coordinator_commits_last) return;
  const uint8_t view = state.coordinators[c].view;
  const std::pair<int, int> closed(options_.steps, options_.steps);
  if (Versions(state, state.views[view]) != closed) return;
  State next = state;
  bool installed = true;
  bool committed = true;
  for (Shard& shard : next.shards) {
    if (!shard.alive) continue;
    installed = installed && shard.view == view;
    committed = committed && shard.undo == 0;
    shard.undo = 0;
  }
  if (installed && !committed) steps.Add(next, "C%d commits the last version", c);
}

void Synchronous::AddMoveSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const auto [lowest, highest] = Versions(state, state.views[before.view]);
  const Shard& target = state.shards[2];
  if (lowest >= options_.steps - 1) return;
  State next = state;
  if (state.move == kNoMove && target.alive && before.changes < 2) {
    next.move = kMoveBegun;
    ++next.coordinators[c].changes;
    steps.AddFault(next, "C%d begins to move P0 from S0 to S2", c);
  }
  if (state.move != kMoveBegun || !Contains(target.has, 0)) return;
  if (target.version[0] + 1 < state.shards[0].version[0]) return;
  for (int k = lowest; k < options_.steps - 1 && k <= highest; ++k) {
    next = state;
    next.move = kMoveStops;
    StartPause(next, c, kMove, k);
    steps.Add(next, "C%d sends Pause(AfterStep %d): the target is near", c, k);
  }
}

void Synchronous::AddPauseSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  uint8_t alive = 0;
  for (int i = 0; i < options_.shards; ++i) {
    if (state.shards[i].alive) Include(alive, i);
  }
  State next = state;
  const bool all_replied = (before.replies & alive) == alive;
  const bool waits = before.reason == kJoin || before.reason == kMove;
  if (before.reason == kMove && next.move == kMoveStops) next.move = kMoveBegun;
  if (waits && !all_replied && options_.now_overrides && before.view != kNone &&
      MemberIsDead(state, state.views[before.view])) {
    StartPause(next, c, kDeath, 0);
    steps.Add(next, "C%d sees a death while it waits, and sends Pause(Now)", c);
  }
  if (all_replied && alive && Decide(next, c)) steps.Add(next, "C%d has all replies", c);
}

void Synchronous::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
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
  coordinator.view = kNone;
  coordinator.term = Byte(highest + 1);
  if (!options_.terms_are_unique && used == 2 && state.coordinators[1].alive) {
    coordinator.term = state.coordinators[1].term;
  }
  if (alive == 0) {
    steps.Add(next, "a new coordinator C%d starts", used);
  } else if (alive == 1 && state.second_coordinators && state.faults) {
    --next.second_coordinators, --next.faults;
    steps.AddFault(next, "a second coordinator C%d starts", used);
  }
}

}  // namespace sluice::protocol_models
