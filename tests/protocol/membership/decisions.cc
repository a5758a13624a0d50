#include "tests/protocol/membership/decisions.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

// Whether the decision at the last version has ended training.
bool Stopped(const Decisions::Decision& decision) { return decision.step == Decisions::kLast; }

bool AllPinned(const Decisions::State& state, const Decisions::Coordinator& coordinator,
               int version) {
  return std::all_of(std::begin(state.shards), std::end(state.shards), [&](const auto& shard) {
    return shard.view == coordinator.view && Contains(shard.pinned, version);
  });
}

}  // namespace

Decisions::State Decisions::Initial() const {
  State state{};
  state.views = 1;
  for (Shard& shard : state.shards) {
    shard.term = shard.view = 1;
    shard.barrier = 1;
    shard.pinned = 1;
  }
  Coordinator& first = state.coordinators[0];
  first.alive = first.term = first.view = 1;
  first.due = first.barrier = 1;
  return state;
}

std::string Decisions::Violation(const State& state) const {
  switch (state.error) {
    case kNoError:
      return "";
    case kWrongFactor:
      return "a step closes with the factor of another evaluation";
    case kTrainsOn:
      return "a step closes after training has ended";
    case kCannotRollBack:
      return "a shard cannot return to the view's first step";
    case kWrongCopy:
      return "a copy is updated with another factor than its partition";
    case kChannelIsFull:
      return "the model's channel is too small";
  }
  return "unknown";
}

bool Decisions::Done(const State& state) const {
  return std::any_of(std::begin(state.coordinators), std::end(state.coordinators),
                     [&](const Coordinator& c) {
                       return c.alive && Stopped(c.decision) &&
                              std::all_of(std::begin(state.shards), std::end(state.shards),
                                          [&](const Shard& shard) {
                                            return shard.view == c.view && shard.version == kLast;
                                          });
                     });
}

void Decisions::AddSteps(const State& state, Steps<State>& steps) const {
  for (int shard = 0; shard < kShards; ++shard) AddTraining(state, shard, steps);
  AddCopy(state, steps);
  for (int coordinator = 0; coordinator < kCoordinators; ++coordinator) {
    for (int shard = 0; shard < kShards; ++shard) AddArrival(state, coordinator, shard, steps);
    AddCoordinatorSteps(state, coordinator, steps);
  }
  AddCoordinatorStart(state, steps);
  AddRestoration(state, steps);
}

// A worker has pushed a step only if every partition is at it.
void Decisions::AddTraining(const State& state, int shard, Steps<State>& steps) const {
  const Shard& now = state.shards[shard];
  const bool held = now.barrier > 0 && now.version >= now.barrier;
  if (now.promised || held || now.version > kLast) return;
  if (state.shards[1 - shard].version < now.version) return;
  // The copy has acked the step in this view.
  const Shard& holder = state.shards[1];
  if (shard == 0 && options_.copies && (holder.copy <= now.version || holder.view != now.view)) {
    return;
  }
  State next = state;
  Shard& closes = next.shards[shard];
  if (closes.version >= kLast) {
    next.error = kTrainsOn;
  } else if (closes.decision.factor != closes.version) {
    next.error = kWrongFactor;
  }
  ++closes.version;
  Include(closes.pinned, closes.version);
  steps.Add(next, "shard %d closes step %d", shard, now.version);
}

// The owner has sent the step, and closes it when the copy has it.
void Decisions::AddCopy(const State& state, Steps<State>& steps) const {
  const Shard& owner = state.shards[0];
  const Shard& holder = state.shards[1];
  const uint8_t step = owner.version;
  const bool sent = !(owner.barrier > 0 && step >= owner.barrier) && !owner.promised &&
                    holder.version >= step && step < kLast;
  if (!options_.copies || !sent || holder.copy != step || holder.promised ||
      holder.view != owner.view) {
    return;
  }
  if (options_.copies_wait_at_barrier && holder.barrier > 0 && step >= holder.barrier) return;
  State next = state;
  if (holder.decision.factor != step) next.error = kWrongCopy;
  ++next.shards[1].copy;
  steps.Add(next, "the copy of partition 0 makes step %d", step);
}

void Decisions::AddArrival(const State& state, int coordinator, int shard,
                           Steps<State>& steps) const {
  if (state.messages[coordinator][shard].Empty()) return;
  State next = state;
  const Message message = next.messages[coordinator][shard].Pop();
  Receive(next, coordinator, shard, message);
  steps.Add(next, "shard %d receives message %d of coordinator %d", shard, message.type,
            coordinator);
}

void Decisions::Receive(State& state, int coordinator, int shard, const Message& message) const {
  Shard& receiver = state.shards[shard];
  Coordinator& sender = state.coordinators[coordinator];
  const uint8_t term = Byte(coordinator + 1);
  if (term < receiver.term) return;
  switch (message.type) {
    case kPause:
      receiver.term = term;
      receiver.promised = 1;
      receiver.promised_to = term;
      receiver.pause = message.pause;
      if (!sender.alive || sender.phase != kPauses || sender.pause != message.pause) return;
      Include(sender.replies, shard);
      sender.reply_version[shard] = receiver.version;
      sender.reply_view[shard] = receiver.view;
      sender.reply_decision[shard] = receiver.decision;
      return;
    case kInstall:
      if (receiver.promised && receiver.promised_to == term && receiver.pause == message.pause) {
        Install(state, shard, message);
      }
      return;
    case kBarrier:
      // It is of the installed view, also if another coordinator has made a promise necessary.
      if (receiver.view != message.view) return;
      receiver.barrier = message.barrier;
      if (message.decision.step > receiver.decision.step) receiver.decision = message.decision;
      return;
  }
}

void Decisions::Install(State& state, int shard, const Message& message) const {
  Shard& receiver = state.shards[shard];
  if (receiver.version < message.first_step || receiver.version > message.first_step + 1) {
    state.error = kCannotRollBack;
    return;
  }
  if (receiver.version > message.first_step) Exclude(receiver.pinned, receiver.version);
  receiver.version = message.first_step;
  receiver.copy = message.first_step;  // what is behind is made again
  Include(receiver.pinned, receiver.version);
  receiver.promised = 0;
  receiver.view = message.view;
  receiver.barrier = message.barrier;
  receiver.decision = message.decision;
}

void Decisions::Send(State& state, int coordinator, const Message& message) const {
  for (int shard = 0; shard < kShards; ++shard) {
    if (state.messages[coordinator][shard].Full()) {
      state.error = kChannelIsFull;
      return;
    }
    state.messages[coordinator][shard].Push(message);
  }
}

// ---- coordinators

void Decisions::AddCoordinatorSteps(const State& state, int coordinator,
                                    Steps<State>& steps) const {
  const Coordinator& now = state.coordinators[coordinator];
  if (!now.alive) return;
  // (R1) A shard refuses it.
  if (std::any_of(std::begin(state.shards), std::end(state.shards),
                  [&](const Shard& shard) { return shard.term > now.term; })) {
    State next = state;
    next.coordinators[coordinator] = {};
    next.coordinators[coordinator].term = now.term;
    steps.Add(next, "coordinator %d is refused, and exits", coordinator);
  }
  if (now.phase == kPauses) {
    if (CountOf(now.replies) < kShards) return;
    State next = state;
    Decide(next, coordinator);
    steps.Add(next, "coordinator %d decides a view", coordinator);
    return;
  }
  if (state.view_changes < options_.view_changes) {
    State next = state;
    ++next.view_changes;
    StartPause(next, coordinator);
    steps.AddFault(next, "coordinator %d changes the view", coordinator);
  }
  if (state.coordinator_crashes < options_.coordinator_crashes) {
    State next = state;
    ++next.coordinator_crashes;
    next.coordinators[coordinator] = {};
    next.coordinators[coordinator].term = now.term;
    steps.AddFault(next, "coordinator %d dies", coordinator);
  }
  AddEvaluation(state, coordinator, steps);

  const uint8_t version = state.shards[0].version;
  if (version > state.saved && state.shards[1].version == version &&
      AllPinned(state, now, version)) {
    State next = state;
    next.saved = version;
    next.saved_decision = options_.index_has_decisions ? now.decision : Decision{};
    steps.Add(next, "coordinator %d saves version %d", coordinator, version);
  }
}

void Decisions::AddEvaluation(const State& state, int coordinator, Steps<State>& steps) const {
  const Coordinator& now = state.coordinators[coordinator];
  if (Stopped(now.decision) || now.due > kLast || !AllPinned(state, now, now.due)) return;
  Message message{};
  message.type = kBarrier;
  message.view = now.view;
  if (!options_.barrier_waits_for_decision && now.barrier == now.due && now.due < kLast) {
    State next = state;
    message.barrier = ++next.coordinators[coordinator].barrier;
    message.decision = now.decision;
    Send(next, coordinator, message);
    steps.Add(next, "coordinator %d moves the barrier to %d", coordinator, message.barrier);
  }

  State next = state;
  Coordinator& decides = next.coordinators[coordinator];
  if (!options_.decides_once || now.due > now.decision.step) {
    decides.decision = {std::max(now.due, now.decision.step), Byte(now.decision.factor + 1)};
  }
  ++decides.due;
  if (!Stopped(decides.decision)) decides.barrier = decides.due;
  message.barrier = decides.barrier;
  message.decision = decides.decision;
  Send(next, coordinator, message);
  steps.Add(next, "coordinator %d decides at version %d", coordinator, now.due);
}

void Decisions::AddCoordinatorStart(const State& state, Steps<State>& steps) const {
  bool lives = false;
  int next_one = 0;
  for (int i = 0; i < kCoordinators; ++i) {
    lives = lives || state.coordinators[i].alive;
    if (state.coordinators[i].term > 0) next_one = i + 1;
  }
  for (const Shard& shard : state.shards) next_one = std::max<int>(next_one, shard.term);
  if (next_one >= kCoordinators) return;
  if (lives && state.second_coordinators >= options_.second_coordinators) return;
  State next = state;
  if (lives) ++next.second_coordinators;
  Coordinator& starts = next.coordinators[next_one];
  starts.alive = 1;
  starts.term = Byte(next_one + 1);
  starts.takes_over = 1;
  StartPause(next, next_one);
  if (lives) {
    steps.AddFault(next, "coordinator %d starts beside another one", next_one);
  } else {
    steps.Add(next, "coordinator %d starts", next_one);
  }
}

void Decisions::StartPause(State& state, int coordinator) const {
  Coordinator& pauses = state.coordinators[coordinator];
  pauses.phase = kPauses;
  pauses.replies = 0;
  ++pauses.pause;
  Message message{};
  message.type = kPause;
  message.pause = pauses.pause;
  Send(state, coordinator, message);
}

void Decisions::BeginView(Coordinator& coordinator, uint8_t first_step) const {
  const Decision& decision = coordinator.decision;
  const bool evaluated = decision.step >= first_step || !options_.first_version_is_evaluated;
  coordinator.due = Byte(std::max<int>(decision.step, evaluated ? first_step : first_step - 1) + 1);
  if (!options_.decides_once && first_step > 0) coordinator.due = first_step;
  coordinator.barrier = Stopped(decision) ? first_step : coordinator.due;
}

void Decisions::Decide(State& state, int coordinator) const {
  Coordinator& decides = state.coordinators[coordinator];
  uint8_t newest = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    newest = std::max(newest, decides.reply_view[shard]);
    if (!decides.takes_over || !options_.replies_have_decisions) continue;
    if (decides.reply_decision[shard].step > decides.decision.step) {
      decides.decision = decides.reply_decision[shard];
    }
  }
  const uint8_t first_step = std::min(decides.reply_version[0], decides.reply_version[1]);
  // (R1) Another coordinator has made a newer view.
  if (!decides.takes_over && newest > decides.view) {
    decides = {};
    decides.term = Byte(coordinator + 1);
    return;
  }
  decides.view = ++state.views;
  decides.phase = kIdle;
  if (decides.takes_over || !options_.decides_once) BeginView(decides, first_step);
  decides.takes_over = 0;
  std::fill(std::begin(decides.reply_version), std::end(decides.reply_version), 0);
  std::fill(std::begin(decides.reply_view), std::end(decides.reply_view), 0);
  std::fill(std::begin(decides.reply_decision), std::end(decides.reply_decision), Decision{});
  decides.replies = 0;

  Message message{};
  message.type = kInstall;
  message.view = decides.view;
  message.first_step = first_step;
  message.barrier = decides.barrier;
  message.pause = decides.pause;
  if (options_.install_has_decisions) message.decision = decides.decision;
  Send(state, coordinator, message);
}

// The shards' state is lost. A new coordinator begins an attempt with the newest checkpoint.
void Decisions::AddRestoration(const State& state, Steps<State>& steps) const {
  if (state.restorations >= options_.restorations) return;
  State next = state;
  ++next.restorations;
  ++next.views;
  int coordinator = 0;
  for (const Shard& shard : state.shards) coordinator = std::max<int>(coordinator, shard.term - 1);
  for (int i = 0; i < kCoordinators; ++i) {
    if (state.coordinators[i].term > 0) coordinator = std::max(coordinator, i);
  }
  for (int i = 0; i < kCoordinators; ++i) {
    next.coordinators[i] = {};
    for (auto& messages : next.messages[i]) messages.Clear();
  }
  Coordinator& begins = next.coordinators[coordinator];
  begins.alive = 1;
  begins.term = Byte(coordinator + 1);
  begins.view = next.views;
  begins.decision = state.saved_decision;
  BeginView(begins, state.saved);
  for (Shard& shard : next.shards) {
    shard = {};
    shard.term = begins.term;
    shard.view = begins.view;
    shard.version = shard.copy = state.saved;
    shard.barrier = begins.barrier;
    shard.decision = begins.decision;
    Include(shard.pinned, state.saved);
  }
  steps.AddFault(next, "the job is restored at version %d", state.saved);
}

}  // namespace sluice::protocol_models
