// The steps of the shards.
#include "tests/protocol/training/asynchronous.h"

namespace sluice::protocol_models {
namespace {

using State = Asynchronous::State;
using Coordinator = Asynchronous::Coordinator;
using Copy = Asynchronous::Copy;
using Shard = Asynchronous::Shard;
using ShardMessage = Asynchronous::ShardMessage;
using View = Asynchronous::View;
using Worker = Asynchronous::Worker;

constexpr uint8_t kAllPartitions = 3;

// Below 0 if `a` is older than `b`, 0 if they are the same.
int Compare(const State& state, int a, int b) {
  const View &x = state.views[a], &y = state.views[b];
  return x.term != y.term ? x.term - y.term : x.number - y.number;
}

void Send(State& state, int from, int to, const ShardMessage& message) {
  if (!state.shards[to].alive) return;
  if (state.between[from][to].Full()) {
    state.error = Asynchronous::kChannelIsFull;
  } else {
    state.between[from][to].Push(message);
  }
}

void ApplyUpdate(State& state, Copy& copy, int w) {
  const int sample = copy.staged_sample[w] - 1;
  if (Contains(copy.applied, sample)) state.error = Asynchronous::kAppliedTwice;
  Include(copy.applied, sample);
  copy.clock[w] = copy.staged_clock[w];
  copy.staged_clock[w] = copy.staged_sample[w] = 0;
  Exclude(copy.waits_for_follower, w);
}

// The worker still waits for the answers to this update.
bool Expects(const State& state, int shard, int w, uint8_t clock) {
  const Worker& worker = state.workers[w];
  return worker.alive && worker.view == state.shards[shard].view && worker.update &&
         worker.clock + 1 == clock;
}

void AckStaged(State& state, int shard, int w, uint8_t clock, int p) {
  if (Expects(state, shard, w, clock)) Include(state.workers[w].acked, p);
}

// Answers Apply; the arbiter takes the permit back.
void AckApplied(State& state, int shard, int w, uint8_t clock, int p) {
  Worker& worker = state.workers[w];
  if (Expects(state, shard, w, clock)) {
    Include(worker.applied, p);
    if (worker.applied == kAllPartitions) {
      Exclude(worker.lease, worker.update - 1);
      ++worker.clock;
      worker.update = worker.permit = worker.pushed = 0;
      worker.acked = worker.apply_sent = worker.applied = 0;
    }
  }
  if (p == 0 && state.views[state.shards[shard].view].owner[0] == shard) {
    Exclude(state.shards[shard].permits, w);
  }
}

}  // namespace

void Asynchronous::AddPushArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int w = 0; w < kWorkers; ++w) {
    if (state.pushes[w][i].Empty()) continue;
    const Push push = state.pushes[w][i].Front();
    const int order = Compare(state, push.view, state.shards[i].view);
    if (order > 0 || (order == 0 && state.shards[i].promised && options_.promise)) continue;
    State next = state;
    next.pushes[w][i].Pop();
    if (order == 0) ReceivePush(next, w, i, push);
    steps.Add(next, "S%d receives W%d's %s of update %d of P%d, of view %d", i, w,
              push.type == kUpdate ? "push" : "Apply", push.clock, push.partition, push.view);
  }
}

void Asynchronous::ReceivePush(State& state, int w, int i, const Push& push) const {
  const uint8_t view = state.shards[i].view;
  const uint8_t p = push.partition;
  const uint8_t worker = Byte(w);
  Copy& copy = state.shards[i].copies[p];
  const uint8_t follower = copy.begun ? state.views[view].follower[p] : kNone;
  if (push.clock <= copy.clock[w]) {  // a repetition
    if (push.type == kApply) {
      AckApplied(state, i, w, push.clock, p);
    } else {
      AckStaged(state, i, w, push.clock, p);
      if (!Contains(copy.applied, push.sample - 1)) state.error = kSampleIsLost;
    }
  } else if (push.type == kUpdate) {
    copy.staged_clock[w] = push.clock;
    copy.staged_sample[w] = push.sample;
    if (follower != kNone && options_.acks_after_follower) {
      Send(state, i, follower, {kStage, view, worker, push.clock, p, push.sample});
    } else {
      AckStaged(state, i, w, push.clock, p);
    }
  } else if (copy.staged_clock[w] != push.clock) {
    state.error = kApplyWithoutUpdate;
  } else if (follower != kNone) {
    const uint8_t sample = copy.staged_sample[w];
    ApplyUpdate(state, copy, w);
    if (options_.answers_after_follower) {
      Include(copy.waits_for_follower, w);
    } else {
      AckApplied(state, i, w, push.clock, p);
    }
    Send(state, i, follower, {kApplyCopy, view, worker, push.clock, p, sample});
  } else {
    ApplyUpdate(state, copy, w);
    AckApplied(state, i, w, push.clock, p);
  }
}

// An owner sends a partition to a shard that is to have its copy.
void Asynchronous::AddCopies(const State& state, int i, Steps<State>& steps) const {
  const Shard& shard = state.shards[i];
  const View& view = state.views[shard.view];
  for (int p = 0; p < kPartitions; ++p) {
    const uint8_t follower = view.follower[p];
    if (view.owner[p] != i || follower == kNone || shard.copies[p].begun) continue;
    if ((shard.promised && options_.promise) || !state.shards[follower].alive) continue;
    State next = state;
    Copy& copy = next.shards[i].copies[p];
    copy.begun = 1;
    for (int w = 0; w < kWorkers && options_.sends_staged_before_state; ++w) {
      if (!copy.staged_clock[w]) continue;
      Send(next, i, follower,
           {kStage, shard.view, Byte(w), copy.staged_clock[w], Byte(p), copy.staged_sample[w]});
    }
    ShardMessage message{kCopyState, shard.view, 0, 0, Byte(p), 0, copy.applied, {}};
    for (int w = 0; w < kWorkers; ++w) message.clocks[w] = copy.clock[w];
    Send(next, i, follower, message);
    steps.Add(next, "S%d sends S%d a copy of P%d", i, follower, p);
  }
}

void Asynchronous::AddShardMessageArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int j = 0; j < kShards; ++j) {
    if (state.between[j][i].Empty()) continue;
    const ShardMessage message = state.between[j][i].Front();
    const int order = Compare(state, message.view, state.shards[i].view);
    if (order > 0 || (order == 0 && state.shards[i].promised && options_.promise)) continue;
    State next = state;
    next.between[j][i].Pop();
    if (order == 0) ReceiveShardMessage(next, j, i, message);
    static constexpr const char* kNames[] = {"", "Stage", "Staged", "Apply", "Applied", "state"};
    steps.Add(next, "S%d receives S%d's %s for update %d of W%d, P%d", i, j, kNames[message.type],
              message.clock, message.worker, message.partition);
  }
}

void Asynchronous::ReceiveShardMessage(State& state, int from, int i,
                                       const ShardMessage& message) const {
  const int w = message.worker;
  Copy& copy = state.shards[i].copies[message.partition];
  ShardMessage answer = message;
  answer.view = state.shards[i].view;
  switch (message.type) {
    case kStage:
      copy.staged_clock[w] = message.clock;
      copy.staged_sample[w] = message.sample;
      answer.type = kStaged;
      Send(state, i, from, answer);
      break;
    case kStaged:
      if (copy.staged_clock[w] == message.clock) {
        AckStaged(state, i, w, message.clock, message.partition);
      }
      break;
    case kApplyCopy:
      if (!options_.acks_after_follower) {
        copy.staged_clock[w] = message.clock;
        copy.staged_sample[w] = message.sample;
      }
      if (copy.staged_clock[w] == message.clock) {
        ApplyUpdate(state, copy, w);
      } else {
        state.error = kFollowerOutOfStep;
      }
      answer.type = kApplied;
      Send(state, i, from, answer);
      break;
    case kCopyState:
      copy.has = 1;
      copy.applied = message.applied;
      for (int v = 0; v < kWorkers; ++v) copy.clock[v] = message.clocks[v];
      break;
    case kApplied:
      if (copy.clock[w] == message.clock && Contains(copy.waits_for_follower, w)) {
        Exclude(copy.waits_for_follower, w);
        AckApplied(state, i, w, message.clock, message.partition);
      }
      break;
  }
}

void Asynchronous::AddMessageArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.messages[c][i].Empty()) continue;
    State next = state;
    Shard& shard = next.shards[i];
    Coordinator& coordinator = next.coordinators[c];
    const Message message = next.messages[c][i].Pop();
    const bool refuses = message.type != kRecordLease || options_.arbiter_refuses_old_terms;
    if (coordinator.term < shard.term && refuses) {
      if (coordinator.alive) {
        const uint8_t term = coordinator.term;
        coordinator = Coordinator{};
        coordinator.term = term;
        coordinator.view = kNone;
      }
      steps.Add(next, "S%d refuses C%d's message, and C%d exits", i, c, c);
      continue;
    }
    if (coordinator.term > shard.term) shard.term = coordinator.term;
    switch (message.type) {
      case kPause:
        shard.promised_to = Byte(c);
        shard.promised = 1;
        if (coordinator.alive && coordinator.phase == kPauses) Include(coordinator.replies, i);
        steps.Add(next, "S%d promises C%d to change nothing", i, c);
        break;
      case kInstall:
        if (Compare(state, message.view, shard.view) > 0) Install(next, i, message.view);
        steps.Add(next, "S%d receives the Install of view %d", i, message.view);
        break;
      case kRecordLease:
        RecordLease(next, c, i, message);
        steps.Add(next, "S%d receives the record of samples %#x for W%d", i, message.samples,
                  message.worker);
        break;
    }
  }
}

void Asynchronous::RecordLease(State& state, int c, int i, const Message& message) const {
  Shard& shard = state.shards[i];
  Coordinator& coordinator = state.coordinators[c];
  const uint8_t index = state.views[shard.view].follower[0];
  Shard* follower =
      index == kNone || !options_.follower_has_leases ? nullptr : &state.shards[index];
  if (follower != nullptr &&
      (!follower->alive || follower->view != shard.view || follower->promised)) {
    if (coordinator.alive) coordinator.recording = coordinator.recording_samples = 0;
    return;
  }
  if (shard.view != message.view) return;
  for (uint8_t leased : shard.leases) {
    if (leased & message.samples) state.error = kLeasedTwice;
  }
  if (shard.copies[0].applied & message.samples) state.error = kLeasedTwice;
  shard.leases[message.worker] |= message.samples;
  if (follower != nullptr) follower->leases[message.worker] |= message.samples;
  if (coordinator.alive) coordinator.recorded = 1;
}

void Asynchronous::Install(State& state, int i, int index) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[index];
  const int old = shard.view;
  shard.view = Byte(index);
  shard.promised = 0;
  shard.promised_to = kNone;
  if (options_.permits_end_with_view) shard.permits = 0;
  for (int w = 0; w < kWorkers; ++w) shard.leases[w] = view.leases[w];
  for (int p = 0; p < kPartitions; ++p) InstallCopy(state, i, p, old);
}

// Applies the staged updates that the view keeps, and drops the others.
void Asynchronous::InstallCopy(State& state, int i, int p, int old) const {
  const View& view = state.views[state.shards[i].view];
  Copy& copy = state.shards[i].copies[p];
  if (view.owner[p] != i && view.follower[p] != i) {
    copy = Copy{};
    return;
  }
  // Owner and follower have swapped, or both are those of the previous view.
  const bool stays = state.views[old].owner[p] == i;
  copy.begun = view.owner[p] == i && view.follower[p] != kNone && (copy.begun || !stays);
  for (int w = 0; w < kWorkers; ++w) {
    if (view.clock[w] > copy.clock[w]) {
      if (copy.staged_clock[w] == view.clock[w]) {
        ApplyUpdate(state, copy, w);
      } else {
        state.error = kUpdateIsMissing;
        return;
      }
    }
    copy.staged_clock[w] = copy.staged_sample[w] = 0;
    Exclude(copy.waits_for_follower, w);
    const bool returned = view.incarnation[w] != state.views[old].incarnation[w];
    if (options_.clocks_belong_to_incarnations && returned) copy.clock[w] = 0;
  }
}

void Asynchronous::AddShardCrash(const State& state, int i, Steps<State>& steps) const {
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
