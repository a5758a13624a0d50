// The steps of the shards.
#include "tests/protocol/replication/copies.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using Model = Copies;
using State = Model::State;
using Shard = Model::Shard;
using View = Model::View;

const char* TextOf(Model::Error error) {
  switch (error) {
    case Model::kNoError:
      return "";
    case Model::kCommitTakenBack:
      return "a committed version is taken back";
    case Model::kContentsDiffer:
      return "two copies of one version differ";
    case Model::kCopyOutOfStep:
      return "a copy misses a step";
    case Model::kNotHeld:
      return "a shard does not have a partition that it is to have";
    case Model::kCannotRollBack:
      return "the version to return to is gone";
    case Model::kBehindView:
      return "a shard is behind the view's first step";
    case Model::kTooManyViews:
      return "the model has too few views";
    case Model::kGivenUp:
      return "an attempt is given up although each partition has a copy";
  }
  return "";
}

// The content of an earlier version.
uint16_t At(uint16_t content, int version) {
  return static_cast<uint16_t>(content & ((1 << (4 * version)) - 1));
}

uint16_t Step(int view, int version) { return static_cast<uint16_t>((view + 1) << (4 * version)); }

// The shard that the view has as follower or target of the partition.
bool Receives(const View& view, int p, int i) {
  return view.follower[p] == i || view.target[p] == i;
}

bool IsUnacked(const Shard& owner, int p, int j) {
  return Contains(owner.complete, p) && Contains(owner.gates[p] & ~owner.acked[p], j);
}

// The owner's entry of the other partition for shard j is ahead of this one's.
bool IsBehind(const Shard& owner, int p, int j) {
  return IsUnacked(owner, 1 - p, j) && Contains(owner.swapped, j) == (p == 0);
}

// The owner has all contributions to its step.
void AppendStep(Shard& owner, int p, int j) {
  Include(owner.sends_step[p], j);
  Exclude(owner.swapped, j);
  if (p == 0 && IsUnacked(owner, 1, j)) Include(owner.swapped, j);
}

}  // namespace

State Copies::Initial() const {
  State state{};
  state.view_count = state.highest_term = 1;
  View& view = state.views[0];
  view.term = view.number = 1;
  view.shards = options_.shards == 3 && options_.third_in_view ? 7 : 3;
  for (Shard& shard : state.shards) shard.view = kNone;
  for (int p = 0; p < kPartitions; ++p) {
    const int owner = options_.one_owner ? 0 : p;
    const int follower = options_.one_owner ? p + 1 : 1 - p;
    view.owner[p] = Byte(owner);
    view.follower[p] = options_.followers ? Byte(follower) : kNone;
    view.target[p] = options_.plan == Plan::kMove && p == 0 ? 2 : kNone;
    Include(state.shards[owner].holds, p);
    if (!options_.followers) continue;
    if (options_.whole_at_start) {
      Include(state.shards[follower].holds, p);
      Include(view.whole[p], follower);
      Include(state.shards[owner].gates[p], follower);
    } else {
      Include(state.shards[follower].receives, p);
    }
  }
  if (options_.plan == Plan::kMove) Include(state.shards[2].receives, 0);
  for (int i = 0; i < options_.shards; ++i) {
    state.shards[i].alive = 1;
    if (Contains(view.shards, i)) state.shards[i].view = 0, state.shards[i].term = 1;
  }
  for (Coordinator& coordinator : state.coordinators) coordinator.view = kNone;
  state.coordinators[0].alive = state.coordinators[0].term = 1;
  state.coordinators[0].number = 1;
  state.coordinators[0].view = 0;
  state.snapshot = options_.snapshot ? 2 : 0;
  state.faults = options_.faults;
  state.shard_crashes = options_.shard_crashes;
  state.suspicions = options_.suspicions;
  state.breaks = options_.breaks;
  state.changes = options_.changes;
  state.coordinator_crashes = options_.coordinator_crashes;
  state.second_coordinators = options_.second_coordinators;
  return state;
}

// A view was installed by all of its shards, and its owners have the last version.
bool Copies::Done(const State& state) const {
  if (state.restored) return true;
  if (state.snapshot) return false;
  for (int v = 0; v < state.view_count; ++v) {
    const View& view = state.views[v];
    bool done = true;
    for (int i = 0; i < options_.shards; ++i) {
      const Shard& shard = state.shards[i];
      if (!Contains(view.shards, i)) continue;
      done = done && shard.alive && shard.view == v && shard.pausing == kRunning;
      for (int p = 0; p < kPartitions; ++p) {
        done = done && (view.owner[p] != i || VersionOf(shard.content[p]) == options_.steps);
      }
    }
    if (done) return true;
  }
  return false;
}

std::string Copies::Violation(const State& state) const {
  if (state.error != kNoError) return TextOf(state.error);
  for (int p = 0; p < kPartitions; ++p) {
    for (int i = 0; i < options_.shards; ++i) {
      for (int j = i + 1; j < options_.shards; ++j) {
        const Shard &a = state.shards[i], &b = state.shards[j];
        if (a.view != b.view || !Contains(a.holds, p) || !Contains(b.holds, p)) continue;
        const int both = std::min(VersionOf(a.content[p]), VersionOf(b.content[p]));
        if (At(a.content[p], both) != At(b.content[p], both)) return TextOf(kContentsDiffer);
      }
    }
  }
  return "";
}

void Copies::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.error != kNoError || state.restored) return;
  for (int i = 0; i < options_.shards; ++i) {
    if (!state.shards[i].alive) continue;
    if (state.shards[i].view != kNone) AddTraining(state, i, steps);
    AddInstalls(state, i, steps);
    AddBreaks(state, i, steps);
    AddCrash(state, i, steps);
  }
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

// All partitions of a version consist of the same steps.
void Copies::Commit(State& state, uint16_t content) const {
  const int both = std::min(VersionOf(content), VersionOf(state.committed));
  if (At(content, both) != At(state.committed, both)) state.error = kCommitTakenBack;
  if (VersionOf(content) > both) state.committed = content;
}

void Copies::Reach(State& state, int v) const {
  View& view = state.views[v];
  int lowest = options_.steps;
  for (int p = 0; p < kPartitions; ++p) {
    const Shard& owner = state.shards[view.owner[p]];
    const bool present = owner.alive && owner.view == v;
    lowest = std::min(lowest, present ? VersionOf(owner.content[p]) : 0);
  }
  view.reach = std::max(view.reach, Byte(lowest));
}

void Copies::AddTraining(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  const View& view = state.views[before.view];
  for (int p = 0; p < kPartitions; ++p) {
    if (view.owner[p] != i) continue;
    AddCopying(state, i, p, steps);
    const int version = VersionOf(before.content[p]);
    if (before.pausing == kPromised || view.reach < version) continue;
    State next = state;
    Shard& shard = next.shards[i];
    if (Contains(before.undo, p)) {
      // Each member has pushed the step to this shard: the shard commits its version.
      for (int q = 0; q < kPartitions; ++q) {
        if (view.owner[q] != i || VersionOf(before.content[q]) != version) continue;
        Exclude(shard.undo, q);
        Commit(next, before.content[q]);
      }
      steps.Add(next, "S%d commits version %d", i, version);
    } else if (!Contains(before.complete, p) && version < options_.steps) {
      Include(shard.complete, p);
      Commit(next, before.content[p]);
      for (int j = 0; j < options_.shards; ++j) {
        if (Contains(shard.gates[p], j)) AppendStep(shard, p, j);
      }
      TryClose(next, i, p);
      steps.Add(next, "S%d has all contributions to step %d of P%d", i, version, p);
    }
    const bool committed = !Contains(before.undo, p) && version + 1 >= state.snapshot;
    if (Contains(before.pinned, p) && committed && !Contains(state.written, p)) {
      next = state;
      Include(next.written, p);
      if (next.written == 3) next.written = next.snapshot = 0;
      steps.Add(next, "S%d writes the file of P%d", i, p);
    }
  }
}

void Copies::TryClose(State& state, int i, int p) const {
  Shard& shard = state.shards[i];
  if (shard.pausing == kPromised || !Contains(shard.complete, p)) return;
  if (shard.gates[p] & ~shard.acked[p]) return;
  shard.content[p] |= Step(shard.view, VersionOf(shard.content[p]));
  Include(shard.undo, p);
  Exclude(shard.complete, p);
  shard.acked[p] = shard.sends_step[p] = shard.sends_ack[p] = 0;
  if (state.snapshot == VersionOf(shard.content[p]) + 1) Include(shard.pinned, p);
  Reach(state, shard.view);
  CheckAfterStep(state, i);
}

// The messages between the owner of a partition and its receivers.
void Copies::AddCopying(const State& state, int i, int p, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  const View& view = state.views[before.view];
  const int version = VersionOf(before.content[p]);
  uint8_t busy = 0;  // receivers of another partition's state
  for (int q = 0; q < kPartitions; ++q) {
    if (view.owner[q] == i) busy |= before.sends_state[q];
  }
  for (int j = 0; j < options_.shards; ++j) {
    if (!Receives(view, p, j)) continue;
    const Shard& receiver = state.shards[j];
    State next = state;
    Shard& shard = next.shards[i];
    const bool settled = !options_.base_is_committed || !Contains(before.undo, p);
    if (!Contains(before.gates[p], j) && !Contains(busy, j) && settled &&
        before.pausing != kPromised) {
      if (options_.gates_from_start) Gate(next, i, j, p);
      Include(shard.sends_state[p], j);
      shard.base[p][j] = Byte(version);
      steps.Add(next, "S%d begins to send P%d as of version %d to S%d", i, p, version, j);
    }
    const bool held_back = HoldsAcksBack(receiver);
    if (Contains(before.sends_ack[p], j) && before.pausing != kPromised && !held_back) {
      next = state;
      Exclude(shard.sends_ack[p], j);
      Include(shard.acked[p], j);
      Exclude(shard.swapped, j);
      TryClose(next, i, p);
      steps.Add(next, "S%d receives S%d's ack of step %d of P%d", i, j, version, p);
    }
    if (!receiver.alive || receiver.view != before.view) continue;
    const bool stays_partial = receiver.pausing == kPromised && options_.promised_stays_partial;
    if (Contains(before.sends_state[p], j) && !stays_partial) {
      next = state;
      ReceiveState(next, i, j, p);
      steps.Add(next, "S%d has received the state of P%d, version %d", j, p, before.base[p][j]);
    }
    if (Contains(before.sends_step[p], j) && MayReceiveStep(state, i, j, p)) {
      next = state;
      if (!ReceiveStep(next, i, j, p)) continue;
      steps.Add(next, "S%d receives step %d of P%d from S%d", j, version, p, i);
    }
  }
}

// From now on the owner closes a step only when the receiver holds it.
void Copies::Gate(State& state, int i, int j, int p) const {
  Shard& owner = state.shards[i];
  Include(owner.gates[p], j);
  if (Contains(owner.complete, p)) AppendStep(owner, p, j);
}

bool Copies::HoldsAcksBack(const Shard& receiver) const {
  if (!options_.queue_is_full || !receiver.alive) return false;
  if (receiver.pausing == kPromised && options_.promise_releases_acks) return false;
  return receiver.queue[0] != 0 || receiver.queue[1] != 0;
}

// The entry ahead of it has been carried out. Without the rule, it is also received if a promised
// shard has dropped the entry ahead.
bool Copies::MayReceiveStep(const State& state, int i, int j, int p) const {
  const Shard &owner = state.shards[i], &receiver = state.shards[j];
  if (!IsBehind(owner, p, j) || !Contains(owner.sends_step[1 - p], j)) return true;
  return !options_.acks_stop_at_dropped_entry && receiver.pausing == kPromised;
}

void Copies::ReceiveState(State& state, int i, int j, int p) const {
  Shard &owner = state.shards[i], &shard = state.shards[j];
  Exclude(owner.sends_state[p], j);
  if (!options_.gates_from_start) Gate(state, i, j, p);
  shard.content[p] = static_cast<uint16_t>(At(owner.content[p], owner.base[p][j]) | shard.queue[p]);
  if (VersionOf(shard.content[p]) > owner.base[p][j]) Include(shard.undo, p);
  shard.queue[p] = 0;
  Exclude(shard.receives, p);
  Include(shard.holds, p);
  if (shard.pausing == kPromised) state.unprotected = 1;  // no coordinator has to know
  CheckAfterStep(state, j);
}

// Returns false if the frame waits.
bool Copies::ReceiveStep(State& state, int i, int j, int p) const {
  Shard &owner = state.shards[i], &shard = state.shards[j];
  const int step = VersionOf(owner.content[p]);
  const bool promised = shard.pausing == kPromised && options_.promise;
  if (Contains(shard.holds, p)) {
    const int version = VersionOf(shard.content[p]);
    if (promised && (version == step || !options_.answers_repetitions)) return false;
    if (version < step) state.error = kCopyOutOfStep;
    if (version == step) {
      shard.content[p] |= Step(shard.view, step);
      Include(shard.undo, p);
      CheckAfterStep(state, j);
    }
  } else if (Contains(shard.receives, p) && !(promised && options_.promised_stays_partial)) {
    shard.queue[p] |= Step(shard.view, step);
  }
  Exclude(owner.sends_step[p], j);
  Include(owner.sends_ack[p], j);
  if (IsBehind(owner, p, j) && Contains(owner.sends_step[1 - p], j)) {
    Exclude(owner.sends_step[1 - p], j);
    Include(owner.sends_ack[1 - p], j);
  }
  return true;
}

// Frames in flight are lost. The owner sends again those that were not acked.
void Copies::AddBreaks(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  if (!state.breaks || !state.faults || before.view == kNone) return;
  for (int j = 0; j < options_.shards; ++j) {
    State next = state;
    --next.breaks, --next.faults;
    Shard& shard = next.shards[i];
    bool lost = false;
    for (int p = 0; p < kPartitions; ++p) {
      lost =
          lost || Contains(before.sends_step[p] | before.sends_ack[p] | before.sends_state[p], j);
      Exclude(shard.sends_step[p], j);
      Exclude(shard.sends_ack[p], j);
      if (!options_.resends) {
        Exclude(shard.sends_state[p], j);
      } else if (Contains(before.complete, p) && Contains(before.gates[p] & ~before.acked[p], j)) {
        Include(shard.sends_step[p], j);
      }
    }
    if (lost) steps.AddFault(next, "the stream from S%d to S%d breaks", i, j);
  }
}

// R5, R10.
void Copies::CheckAfterStep(State& state, int i) const {
  const Shard& shard = state.shards[i];
  if (shard.pausing != kWaiting) return;
  for (int p = 0; p < kPartitions; ++p) {
    const bool owns = state.views[shard.view].owner[p] == i;
    if (!Contains(shard.holds, p) || !(owns || options_.copies_count_for_after_step)) continue;
    if (VersionOf(shard.content[p]) <= shard.after_step) return;
  }
  SendReply(state, i);
}

void Copies::AddInstalls(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  if (before.pausing != kPromised) return;
  for (int v = 0; v < state.view_count; ++v) {
    const View& view = state.views[v];
    if (view.term != before.term || view.number != before.pause || before.view == v) continue;
    if (!Contains(view.shards | view.losers, i)) continue;
    bool waits = false;
    for (int j = 0; j < options_.shards && options_.losers_first; ++j) {
      waits = waits ||
              (Contains(view.losers, j) && !Contains(view.losers, i) && state.shards[j].view != v);
    }
    if (waits) continue;
    bool alive = false;
    for (const Coordinator& coordinator : state.coordinators) {
      alive = alive || (coordinator.alive && coordinator.term == view.term);
    }
    State next = state;
    Install(next, i, v);
    if (alive) {
      steps.Add(next, "S%d receives the Install of view %d", i, v);
    } else {
      steps.AddFault(next, "S%d receives the Install of view %d, of a dead coordinator", i, v);
    }
  }
}

void Copies::Install(State& state, int i, int v) const {
  const View& view = state.views[v];
  const Shard before = state.shards[i];
  Shard& shard = state.shards[i];
  shard = Shard{};
  shard.alive = 1;
  shard.term = before.term;
  shard.view = Byte(v);
  for (int p = 0; p < kPartitions; ++p) {
    const bool owns = view.owner[p] == i;
    if (!owns && !Contains(view.whole[p], i)) {
      if (!Receives(view, p, i)) continue;
      Include(shard.receives, p);
      if (options_.drops_others) continue;
      // It keeps what it has, as the beginning of the new copy.
      shard.queue[p] = Contains(before.holds, p) ? before.content[p] : before.queue[p];
      continue;
    }
    if (!Contains(before.holds, p)) {
      state.error = kNotHeld;
      return;
    }
    const int version = VersionOf(before.content[p]);
    if (version < view.first_step) state.error = kBehindView;
    if (version > view.first_step + Contains(before.undo, p)) state.error = kCannotRollBack;
    Include(shard.holds, p);
    shard.content[p] = At(before.content[p], view.first_step);
    Commit(state, shard.content[p]);
    if (!owns) continue;
    shard.gates[p] = view.whole[p];
    if (Contains(before.pinned, p) && state.snapshot <= view.first_step + 1) {
      Include(shard.pinned, p);
    }
  }
}

// After the first loss of a shard, the attempt must continue if each partition has another owner or
// whole copy in the view that was decided last.
void Copies::CountLoss(State& state, int i) const {
  if (++state.losses > 1) state.unprotected = 1;
  const int last = state.view_count - 1;
  const View& view = state.views[last];
  for (int p = 0; p < kPartitions; ++p) {
    bool other = false;
    for (int j = 0; j < options_.shards; ++j) {
      const Shard& shard = state.shards[j];
      const bool counts = shard.view == last || view.owner[p] == j || Contains(view.whole[p], j);
      other = other || (j != i && shard.alive && Contains(shard.holds, p) && counts);
    }
    if (!other) state.unprotected = 1;
  }
}

void Copies::AddCrash(const State& state, int i, Steps<State>& steps) const {
  if (!state.shard_crashes || !state.faults) return;
  State next = state;
  --next.shard_crashes, --next.faults;
  CountLoss(next, i);
  next.shards[i] = Shard{};
  next.shards[i].view = kNone;
  for (Shard& shard : next.shards) {
    for (int p = 0; p < kPartitions; ++p) {
      Exclude(shard.sends_state[p], i);
      Exclude(shard.sends_step[p], i);
    }
  }
  steps.AddFault(next, "S%d crashes", i);
}

}  // namespace sluice::protocol_models
