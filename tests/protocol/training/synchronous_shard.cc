// The steps of the shards.
#include "tests/protocol/training/synchronous.h"

namespace sluice::protocol_models {
namespace {

using State = Synchronous::State;
using Coordinator = Synchronous::Coordinator;
using Shard = Synchronous::Shard;
using View = Synchronous::View;

constexpr int kTarget = 2;  // of a move

}  // namespace

void Synchronous::Reply(State& state, int i) const {
  Shard& shard = state.shards[i];
  shard.pausing = kPromised;
  Coordinator& coordinator = state.coordinators[shard.promised_to];
  if (!coordinator.alive || coordinator.phase != kPauses) return;
  if (options_.pauses_are_numbered && coordinator.pause != shard.pause) return;
  Include(coordinator.replies, i);
  coordinator.reply_view[i] = shard.view;
  coordinator.reply_has[i] = shard.has;
  for (int p = 0; p < kPartitions; ++p) coordinator.reply_version[i][p] = shard.version[p];
}

// R5: a shard has stopped after a step only when all of its partitions have.
void Synchronous::CheckAfterStep(State& state, int i) const {
  const Shard& shard = state.shards[i];
  if (shard.pausing != kWaiting) return;
  const View& view = state.views[shard.view];
  for (int p = 0; p < kPartitions; ++p) {
    bool counts =
        view.owner[p] == i || (options_.after_step_waits_for_followers && view.follower[p] == i);
    if (counts && shard.version[p] <= shard.after_step) return;
  }
  // R10: so has the target of a move.
  if (options_.target_counts_with_step && state.move == kMoveStops && i == kTarget &&
      view.owner[0] != kTarget && state.shards[0].alive &&
      !(Contains(shard.has, 0) && shard.version[0] > shard.after_step)) {
    return;
  }
  Reply(state, i);
}

void Synchronous::Send(State& state, int from, int to, const ShardMessage& message) const {
  if (!state.shards[to].alive) return;
  if (state.between[from][to].Full()) {
    state.error = kChannelIsFull;
  } else {
    state.between[from][to].Push(message);
  }
}

void Synchronous::Close(State& state, int i, int p) const {
  Shard& shard = state.shards[i];
  if (shard.microbatches[p] != kAllMicrobatches) state.error = kIncompleteStep;
  if (p == 0 && shard.sends_to_target) {
    Send(state, i, kTarget, {kGradient, shard.view, 0, shard.version[p]});
  }
  ++shard.version[p];
  Include(shard.undo, p);
  shard.complete[p] = shard.microbatches[p] = 0;
  Exclude(shard.sent_to_follower, p);
  if (options_.sums) {
    bool all = true;
    for (int q = 0; q < kPartitions; ++q) {
      all = all && (state.views[shard.view].owner[q] != i || shard.version[q] >= shard.version[p]);
    }
    if (all) shard.sums = 0;
  }
  CheckAfterStep(state, i);
}

void Synchronous::TryClose(State& state, int i) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[shard.view];
  if (shard.pausing == kPromised) return;
  auto ready = [&](int p) {
    return view.owner[p] == i && view.members && shard.complete[p] == view.members &&
           shard.version[p] < options_.steps;
  };
  for (int p = 0; p < kPartitions && options_.sums; ++p) {
    if (!ready(p) || Contains(shard.sums, p)) continue;
    Include(shard.sums, p);
    for (int j = 0; j < options_.shards; ++j) {
      if (j == i || (view.owner[0] != j && view.owner[1] != j)) continue;
      Send(state, i, j, {kSum, shard.view, Byte(p), shard.version[p]});
    }
  }
  for (int p = 0; p < kPartitions; ++p) {
    if (!ready(p) || (options_.sums && shard.sums != 3)) continue;
    if (view.follower[p] == kNone) {
      Close(state, i, p);
      if (shard.pausing == kPromised) return;
    } else if (!Contains(shard.sent_to_follower, p)) {
      Include(shard.sent_to_follower, p);
      Send(state, i, view.follower[p], {kGradient, shard.view, Byte(p), shard.version[p]});
    }
  }
}

void Synchronous::Install(State& state, int i, int index) const {
  Shard& shard = state.shards[i];
  if (shard.view == index && options_.after_survey == AfterSurvey::kContinues) {
    shard.pausing = kRunning;
    shard.promised_to = kNone;
    TryClose(state, i);
    return;
  }
  const Shard before = shard;
  shard = Shard{};
  shard.alive = 1;
  shard.term = before.term;
  shard.view = Byte(index);
  shard.promised_to = kNone;
  shard.has = before.has;
  shard.undo = before.undo;
  shard.sends_to_target = before.sends_to_target;
  for (int p = 0; p < kPartitions; ++p) shard.version[p] = before.version[p];
  RollBack(state, i, index);
}

// Returns the shard's partitions to the view's first step, and drops those that it does not have in
// the view.
void Synchronous::RollBack(State& state, int i, int index) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[index];
  uint8_t keeps = 0;
  uint8_t undo = 0;
  for (int p = 0; p < kPartitions; ++p) {
    const bool holds = view.owner[p] == i || view.follower[p] == i;
    const bool has = Contains(shard.has, p);
    const bool is_target = options_.move && p == 0 && i == kTarget && !holds;
    if (holds && !has) state.error = kNotHeld;
    if (holds || (is_target && has && options_.target_rolls_back)) {
      if (shard.version[p] == view.first_step + 1 && Contains(shard.undo, p)) --shard.version[p];
    }
    if (holds) {
      Include(keeps, p);
      if (shard.version[p] > view.first_step) state.error = kCannotRollBack;
      if (shard.version[p] < view.first_step) state.error = kBehindView;
    } else if (is_target && has) {
      if (!options_.target_rolls_back || shard.version[p] == view.first_step) {
        Include(keeps, p);
        if (Contains(shard.undo, p)) Include(undo, p);
      } else {
        state.move = kNoMove;
        state.shards[0].sends_to_target = 0;
      }
    }
    if (!Contains(keeps, p)) shard.version[p] = 0;
  }
  shard.has = keeps;
  shard.undo = undo;
  if (options_.move && view.owner[0] == kTarget) shard.sends_to_target = 0;
}

void Synchronous::AddPushArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int w = 0; w < kWorkers; ++w) {
    if (state.pushes[w][i].Empty()) continue;
    const Push push = state.pushes[w][i].Front();
    const int order = Compare(state, push.view, state.shards[i].view);
    const bool promised = state.shards[i].pausing == kPromised;
    if (order > 0 || (order == 0 && promised && options_.promise)) continue;  // it waits

    State next = state;
    Shard& shard = next.shards[i];
    const View& view = next.views[shard.view];
    const int p = push.partition;
    next.pushes[w][i].Pop();
    if (order < 0) {
      steps.Add(next, "S%d refuses W%d's push of an older view", i, w);
      continue;
    }
    if (view.owner[p] == i && push.step > shard.version[p]) next.error = kPushAhead;
    if (view.owner[p] == i && push.step == shard.version[p]) {
      // The worker pushes this step, so it has the whole version: the version is committed.
      for (int q = 0; q < kPartitions; ++q) {
        if (view.owner[q] == i && shard.version[q] == push.step) Exclude(shard.undo, q);
      }
      if (!promised && !Contains(shard.complete[p], w)) {
        if (shard.microbatches[p] & push.microbatches) next.error = kAddedTwice;
        shard.microbatches[p] |= push.microbatches;
        Include(shard.complete[p], w);
        TryClose(next, i);
      }
    }
    steps.Add(next, "S%d receives W%d's push of step %d of P%d", i, w, push.step, p);
  }
}

void Synchronous::AddShardMessageArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int j = 0; j < options_.shards; ++j) {
    if (state.between[j][i].Empty()) continue;
    const ShardMessage message = state.between[j][i].Front();
    const int order = Compare(state, message.view, state.shards[i].view);
    const bool promised = state.shards[i].pausing == kPromised;
    if ((order > 0 && message.type != kBase) || (order == 0 && promised && options_.promise)) {
      continue;  // it waits
    }
    State next = state;
    Shard& shard = next.shards[i];
    const View& view = next.views[shard.view];
    next.between[j][i].Pop();
    if (message.type == kBase) {
      if (view.owner[0] == kTarget || (order < 0 && options_.target_rolls_back)) {
        next.move = kNoMove;
      } else {
        ReceiveBase(next, i, message);
      }
    } else if (order == 0) {
      const int p = message.partition;
      if (message.type == kGradient) {
        ReceiveGradient(next, j, i, message);
      } else if (message.type == kGradientAck) {
        if (view.owner[p] == i && message.step == shard.version[p] &&
            Contains(shard.sent_to_follower, p) && !promised) {
          Close(next, i, p);
        }
      } else {
        int lowest = kNone;
        for (int q = 0; q < kPartitions; ++q) {
          if (view.owner[q] == i && shard.version[q] < lowest) lowest = shard.version[q];
        }
        if (message.step > lowest) next.error = kPushAhead;
        if (message.step == lowest) {
          Include(shard.sums, p);
          TryClose(next, i);
        }
      }
    }
    static constexpr const char* kNames[] = {"", "gradient", "ack", "sum", "copy"};
    steps.Add(next, "S%d receives S%d's %s of step %d of P%d, of view %d", i, j,
              kNames[message.type], message.step, message.partition, message.view);
  }
}

void Synchronous::ReceiveBase(State& state, int i, const ShardMessage& message) const {
  Shard& shard = state.shards[i];
  Include(shard.has, 0);
  shard.version[0] = message.step;
  Exclude(shard.undo, 0);
  CheckAfterStep(state, i);
}

void Synchronous::ReceiveGradient(State& state, int from, int i,
                                  const ShardMessage& message) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[shard.view];
  const int p = message.partition;
  if (options_.move && i == kTarget && view.owner[0] != kTarget && p == 0) {
    if (!Contains(shard.has, 0)) return;
    if (options_.target_rolls_back && message.step < shard.version[0]) return;
    if (message.step != shard.version[0]) state.error = kMoveOutOfStep;
    ++shard.version[0];
    Include(shard.undo, 0);
    CheckAfterStep(state, i);
    return;
  }
  if (view.follower[p] != i) return;
  if (message.step == shard.version[p]) {
    ++shard.version[p];
    Include(shard.undo, p);
  } else {
    state.error = kFollowerOutOfStep;
  }
  Send(state, i, from, {kGradientAck, shard.view, message.partition, message.step});
  CheckAfterStep(state, i);
}

void Synchronous::AddMessageArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.messages[c][i].Empty()) continue;
    State next = state;
    Shard& shard = next.shards[i];
    Coordinator& coordinator = next.coordinators[c];
    const Message message = next.messages[c][i].Pop();
    if (coordinator.term < shard.term) {
      if (coordinator.alive) {
        const uint8_t term = coordinator.term;
        coordinator = Coordinator{};
        coordinator.view = kNone;
        coordinator.term = term;
      }
      steps.Add(next, "S%d refuses C%d's message, and C%d exits", i, c, c);
      continue;
    }
    shard.term = coordinator.term;
    if (message.type == kInstall) {
      const int order = Compare(state, message.view, shard.view);
      const bool again =
          message.view == shard.view && options_.after_survey != AfterSurvey::kNewView;
      if (options_.pauses_are_numbered && message.pause != shard.pause) {
        // It answers an older Pause.
      } else if (order > 0 || again) {
        Install(next, i, message.view);
      } else if (order == 0 && message.view != shard.view) {
        next.error = kTwoViews;
      }
      steps.Add(next, "S%d receives the Install of view %d", i, message.view);
      continue;
    }
    shard.pause = message.pause;
    shard.promised_to = Byte(c);
    if (message.type == kPauseNow || shard.pausing == kPromised) {
      Reply(next, i);
      steps.Add(next, "S%d receives C%d's Pause, and promises", i, c);
    } else {
      shard.pausing = kWaiting;
      shard.after_step = message.step;
      CheckAfterStep(next, i);
      steps.Add(next, "S%d receives C%d's Pause(AfterStep %d)", i, c, message.step);
    }
  }
}

// The source of a move sends its committed version; its closes send what follows.
void Synchronous::AddMoveBase(const State& state, Steps<State>& steps) const {
  const Shard& source = state.shards[0];
  if (!source.alive || state.move != kMoveBegun || source.sends_to_target) return;
  if (!state.shards[kTarget].alive || state.views[source.view].owner[0] != 0) return;
  if (source.pausing == kPromised || state.between[0][kTarget].Full()) return;
  if (Contains(source.undo, 0)) return;
  State next = state;
  next.shards[0].sends_to_target = 1;
  next.between[0][kTarget].Push({kBase, source.view, 0, source.version[0]});
  steps.Add(next, "S0 sends P0 as of version %d to S2", source.version[0]);
}

void Synchronous::AddShardCrash(const State& state, int i, Steps<State>& steps) const {
  if (!state.shard_crashes || !state.faults) return;
  State next = state;
  --next.shard_crashes, --next.faults;
  next.shards[i] = Shard{};
  for (auto& channels : next.pushes) channels[i].Clear();
  for (auto& channels : next.between) channels[i].Clear();
  for (auto& channels : next.messages) channels[i].Clear();
  steps.AddFault(next, "S%d crashes", i);
}

}  // namespace sluice::protocol_models
