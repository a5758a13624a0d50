#include "tests/protocol/training/asynchronous_snapshots.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using Model = AsynchronousSnapshots;
using State = Model::State;
using Shard = Model::Shard;
using View = Model::View;
using Worker = Model::Worker;

constexpr uint8_t kBothShards = 3;

void Pin(Shard& shard, uint8_t snapshot) {
  shard.snapshot = snapshot;
  for (int w = 0; w < Model::kWorkers; ++w) shard.pinned[w] = shard.clock[w];
}

void Pause(State& state) {
  state.pausing = 1;
  state.replies = 0;
  for (auto& channel : state.messages) channel.Push({Model::kPause, 0});
}

}  // namespace

State AsynchronousSnapshots::Initial() const {
  State state{};
  state.view_count = 1;
  state.views[0].members = 3;
  for (Worker& worker : state.workers) worker.alive = 1;
  state.snapshots = options_.snapshots;
  state.view_changes = options_.view_changes;
  state.worker_crashes = options_.worker_crashes;
  return state;
}

bool AsynchronousSnapshots::Done(const State& state) const {
  for (int w = 0; w < kWorkers; ++w) {
    if (state.workers[w].alive && state.workers[w].clock != options_.updates) return false;
    if (state.shards[0].clock[w] != state.shards[1].clock[w]) return false;
  }
  return state.shards[0].snapshot == state.shards[1].snapshot && !state.shards[0].promised &&
         !state.shards[1].promised && !state.pausing;
}

std::string AsynchronousSnapshots::Violation(const State& state) const {
  if (state.update_is_missing) return "a shard never had an update that another shard has applied";
  const Shard &a = state.shards[0], &b = state.shards[1];
  for (int w = 0; w < kWorkers; ++w) {
    if (a.snapshot == b.snapshot && a.pinned[w] != b.pinned[w]) {
      return "a snapshot has an update on one shard, but not on the other";
    }
  }
  return "";
}

void AsynchronousSnapshots::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.update_is_missing) return;
  for (int w = 0; w < kWorkers; ++w) {
    if (state.workers[w].alive) AddWorkerSteps(state, w, steps);
  }
  for (int i = 0; i < kShards; ++i) {
    if (!state.messages[i].Empty()) AddArrival(state, i, steps);
  }
  AddCoordinatorSteps(state, steps);
}

void AsynchronousSnapshots::AddWorkerSteps(const State& state, int w, Steps<State>& steps) const {
  const Worker& before = state.workers[w];
  const uint8_t newest = std::max(state.shards[0].view, state.shards[1].view);
  State next = state;
  Worker& worker = next.workers[w];
  if (newest > before.view) {
    // An update that the view keeps is done; another one begins again with its clock.
    worker.view = newest;
    worker.clock = std::max(worker.clock, state.views[newest].clock[w]);
    worker.staged = worker.applying = worker.applied = 0;
    steps.Add(next, "W%d adopts view %d", w, newest);
  }
  for (int i = 0; i < kShards; ++i) AddUpdateSteps(state, w, i, steps);
  if (state.worker_crashes) {
    next = state;
    --next.worker_crashes;
    worker = Worker{};
    steps.AddFault(next, "W%d crashes", w);
  }
}

// The worker stages its next update on a shard, and applies it.
void AsynchronousSnapshots::AddUpdateSteps(const State& state, int w, int i,
                                           Steps<State>& steps) const {
  const Worker& before = state.workers[w];
  const Shard& shard = state.shards[i];
  const uint8_t clock = Byte(before.clock + 1);
  if (clock > options_.updates || before.view != shard.view) return;
  State next = state;
  Worker& worker = next.workers[w];
  const bool staged =
      options_.applies_after_all_acks ? before.staged == kBothShards : Contains(before.staged, i);
  if (staged && !Contains(before.applying, i)) {
    Include(worker.applying, i);
    steps.Add(next, "W%d sends Apply of update %d to S%d", w, clock, i);
  }
  if (shard.promised && options_.promise) return;  // messages wait

  next = state;
  if (!Contains(before.staged, i)) {
    Include(worker.staged, i);
    next.shards[i].staged[w] = clock;
    steps.Add(next, "S%d stages W%d's update %d", i, w, clock);
  } else if (Contains(before.applying, i) && !Contains(before.applied, i)) {
    Include(worker.applied, i);
    next.shards[i].clock[w] = clock;
    next.shards[i].staged[w] = 0;
    if (worker.applied == kBothShards) {
      worker.clock = clock;
      worker.staged = worker.applying = worker.applied = 0;
    }
    steps.Add(next, "S%d applies W%d's update %d", i, w, clock);
  }
}

void AsynchronousSnapshots::AddArrival(const State& state, int i, Steps<State>& steps) const {
  State next = state;
  Shard& shard = next.shards[i];
  const Message message = next.messages[i].Pop();
  switch (message.type) {
    case kPause:
      shard.promised = 1;
      Include(next.replies, i);
      for (int w = 0; w < kWorkers; ++w) next.reply_clock[i][w] = shard.clock[w];
      steps.Add(next, "S%d promises to change nothing", i);
      break;
    case kInstall:
      Install(next, i, message.value);
      steps.Add(next, "S%d installs view %d", i, message.value);
      break;
    case kOpenSnapshot:
      Pin(shard, message.value);
      steps.Add(next, "S%d receives OpenSnapshot, and pins", i);
      break;
  }
}

void AsynchronousSnapshots::Install(State& state, int i, int index) const {
  Shard& shard = state.shards[i];
  const View& view = state.views[index];
  shard.view = Byte(index);
  shard.promised = 0;
  for (int w = 0; w < kWorkers; ++w) {
    if (view.clock[w] > shard.clock[w]) {
      if (shard.staged[w] != view.clock[w]) state.update_is_missing = 1;
      shard.clock[w] = view.clock[w];
    }
    shard.staged[w] = 0;
  }
  if (view.snapshot) Pin(shard, view.snapshot);
}

void AsynchronousSnapshots::AddCoordinatorSteps(const State& state, Steps<State>& steps) const {
  State next = state;
  if (state.pausing) {
    if (state.replies != kBothShards) return;
    Decide(next);
    steps.Add(next, "the coordinator has both replies, and sends the Install of view %d",
              state.view_count);
    return;
  }
  for (const auto& channel : state.messages) {
    if (!channel.Empty()) return;
  }
  const View& view = state.views[state.view_count - 1];
  for (int w = 0; w < kWorkers; ++w) {
    if (!Contains(view.members, w) || state.workers[w].alive) continue;
    next = state;
    Pause(next);
    steps.Add(next, "the coordinator sees that W%d died, and pauses", w);
  }
  if (state.view_changes) {
    next = state;
    --next.view_changes;
    Pause(next);
    steps.AddFault(next, "the coordinator changes the view, and pauses");
  }
  if (!state.snapshots) return;
  next = state;
  --next.snapshots;
  ++next.last_snapshot;
  if (options_.install_pins) {
    next.opens = 1;
    Pause(next);
  } else {
    for (auto& channel : next.messages) channel.Push({kOpenSnapshot, next.last_snapshot});
  }
  steps.AddFault(next, "the coordinator opens snapshot %d", next.last_snapshot);
}

// The highest clock of each worker wins.
void AsynchronousSnapshots::Decide(State& state) const {
  View view{};
  for (int w = 0; w < kWorkers; ++w) {
    if (state.workers[w].alive) Include(view.members, w);
    view.clock[w] = std::max(state.reply_clock[0][w], state.reply_clock[1][w]);
    state.reply_clock[0][w] = state.reply_clock[1][w] = 0;
  }
  if (state.opens) view.snapshot = state.last_snapshot;
  state.pausing = state.replies = state.opens = 0;
  const uint8_t index = state.view_count++;
  state.views[index] = view;
  for (auto& channel : state.messages) channel.Push({kInstall, index});
}

}  // namespace sluice::protocol_models
