#include "tests/protocol/membership/split_cluster.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using State = SplitCluster::State;
using Coordinator = SplitCluster::Coordinator;
using Shard = SplitCluster::Shard;
using View = SplitCluster::View;

constexpr uint8_t kBothShards = 3;

bool Reaches(const State& state, const Coordinator& coordinator, int shard) {
  return state.network != SplitCluster::kSplit || coordinator.side == shard;
}

void Exit(Coordinator& coordinator) {
  Coordinator fresh{};
  fresh.term = coordinator.term;
  fresh.side = coordinator.side;
  fresh.view = kNone;
  coordinator = fresh;
}

// Views are compared by (term, pause).
bool IsNewer(const State& state, int a, int b) {
  if (a == b || a == kNone) return false;
  if (b == kNone) return true;
  const View &x = state.views[a], &y = state.views[b];
  return x.term != y.term ? x.term > y.term : x.pause > y.pause;
}

bool IsInView(const State& state, int shard) {
  return Contains(state.views[state.shards[shard].view].shards, shard);
}

}  // namespace

State SplitCluster::Initial() const {
  State state{};
  state.view_count = 1;
  state.views[0].number = state.views[0].term = 1;
  state.views[0].shards = kBothShards;
  for (Shard& shard : state.shards) {
    shard.alive = shard.term = 1;
    shard.promised_to = kNone;
  }
  for (Coordinator& coordinator : state.coordinators) coordinator.view = kNone;
  state.coordinators[0].alive = state.coordinators[0].term = 1;
  state.coordinators[0].view = 0;
  for (auto& installs : state.installs) installs[0] = installs[1] = kNone;
  state.faults = options_.faults;
  state.splits = options_.splits;
  state.shard_crashes = options_.shard_crashes;
  state.coordinator_crashes = options_.coordinator_crashes;
  state.second_coordinators = options_.second_coordinators;
  return state;
}

bool SplitCluster::Done(const State& state) const {
  if (state.restored) return true;
  for (const Shard& shard : state.shards) {
    if (shard.alive && !shard.promised && shard.version >= options_.steps) return true;
  }
  return false;
}

std::string SplitCluster::Violation(const State& state) const {
  if (state.two_histories) return "both sides continue within one attempt";
  if (state.rolled_back) return "a committed version is taken back";
  return "";
}

void SplitCluster::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.two_histories || state.rolled_back || state.restored) return;
  AddTraining(state, steps);
  AddFaults(state, steps);
  for (int i = 0; i < kShards; ++i) {
    for (int c = 0; c < kCoordinators && state.shards[i].alive; ++c) {
      if (state.installs[c][i] != kNone && Reaches(state, state.coordinators[c], i)) {
        AddInstall(state, c, i, steps);
      }
    }
  }
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

void SplitCluster::AddTraining(const State& state, Steps<State>& steps) const {
  for (int i = 0; i < kShards; ++i) {
    const Shard& shard = state.shards[i];
    const View& view = state.views[shard.view];
    if (!shard.alive || shard.promised || shard.version >= options_.steps) continue;
    if (!Contains(view.shards, i)) continue;
    State next = state;
    if (view.shards != kBothShards) {
      ++next.shards[i].version;
      next.shards[i].alone = 1;
      if (next.shards[1 - i].alone) next.two_histories = 1;
      steps.Add(next, "a step closes on %c alone", 'A' + i);
      continue;
    }
    const Shard& follower = state.shards[1];
    if (i == 0 && follower.alive && !follower.promised && follower.view == shard.view &&
        state.network != kSplit && follower.version == shard.version) {
      ++next.shards[0].version;
      ++next.shards[1].version;
      steps.Add(next, "a step closes on A and B");
    }
  }
}

void SplitCluster::AddFaults(const State& state, Steps<State>& steps) const {
  State next = state;
  if (state.network == kSplit) {
    next.network = kHealed;
    steps.Add(next, "the network heals");
  }
  if (!state.faults) return;
  if (state.splits && state.network == kWhole) {
    next = state;
    next.network = kSplit;
    --next.splits, --next.faults;
    steps.AddFault(next, "the network splits");
  }
  for (int i = 0; i < kShards; ++i) {
    if (!state.shards[i].alive || !state.shard_crashes) continue;
    next = state;
    --next.shard_crashes, --next.faults;
    next.shards[i] = Shard{};
    next.shards[i].alone = state.shards[i].alone;
    next.shards[i].promised_to = kNone;
    for (auto& installs : next.installs) installs[i] = kNone;
    steps.AddFault(next, "%c crashes", 'A' + i);
  }
}

void SplitCluster::AddInstall(const State& state, int c, int i, Steps<State>& steps) const {
  State next = state;
  const uint8_t index = state.installs[c][i];
  const View& view = state.views[index];
  next.installs[c][i] = kNone;
  Shard& shard = next.shards[i];
  bool other_pause = view.term != shard.term || view.pause != shard.pause;
  if (view.term < shard.term || (options_.installs_name_pause && other_pause)) {
    steps.Add(next, "%c refuses C%d's Install", 'A' + i, c);
    return;
  }
  shard.term = view.term;
  if (IsNewer(state, index, shard.view)) {
    shard.view = index;
    shard.promised = 0;
    shard.promised_to = kNone;
    if (Contains(view.shards, i)) {
      if (shard.alone && shard.version > view.first_step + 1) next.rolled_back = 1;
      shard.version = view.first_step;
    } else {
      shard.promised = 1;
    }
  }
  steps.Add(next, "%c receives the Install of view %d", 'A' + i, index);
}

void SplitCluster::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& coordinator = state.coordinators[c];
  State next = state;
  for (int i = 0; i < kShards && options_.refused_exits; ++i) {
    if (!state.shards[i].alive || !Reaches(state, coordinator, i)) continue;
    if (state.shards[i].term <= coordinator.term) continue;
    Exit(next.coordinators[c]);
    steps.Add(next, "%c refuses C%d, which exits", 'A' + i, c);
    break;
  }

  if (coordinator.pausing) {
    bool newer_record = false;
    for (int i = 0; i < kShards && options_.claim; ++i) {
      newer_record =
          newer_record || (Contains(coordinator.replies, i) && state.shards[i].alive &&
                           state.views[state.shards[i].view].record > coordinator.record);
    }
    AddPauseSteps(state, c, steps);
    if (newer_record) {
      next = state;
      next.coordinators[c].record = state.record_count;
      steps.Add(next, "C%d learns of a loss record from a reply, and reads it", c);
      return;
    }
    AddDecision(state, c, steps);
    AddNextPause(state, c, steps);
    AddRestore(state, c, steps);
  } else {
    bool incomplete = coordinator.view == kNone;
    for (int i = 0; i < kShards && !incomplete; ++i) {
      incomplete = Contains(state.views[coordinator.view].shards, i) &&
                   (!state.shards[i].alive || !Reaches(state, coordinator, i));
    }
    if (incomplete) {
      next = state;
      next.coordinators[c].pausing = 1;
      next.coordinators[c].replies = 0;
      ++next.coordinators[c].pause;
      steps.Add(next, "C%d begins a view change", c);
    }
  }
  if (state.coordinator_crashes && state.faults) {
    next = state;
    --next.coordinator_crashes, --next.faults;
    Exit(next.coordinators[c]);
    steps.AddFault(next, "C%d crashes", c);
  }
}

void SplitCluster::AddPauseSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  for (int i = 0; i < kShards; ++i) {
    if (!state.shards[i].alive || !Reaches(state, before, i) || Contains(before.replies, i)) {
      continue;
    }
    next = state;
    Shard& shard = next.shards[i];
    if (shard.term > before.term) {
      Exit(coordinator);
      steps.Add(next, "%c refuses C%d's Pause, and C%d exits", 'A' + i, c, c);
      continue;
    }
    shard.term = before.term;
    shard.promised = 1;
    shard.promised_to = Byte(c);
    shard.pause = before.pause;
    Include(coordinator.replies, i);
    steps.Add(next, "%c promises C%d to change nothing", 'A' + i, c);
  }
}

// A shard that replied has crashed, or has promised to another coordinator.
void SplitCluster::AddNextPause(const State& state, int c, Steps<State>& steps) const {
  bool withdrawn = false;
  for (int i = 0; i < kShards; ++i) {
    withdrawn = withdrawn ||
                (Contains(state.coordinators[c].replies, i) && state.shards[i].promised_to != c);
  }
  if (!withdrawn) return;
  State next = state;
  next.coordinators[c].replies = 0;
  ++next.coordinators[c].pause;
  steps.Add(next, "C%d pauses again", c);
}

void SplitCluster::AddDecision(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const uint8_t continuing =
      options_.claim && before.record ? state.records[before.record - 1] : kBothShards;
  auto replied = [&](int i) { return Contains(before.replies, i) && state.shards[i].alive; };
  int newest = kNone;
  for (int i = 0; i < kShards; ++i) {
    if (replied(i) && Contains(continuing, i) && IsNewer(state, state.shards[i].view, newest)) {
      newest = state.shards[i].view;
    }
  }
  if (newest == kNone || state.view_count >= kViews) return;

  View view = state.views[newest];
  uint8_t present = 0;
  for (int i = 0; i < kShards; ++i) {
    if (!Contains(view.shards & continuing, i)) continue;
    if (replied(i)) {
      Include(present, i);
    } else if (state.shards[i].alive && Reaches(state, before, i)) {
      return;  // its reply will come
    }
  }
  if (!present) return;

  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  if (present != (view.shards & continuing) && options_.claim) {
    if (state.record_count != before.record || state.record_count >= kRecords) {
      Exit(coordinator);
      steps.Add(next, "C%d finds loss record %d, which it did not know, and exits", c,
                before.record + 1);
      return;
    }
    next.records[next.record_count++] = present;
    coordinator.record = next.record_count;
  }
  int first_step = kNone;
  for (int i = 0; i < kShards; ++i) {
    if (!Contains(present, i)) continue;
    bool has_newest = state.shards[i].view == newest;
    first_step = std::min<int>(first_step, has_newest ? state.shards[i].version : view.first_step);
  }
  ++view.number;
  view.term = before.term;
  view.shards = present;
  view.record = coordinator.record;
  view.pause = before.pause;
  view.first_step = Byte(first_step);
  coordinator.view = next.view_count++;
  coordinator.pausing = 0;
  coordinator.replies = 0;
  next.views[coordinator.view] = view;
  for (int i = 0; i < kShards; ++i) {
    if (Contains(present, i)) next.installs[c][i] = coordinator.view;
  }
  steps.Add(next, "C%d decides view %d with shards %d", c, coordinator.view, present);
}

// The model ends where a new attempt begins: no shard that may continue is alive.
void SplitCluster::AddRestore(const State& state, int c, Steps<State>& steps) const {
  if (state.network == kSplit) return;
  uint8_t continuing =
      options_.claim && state.record_count ? state.records[state.record_count - 1] : kBothShards;
  for (int i = 0; i < kShards; ++i) {
    if (state.shards[i].alive && Contains(continuing, i) && IsInView(state, i)) return;
  }
  State next = state;
  next.restored = 1;
  steps.Add(next, "C%d claims the next attempt", c);
}

void SplitCluster::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
  int alive = 0;
  int used = 0;
  for (int c = 0; c < kCoordinators; ++c) {
    alive += state.coordinators[c].alive;
    if (state.coordinators[c].term) used = c + 1;
  }
  if (used == kCoordinators || alive > 1 || (alive == 1 && !state.second_coordinators)) return;
  for (uint8_t side = 0; side < kShards; ++side) {
    State next = state;
    Coordinator& coordinator = next.coordinators[used];
    coordinator.alive = 1;
    coordinator.term = Byte(used + 1);
    coordinator.view = kNone;
    coordinator.record = state.record_count;
    coordinator.side = side;
    if (alive == 0) {
      steps.Add(next, "a new coordinator C%d starts on side %c", used, 'A' + side);
    } else {
      --next.second_coordinators;
      steps.AddFault(next, "a second coordinator C%d starts on side %c", used, 'A' + side);
    }
  }
}

}  // namespace sluice::protocol_models
