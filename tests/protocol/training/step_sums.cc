#include "tests/protocol/training/step_sums.h"

#include <algorithm>
#include <tuple>

namespace sluice::protocol_models {
namespace {

using State = StepSums::State;
using Worker = StepSums::Worker;
using Shard = StepSums::Shard;
using Partition = StepSums::Partition;
using View = StepSums::View;

constexpr int kBothSamples = 3;
constexpr uint8_t kMixed = 254;

// The samples of a member, as a mask.
int SamplesOf(const View& view, int worker) {
  if (!Contains(view.members, worker)) return 0;
  if (CountOf(view.members) == 1) return kBothSamples;
  const int before = CountOf(view.members & ((1 << worker) - 1));
  return before < 2 ? 1 << before : 0;
}

int ComputingMembers(const View& view) {
  int members = 0;
  for (int w = 0; w < StepSums::kWorkers; ++w) members |= (SamplesOf(view, w) != 0) << w;
  return members;
}

int OwnerOf(const View& view, int partition) { return partition == 0 ? view.owner : 1; }

// A message from the shard's view is acted upon; promises stop all (R2).
bool Takes(const Shard& shard) { return !shard.dead && shard.promise <= shard.view; }

}  // namespace

StepSums::State StepSums::Initial() const {
  State state{};
  const uint8_t members = Byte((1 << options_.workers) - 1);
  state.views[1] = View{1, members, 0, 0};
  state.coordinator.newest = 1;
  for (int s = 0; s < kShards; ++s) {
    state.shards[s] = s < options_.shards ? Shard{0, 1, 1} : Shard{1, 0, 0};
  }
  for (int w = 0; w < options_.workers; ++w) {
    state.workers[w].alive = 1;
    Install(state, w, 1);
  }
  state.faults = options_.faults;
  state.worker_crashes = options_.worker_crashes;
  state.joins = options_.joins;
  state.suspicions = options_.suspicions;
  state.shard_crashes = options_.shard_crashes;
  state.takeovers = options_.takeovers;
  state.changes = options_.changes;
  state.breaks = options_.breaks;
  return state;
}

bool StepSums::Done(const State& state) const {
  if (options_.members_differ) return state.wrong == kFailed;
  for (int p = 0; p < options_.shards; ++p) {
    if (state.partitions[p].version != options_.steps) return false;
  }
  for (const Worker& worker : state.workers) {
    if (worker.alive && worker.phase != kFinished) return false;
  }
  return true;
}

std::string StepSums::Violation(const State& state) const {
  switch (state.wrong) {
    case kNothing:
      return "";
    case kPartsOfTwoViews:
      return "a sum has parts of two views";
    case kPartTwice:
      return "a sum has a part twice";
    case kOldSum:
      return "a worker computes with the sum of an older view";
    case kAnotherSum:
      return "a worker takes one sum for another";
    case kMixedGradients:
      return "a step closes with gradients of different sums";
    case kRefused:
      return "a shard refuses the part of a member that keeps the contract";
    case kFailed:
      return options_.members_differ ? "" : "the job fails, and all members need the same sums";
  }
  return "";
}

void StepSums::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.wrong != kNothing) return;
  for (int w = 0; w < options_.workers; ++w) {
    AddWorkerSteps(state, w, steps);
    AddDeliveries(state, w, steps);
    if (state.faults) AddWorkerFaults(state, w, steps);
  }
  AddViewSteps(state, steps);
  if (state.faults) AddFaults(state, steps);
}

// ---- a worker

// The worker has the version of its step.
void StepSums::BeginStep(State& state, int w) const {
  Worker& worker = state.workers[w];
  const View& view = state.views[worker.view];
  const int missing = SamplesOf(view, w) & ~worker.computed;
  if (worker.step == options_.steps) {
    worker.phase = kFinished;
  } else if (SamplesOf(view, w) == 0) {
    worker.phase = kPushed;
  } else if (missing == 0) {
    worker.phase = kHasGradient;  // kept from the older view
  } else if (CountOf(ComputingMembers(view)) == 1) {
    worker.of = worker.computed == 0 || worker.of == worker.view ? worker.view : kMixed;
    worker.computed = Byte(worker.computed | missing);
    worker.phase = kHasGradient;
  } else {
    worker.phase = kComputes;
  }
}

void StepSums::Install(State& state, int w, int view) const {
  Worker& worker = state.workers[w];
  const bool same_step = worker.view != 0 && state.views[view].version == worker.step;
  if (!same_step || options_.install_drops_gradients) worker.computed = worker.of = 0;
  if (!same_step || options_.install_begins_again || worker.phase == kHasGradient ||
      worker.phase == kPushed) {
    worker.number = 0;
  }
  if (worker.view != 0 && state.views[view].owner != state.views[worker.view].owner) {
    worker.sent.Clear();
    worker.answers.Clear();
  }
  worker.view = Byte(view);
  worker.step = state.views[view].version;
  BeginStep(state, w);
}

// Sends the part of the next sum.
void StepSums::Give(State& state, int w) const {
  Worker& worker = state.workers[w];
  worker.sent.Push(Frame{kPart, worker.view, worker.step, worker.number, 0});
  worker.phase = kWaitsForSum;
}

void StepSums::TakeAnswer(State& state, int w) const {
  Worker& worker = state.workers[w];
  const Answer answer = worker.answers.Pop();
  if (worker.phase != kWaitsForSum) return;
  if (options_.old_answers_are_ignored && answer.view != worker.view) return;
  const bool wanted = answer.step == worker.step && answer.number == worker.number;
  if (options_.answers_are_compared && !wanted) return;

  if (answer.of != worker.view) state.wrong = kOldSum;
  if (!wanted) state.wrong = kAnotherSum;
  ++worker.number;
  worker.phase = kComputes;
}

void StepSums::AddWorkerSteps(const State& state, int w, Steps<State>& steps) const {
  const Worker& worker = state.workers[w];
  if (!worker.alive) return;
  State next = state;
  Worker& changed = next.workers[w];
  if (worker.phase == kComputes && worker.number < Needed(w) && !worker.sent.Full()) {
    Give(next, w);
    steps.Add(next, "W%d gives its part of sum %d of step %d in view %d", w, worker.number,
              worker.step, worker.view);
  } else if (worker.phase == kComputes && worker.number >= Needed(w)) {
    changed.of = worker.computed == 0 || worker.of == worker.view ? worker.view : kMixed;
    changed.computed = Byte(worker.computed | SamplesOf(state.views[worker.view], w));
    changed.phase = kHasGradient;
    steps.Add(next, "W%d has its gradient of step %d in view %d", w, worker.step, worker.view);
  } else if (worker.phase == kHasGradient && worker.sent.count + 2 <= 8) {
    changed.sent.Push(Frame{kPush, worker.view, worker.step, 0, worker.of});
    // One that kept its gradient, or computed alone, has given no parts in this view.
    const bool gave = worker.number > 0;
    if (gave && options_.members_say_that_they_are_done) {
      changed.sent.Push(Frame{kDone, worker.view, worker.step, worker.number, 0});
    }
    changed.phase = kPushed;
    steps.Add(next, "W%d pushes its gradient of step %d", w, worker.step);
  } else if (worker.phase == kPushed) {
    bool closed = true;
    for (int p = 0; p < options_.shards; ++p) {
      const Shard& owner = state.shards[OwnerOf(state.views[worker.view], p)];
      closed = closed && !owner.dead && owner.view == worker.view &&
               state.partitions[p].version > worker.step;
    }
    if (!closed) return;
    ++changed.step;
    changed.number = changed.computed = changed.of = 0;
    BeginStep(next, w);
    steps.Add(next, "W%d has version %d", w, changed.step);
  }
}

// ---- the shards

void StepSums::TakePart(State& state, int w, const Frame& frame) const {
  Sums& sums = state.sums;
  const View& view = state.views[state.shards[state.views[frame.view].owner].view];
  const auto place = std::make_tuple(frame.step, frame.number);
  const auto finished = std::make_tuple(sums.finished_step, sums.finished_number);
  const uint8_t now = state.shards[state.views[frame.view].owner].view;
  const auto answer = [&](int member) {
    Worker& to = state.workers[member];
    if (to.alive && !to.answers.Full()) {
      to.answers.Push(Answer{now, sums.finished_step, sums.finished_number, sums.finished_of});
    }
  };
  const bool done = frame.kind == kDone;
  if (sums.finished && place <= finished) {
    if (place == finished && !done && options_.repeated_parts_are_answered) answer(w);
    return;
  }
  const auto collected = std::make_tuple(sums.step, sums.number);
  if (options_.older_steps_are_ignored && sums.parts && place < collected) return;
  const bool follows = sums.finished && sums.finished_step == frame.step;
  if (frame.number != (follows ? sums.finished_number + 1 : 0) ||
      frame.step > state.partitions[0].version) {
    state.wrong = kRefused;
    return;
  }

  if (place != collected) sums.parts = 0;
  sums.step = frame.step;
  sums.number = frame.number;
  if (Contains(sums.parts, w)) {
    if (!options_.repeated_parts_count_once) state.wrong = kPartTwice;
    return;
  }
  if (sums.parts && sums.done != (done ? 1 : 0)) {
    state.wrong = kFailed;
    return;
  }
  if (sums.parts && sums.of != frame.view) state.wrong = kPartsOfTwoViews;
  sums.done = done ? 1 : 0;
  sums.of = frame.view;
  Include(sums.parts, w);

  const int awaited =
      options_.only_computing_members_count ? ComputingMembers(view) : int{view.members};
  if ((sums.parts & awaited) != awaited) return;
  const int parts = sums.parts;
  sums = Sums{0, 0, 0, 0, 0, 1, frame.step, frame.number, frame.view};
  for (int member = 0; member < kWorkers; ++member) {
    if (!done && Contains(parts, member)) answer(member);
  }
}

void StepSums::TakePush(State& state, int w, int p, const Frame& frame) const {
  Partition& partition = state.partitions[p];
  const int of = frame.of;
  if (partition.given && partition.of != of) state.wrong = kMixedGradients;
  if (of == kMixed) state.wrong = kMixedGradients;
  partition.of = Byte(of);
  Include(partition.given, w);
  const int awaited = ComputingMembers(state.views[frame.view]);
  if ((partition.given & awaited) != awaited) return;
  ++partition.version;
  partition.given = partition.of = 0;
}

void StepSums::TakeFrame(State& state, int w) const {
  Worker& worker = state.workers[w];
  const Frame frame = worker.sent.Pop();
  const Shard& shard = state.shards[state.views[frame.view].owner];
  const bool old = frame.view < shard.view;
  if (!Contains(state.views[shard.view].members, w)) return;
  if (frame.kind == kPush) {
    const Partition& partition = state.partitions[0];
    if (old || frame.step != partition.version || Contains(partition.given, w)) return;
    TakePush(state, w, 0, frame);
  } else if (!old || !options_.old_parts_are_ignored) {
    TakePart(state, w, frame);
  }
}

void StepSums::AddDeliveries(const State& state, int w, Steps<State>& steps) const {
  const Worker& worker = state.workers[w];
  if (worker.alive && !worker.answers.Empty()) {
    State next = state;
    TakeAnswer(next, w);
    const Answer& answer = worker.answers.Front();
    steps.Add(next, "W%d receives sum %d of step %d, view %d", w, answer.number, answer.step,
              answer.view);
  }
  if (!worker.sent.Empty()) {
    const Frame& frame = worker.sent.Front();
    const Shard& shard = state.shards[state.views[frame.view].owner];
    if (Takes(shard) && frame.view <= shard.view) {
      State next = state;
      TakeFrame(next, w);
      steps.Add(next, "the shard receives the %s of W%d for step %d, sum %d, view %d",
                frame.kind == kPart   ? "part"
                : frame.kind == kPush ? "push"
                                      : "last message",
                w, frame.step, frame.number, frame.view);
    }
  }
  // A push to the other partition. (Its stream has nothing else.)
  const Shard& other = state.shards[1];
  const Partition& partition = state.partitions[1];
  if (options_.shards == 2 && worker.alive && worker.phase == kPushed && Takes(other) &&
      other.view == worker.view && partition.version == worker.step &&
      SamplesOf(state.views[worker.view], w) != 0 && !Contains(partition.given, w)) {
    State next = state;
    TakePush(next, w, 1, Frame{kPush, worker.view, worker.step, 0, worker.of});
    steps.Add(next, "partition 1 receives the push of W%d for step %d", w, worker.step);
  }
}

// ---- views

void StepSums::AddViewSteps(const State& state, Steps<State>& steps) const {
  const Coordinator& coordinator = state.coordinator;
  int alive = 0;
  for (int w = 0; w < options_.workers; ++w) alive |= (state.workers[w].alive != 0) << w;
  if (!coordinator.making) {
    const View& newest = state.views[coordinator.newest];
    State next = state;
    next.coordinator.making = Byte(coordinator.newest + 1);
    next.coordinator.promised = next.coordinator.without = 0;
    const bool wanted = newest.members != alive || state.shards[newest.owner].dead;
    if (wanted && alive != 0 && coordinator.newest + 1 < kViews) {
      steps.Add(next, "the coordinator begins view %d", next.coordinator.making);
    }
  } else {
    uint8_t living = 0;
    for (int s = 0; s < options_.shards; ++s) {
      if (state.shards[s].dead) continue;
      Include(living, s);
      if (Contains(coordinator.promised, s)) continue;
      State next = state;
      next.shards[s].promise = coordinator.making;
      Include(next.coordinator.promised, s);
      steps.Add(next, "shard %d promises view %d", s, coordinator.making);
    }
    const int members = alive & ~coordinator.without;
    if ((coordinator.promised & living) == living && members != 0) {
      State next = state;
      uint8_t version = state.partitions[0].version;
      if (options_.shards == 2) version = std::min(version, state.partitions[1].version);
      next.views[coordinator.making] =
          View{1, Byte(members), Byte(state.shards[0].dead ? 1 : 0), version};
      next.coordinator = Coordinator{0, coordinator.making, 0, 0};
      steps.Add(next, "the coordinator decides view %d at version %d", coordinator.making, version);
    }
  }
  for (int view = 1; view < kViews; ++view) {
    if (state.views[view].decided) AddInstalls(state, view, steps);
  }
  if (alive != 0) return;
  for (int w = 0; w < options_.workers; ++w) {
    State next = state;
    next.workers[w] = Worker{};
    next.workers[w].alive = 1;
    steps.Add(next, "W%d starts", w);
  }
}

void StepSums::AddInstalls(const State& state, int view, Steps<State>& steps) const {
  for (int w = 0; w < options_.workers; ++w) {
    const Worker& worker = state.workers[w];
    if (!worker.alive || worker.view >= view || !Contains(state.views[view].members, w)) continue;
    // A view that was made before the worker started names another incarnation.
    if (worker.phase == kOutside && view != state.coordinator.newest) continue;
    State next = state;
    Install(next, w, view);
    steps.Add(next, "W%d installs view %d", w, view);
  }
  for (int s = 0; s < options_.shards; ++s) {
    const Shard& shard = state.shards[s];
    if (shard.dead || shard.view >= view || shard.promise > view) continue;
    State next = state;
    next.shards[s].view = next.shards[s].promise = Byte(view);
    for (int p = 0; p < options_.shards; ++p) {
      if (OwnerOf(state.views[view], p) != s) continue;
      next.partitions[p] = Partition{state.views[view].version, 0, 0};
    }
    if (state.views[view].owner == s && options_.install_drops_sums) next.sums = Sums{};
    steps.Add(next, "shard %d installs view %d", s, view);
  }
}

// ---- faults

void StepSums::AddWorkerFaults(const State& state, int w, Steps<State>& steps) const {
  const Worker& worker = state.workers[w];
  State next = state;
  --next.faults;
  Worker& changed = next.workers[w];
  if (worker.alive && state.worker_crashes) {
    --next.worker_crashes;
    const Queue<Frame, 8> sent = worker.sent;  // may arrive
    changed = Worker{};
    changed.sent = sent;
    steps.AddFault(next, "W%d crashes", w);
  }
  // A new incarnation, whose stream replaces that of the last one (R9), once a view is without it.
  if (!worker.alive && state.joins && !state.coordinator.making &&
      !Contains(state.views[state.coordinator.newest].members, w)) {
    next = state;
    --next.faults, --next.joins;
    changed = Worker{};
    changed.alive = 1;
    steps.AddFault(next, "W%d starts", w);
  }
  if (worker.alive && worker.view != 0 && state.breaks) {
    next = state;
    --next.faults, --next.breaks;
    changed.sent.Clear();
    changed.answers.Clear();
    if (worker.phase == kWaitsForSum && options_.parts_are_repeated) Give(next, w);
    if (worker.phase == kPushed && worker.computed != 0) {
      changed.sent.Push(Frame{kPush, worker.view, worker.step, 0, worker.of});
    }
    steps.AddFault(next, "W%d's stream breaks and is opened again", w);
  }
}

void StepSums::AddFaults(const State& state, Steps<State>& steps) const {
  const Coordinator& coordinator = state.coordinator;
  const int making = std::max(coordinator.making, coordinator.newest) + 1;
  State next = state;
  --next.faults;
  if (state.takeovers && making < kViews) {
    --next.takeovers;
    next.coordinator = Coordinator{Byte(making), coordinator.newest, 0, 0};
    steps.AddFault(next, "the coordinator crashes, and the next one begins view %d", making);
  }
  if (state.changes && !coordinator.making && making < kViews) {
    next = state;
    --next.faults, --next.changes;
    next.coordinator = Coordinator{Byte(making), coordinator.newest, 0, 0};
    steps.AddFault(next, "the coordinator begins view %d with the same members", making);
  }
  for (int w = 0; w < options_.workers; ++w) {
    if (!state.suspicions || coordinator.making || making + 1 >= kViews) continue;
    if (!Contains(state.views[coordinator.newest].members, w)) continue;
    next = state;
    --next.faults, --next.suspicions;
    next.coordinator = Coordinator{Byte(making), coordinator.newest, 0, Byte(1 << w)};
    steps.AddFault(next, "W%d is suspected wrongly", w);
  }
  if (state.shard_crashes && options_.shards == 2 && !state.shards[0].dead) {
    next = state;
    --next.faults, --next.shard_crashes;
    next.shards[0].dead = 1;
    next.sums = Sums{};
    next.coordinator.making = 0;
    if (coordinator.making) next.coordinator = Coordinator{Byte(making), coordinator.newest, 0, 0};
    steps.AddFault(next, "the owner of partition 0 crashes");
  }
}

}  // namespace sluice::protocol_models
