#include "tests/protocol/membership/initialization.h"

namespace sluice::protocol_models {
namespace {

using State = Initialization::State;
using Coordinator = Initialization::Coordinator;
using Shard = Initialization::Shard;

bool Holds(const Shard& shard) { return shard.blocks[0] != 0 && shard.blocks[1] != 0; }

void Exit(Coordinator& coordinator) {
  uint8_t term = coordinator.term;
  coordinator = Coordinator{};
  coordinator.term = term;
}

// The coordinator has no open init request.
void Abandon(Coordinator& coordinator) {
  coordinator.phase = Initialization::kIdle;
  coordinator.ready[0] = coordinator.ready[1] = 0;
}

// Sends a message to all shards that are alive; returns false if a channel is full.
bool SendToShards(State& state, int coordinator, const Initialization::Message& message) {
  bool sent = true;
  for (int i = 0; i < Initialization::kShards; ++i) {
    if (!state.shards[i].alive) continue;
    auto& channel = state.messages[coordinator][i];
    if (channel.Full()) {
      sent = false;
    } else {
      channel.Push(message);
    }
  }
  return sent;
}

// A shard has started since the coordinator sent its message to all shards.
bool ShardLacksMessage(const State& state, int coordinator) {
  for (int i = 0; i < Initialization::kShards; ++i) {
    if (state.shards[i].alive && !Contains(state.coordinators[coordinator].replies, i) &&
        state.messages[coordinator][i].Empty()) {
      return true;
    }
  }
  return false;
}

}  // namespace

State Initialization::Initial() const {
  State state{};
  state.faults = options_.faults;
  state.worker_crashes = options_.worker_crashes;
  state.shard_crashes = options_.shard_crashes;
  state.coordinator_crashes = options_.coordinator_crashes;
  state.second_coordinators = options_.second_coordinators;
  state.suspicions = options_.suspicions;
  state.next_request = 1;
  state.last_incarnation = kWorkers;
  for (int w = 0; w < kWorkers; ++w) {
    state.workers[w].alive = w < 2;
    state.workers[w].incarnation = Byte(w + 1);
  }
  for (Shard& shard : state.shards) shard.alive = 1;
  state.coordinators[0].alive = state.coordinators[0].term = 1;
  return state;
}

bool Initialization::Done(const State& state) const {
  for (const Shard& shard : state.shards) {
    if (!shard.alive || !shard.installed) return false;
  }
  return true;
}

std::string Initialization::Violation(const State& state) const {
  if (state.channel_is_full) return "a channel of the model is full";
  uint8_t content = 0;
  for (const Shard& shard : state.shards) {
    if (!shard.alive || !shard.installed) continue;
    for (uint8_t block : shard.blocks) {
      if (block == 0) return "the first view is installed on a shard without all of version 0";
      if (content != 0 && block != content) return "the first view mixes two workers' version 0";
      content = block;
    }
  }
  return "";
}

void Initialization::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.channel_is_full) return;
  for (int w = 0; w < kWorkers; ++w) AddWorkerSteps(state, w, steps);
  for (int i = 0; i < kShards; ++i) {
    if (!state.shards[i].alive) {
      State next = state;
      next.shards[i].alive = 1;
      steps.Add(next, "a new shard S%d starts", i);
      continue;
    }
    AddPushArrivals(state, i, steps);
    AddMessageArrivals(state, i, steps);
    AddShardCrash(state, i, steps);
  }
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.coordinators[c].alive) AddCoordinatorSteps(state, c, steps);
  }
  AddCoordinatorStart(state, steps);
}

void Initialization::AddWorkerSteps(const State& state, int w, Steps<State>& steps) const {
  const Worker& worker = state.workers[w];
  State next = state;
  if (!worker.alive) {
    if (w != 2 && state.last_incarnation >= 6) return;
    bool none = true;
    for (const Worker& other : state.workers) none = none && !other.alive;
    if (!none && !(state.last_incarnation < 5 && w < 2 && worker.incarnation == 0)) return;

    next.workers[w].alive = 1;
    next.workers[w].incarnation = ++next.last_incarnation;
    if (none) {
      steps.Add(next, "W%d starts", w);
    } else {
      steps.AddFault(next, "W%d starts", w);
    }
    return;
  }

  if (!state.initialize[w].Empty()) {
    uint8_t request = next.initialize[w].Pop();
    if (request > worker.request || worker.request == 0) {
      next.workers[w].request = request;
      next.workers[w].sent[0] = next.workers[w].sent[1] = 0;
    }
    steps.Add(next, "W%d receives Initialize of request %d", w, request);
  }
  for (int i = 0; i < kShards && worker.request != 0; ++i) {
    if (worker.sent[i] >= kBlocks || !state.shards[i].alive || state.pushes[w][i].Full()) continue;
    next = state;
    next.pushes[w][i].Push({worker.request, worker.incarnation, worker.sent[i]});
    ++next.workers[w].sent[i];
    steps.Add(next, "W%d pushes block %d of version 0 to S%d for request %d", w, worker.sent[i], i,
              worker.request);
  }
  if (state.worker_crashes && state.faults) {
    next = state;
    --next.worker_crashes, --next.faults;
    next.workers[w] = Worker{};
    next.initialize[w].Clear();
    steps.AddFault(next, "W%d crashes", w);
  }
}

void Initialization::AddPushArrivals(const State& state, int i, Steps<State>& steps) const {
  const Shard& before = state.shards[i];
  const bool named = options_.pushes_name_request;
  for (int w = 0; w < kWorkers; ++w) {
    if (state.pushes[w][i].Empty()) continue;
    // A push for a newer request waits for that request's PrepareState.
    if (named && !before.installed && state.pushes[w][i].Front().request > before.request) continue;

    State next = state;
    Shard& shard = next.shards[i];
    const Push push = next.pushes[w][i].Pop();
    if (shard.installed) {
      steps.Add(next, "S%d refuses a push of version 0: the first view is installed", i);
      continue;
    }
    if (named && push.request < shard.request) {
      steps.Add(next, "S%d refuses W%d's push for request %d", i, w, push.request);
      continue;
    }
    if (named || shard.blocks[push.block] == 0) shard.blocks[push.block] = push.incarnation;
    if (Holds(shard)) {
      for (Coordinator& coordinator : next.coordinators) {
        if (coordinator.alive && coordinator.phase == kWaitsForState &&
            (coordinator.request == shard.request || !named)) {
          coordinator.ready[i] = 1;
        }
      }
    }
    steps.Add(next, "S%d receives W%d's block %d of version 0", i, w, push.block);
  }
}

void Initialization::AddMessageArrivals(const State& state, int i, Steps<State>& steps) const {
  for (int c = 0; c < kCoordinators; ++c) {
    if (state.messages[c][i].Empty()) continue;
    State next = state;
    Shard& shard = next.shards[i];
    Coordinator& coordinator = next.coordinators[c];
    const Message message = next.messages[c][i].Pop();
    if (coordinator.term < shard.term) {
      if (coordinator.alive) Exit(coordinator);
      steps.Add(next, "S%d refuses C%d's message, and C%d exits", i, c, c);
      continue;
    }
    shard.term = coordinator.term;
    switch (message.type) {
      case kPrepareState:
        if (!shard.installed) {
          if (message.request > shard.request) shard.request = message.request;
          shard.blocks[0] = shard.blocks[1] = 0;
          if (coordinator.alive && coordinator.request == message.request) {
            Include(coordinator.replies, i);
          }
        } else if (coordinator.alive) {
          coordinator.knows_first_view = 1;
        }
        steps.Add(next, "S%d receives PrepareState of request %d", i, message.request);
        break;
      case kSurvey:
        if (coordinator.alive && coordinator.phase == kSurveys) {
          Include(coordinator.replies, i);
          if (shard.installed) coordinator.knows_first_view = 1;
        }
        steps.Add(next, "S%d answers C%d's survey", i, c);
        break;
      case kInstall:
        if (options_.pushes_name_request && message.request != shard.request) {
          steps.Add(next, "S%d refuses the first view of request %d", i, message.request);
          break;
        }
        if (!shard.installed) shard.installed = message.request;
        steps.Add(next, "S%d installs the first view of request %d", i, message.request);
        break;
    }
  }
}

void Initialization::AddShardCrash(const State& state, int i, Steps<State>& steps) const {
  if (!state.shard_crashes || !state.faults || state.shards[i].installed) return;
  State next = state;
  --next.shard_crashes, --next.faults;
  next.shards[i] = Shard{};
  for (auto& channels : next.pushes) channels[i].Clear();
  for (int c = 0; c < kCoordinators; ++c) {
    next.messages[c][i].Clear();
    Coordinator& coordinator = next.coordinators[c];
    Exclude(coordinator.replies, i);
    if (coordinator.alive &&
        (coordinator.phase == kWaitsForState || coordinator.phase == kInstalls)) {
      Abandon(coordinator);
    }
  }
  steps.AddFault(next, "S%d crashes before the first view", i);
}

void Initialization::AddCoordinatorSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& coordinator = state.coordinators[c];
  bool replaced = false;
  for (const Shard& shard : state.shards) {
    replaced = replaced || (shard.alive && shard.term > coordinator.term);
  }
  State next = state;
  if (replaced) {
    Exit(next.coordinators[c]);
    steps.Add(next, "a shard refuses C%d, which exits", c);
  }
  AddSurveySteps(state, c, steps);
  AddRequestSteps(state, c, steps);
  AddFirstViewSteps(state, c, steps);
  if (state.coordinator_crashes && state.faults) {
    next = state;
    --next.coordinator_crashes, --next.faults;
    Exit(next.coordinators[c]);
    steps.AddFault(next, "C%d crashes", c);
  }
}

void Initialization::AddSurveySteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  if (before.phase == kSurveys) {
    if (before.replies == 3) {
      coordinator.replies = 0;
      coordinator.surveyed = 1;
      coordinator.phase = before.knows_first_view ? kInstalls : kIdle;
      steps.Add(next, "C%d has all answers to its survey", c);
    } else if (ShardLacksMessage(state, c)) {
      coordinator.phase = kIdle;
      steps.Add(next, "C%d surveys again: a shard has started", c);
    }
    return;
  }
  if (before.phase != kIdle || before.knows_first_view) return;
  if (options_.survey && before.term > 1 && !before.surveyed) {
    coordinator.phase = kSurveys;
    coordinator.replies = 0;
    if (SendToShards(next, c, {kSurvey, 0})) steps.Add(next, "C%d surveys the shards", c);
    return;
  }

  for (int w = 0; w < kWorkers; ++w) {
    if (!state.workers[w].alive || state.initialize[w].Full()) continue;
    if (state.next_request >= 7 || before.requests >= 6) continue;
    next = state;
    coordinator.request = options_.requests_have_terms
                              ? Byte(before.term * 8 + ++coordinator.requests)
                              : next.next_request++;
    coordinator.worker = Byte(w);
    coordinator.phase = kPrepares;
    coordinator.replies = 0;
    coordinator.ready[0] = coordinator.ready[1] = 0;
    if (!SendToShards(next, c, {kPrepareState, coordinator.request})) continue;
    for (int i = 0; i < kShards && !options_.ready_names_request && before.term > 1; ++i) {
      if (Holds(next.shards[i])) coordinator.ready[i] = 1;
    }
    steps.Add(next, "C%d begins request %d with W%d", c, coordinator.request, w);
  }
}

void Initialization::AddRequestSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  const int w = before.worker;
  if (before.phase == kPrepares) {
    if (before.replies == 3) {
      coordinator.phase = kWaitsForState;
      if (state.workers[w].alive && !state.initialize[w].Full()) {
        next.initialize[w].Push(before.request);
      }
      steps.Add(next, "C%d sends Initialize of request %d to W%d", c, before.request, w);
    }
    if (ShardLacksMessage(state, c)) {
      next = state;
      coordinator.phase = kIdle;
      steps.Add(next, "C%d begins again: a shard has started", c);
    }
  }
  if (before.phase != kWaitsForState) return;

  if (!before.knows_first_view) {
    const Worker& worker = state.workers[w];
    bool lost = !worker.alive || (worker.request != before.request && state.initialize[w].Empty());
    if (lost) {
      next = state;
      Abandon(coordinator);
      steps.Add(next, "C%d abandons the request of W%d, which is gone", c, w);
    }
    if (state.suspicions && state.faults) {
      next = state;
      --next.suspicions, --next.faults;
      Abandon(coordinator);
      steps.AddFault(next, "C%d suspects W%d wrongly", c, w);
    }
  }
  if (before.ready[0] && before.ready[1]) {
    next = state;
    coordinator.phase = kInstalls;
    if (!SendToShards(next, c, {kInstall, before.request})) next.channel_is_full = 1;
    steps.Add(next, "C%d sends the first view of request %d", c, before.request);
  }
}

void Initialization::AddFirstViewSteps(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  if (before.phase != kInstalls && !(before.knows_first_view && before.phase != kSurveys)) return;
  for (const auto& channel : state.messages[c]) {
    if (!channel.Empty()) return;
  }
  int installed = 0;
  for (const Shard& shard : state.shards) installed += shard.installed != 0;

  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  if (installed == 0) {
    if (before.phase != kInstalls) return;
    Abandon(coordinator);
    coordinator.knows_first_view = 0;
    steps.Add(next, "C%d begins again: no shard has installed the first view", c);
    return;
  }
  if (installed == kShards) return;

  // One shard has it. The other one completes it if it has that very version 0.
  uint8_t request =
      state.shards[0].installed ? state.shards[0].installed : state.shards[1].installed;
  bool complete = true;
  for (const Shard& shard : state.shards) {
    complete = complete && shard.request == request && Holds(shard);
  }
  if (complete || !options_.pushes_name_request) {
    coordinator.phase = kInstalls;
    for (auto& channel : next.messages[c]) channel.Push({kInstall, request});
    steps.Add(next, "C%d completes the first view of request %d", c, request);
  } else {
    for (Shard& shard : next.shards) shard.installed = 0;
    Abandon(coordinator);
    coordinator.knows_first_view = 0;
    steps.Add(next, "C%d claims the next attempt: no worker can have trained in the first view", c);
  }
}

void Initialization::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
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
  if (!options_.survey) {
    for (const Shard& shard : state.shards) coordinator.knows_first_view |= shard.installed != 0;
  }
  if (alive == 0) {
    steps.Add(next, "a new coordinator C%d starts", used);
  } else if (alive == 1 && state.second_coordinators && state.faults) {
    --next.second_coordinators, --next.faults;
    steps.AddFault(next, "a second coordinator C%d starts", used);
  }
}

}  // namespace sluice::protocol_models
