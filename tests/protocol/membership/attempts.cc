#include "tests/protocol/membership/attempts.h"

namespace sluice::protocol_models {
namespace {

// The highest step in a mask of steps that is not 0.
uint8_t HighestStep(int mask) {
  int step = 0;
  while (mask >> (step + 1)) ++step;
  return Byte(step);
}

}  // namespace

Attempts::State Attempts::Initial() const {
  State state{};
  state.starts = kCoordinators;
  state.lost_answers = options_.lost_answers;
  return state;
}

bool Attempts::Done(const State& state) const {
  for (const Coordinator& coordinator : state.coordinators) {
    if (coordinator.phase != kEnded && coordinator.phase != kGone) return false;
  }
  return true;
}

std::string Attempts::Violation(const State& state) const {
  for (int i = 0; i < state.ends.count; ++i) {
    if (state.ends.items[i].attempt < state.ends.items[i].highest) {
      return "an attempt ends the job after a higher one was claimed";
    }
  }
  if (state.ends.count > 1) return "the job ends twice";
  if (state.turned) return "a coordinator exits because of its own claim";
  for (int a = 0; a < kCoordinators; ++a) {
    for (int b = 0; b < a; ++b) {
      const bool run = state.coordinators[a].phase == kRuns && state.coordinators[b].phase == kRuns;
      if (run && state.coordinators[a].attempt == state.coordinators[b].attempt) {
        return "two coordinators have one attempt";
      }
    }
  }
  for (int attempt = 2; attempt < state.claims.count; ++attempt) {
    const Claim& claim = state.claims.items[attempt];
    const Claim& previous = state.claims.items[attempt - 1];
    if (claim.ends || claim.parent == attempt - 1) continue;
    if (claim.parent != previous.parent || claim.step != previous.step) {
      return "an attempt is restored from an abandoned history";
    }
  }
  return "";
}

void Attempts::AddSteps(const State& state, Steps<State>& steps) const {
  for (int c = 0; c < kCoordinators; ++c) {
    const Coordinator& before = state.coordinators[c];
    State next = state;
    Coordinator& coordinator = next.coordinators[c];
    switch (before.phase) {
      case kOff:
        if (!state.starts) break;
        coordinator.phase = kStarts;
        --next.starts;
        steps.AddFault(next, "C%d starts", c);
        break;
      case kStarts:
        AddReading(state, c, steps);
        break;
      case kHasRead:
      case kRepeatsClaim:
        AddClaiming(state, c, steps);
        break;
      case kRuns:
        AddTraining(state, c, steps);
        coordinator = Coordinator{kGone, 0, 0, 0};
        steps.AddFault(next, "C%d crashes", c);
        break;
      case kRepeatsEnd:
        AddEnding(state, c, steps);
        break;
      case kEnded:
      case kGone:
        break;
    }
  }
}

bool Attempts::TakesForOwn(const Claim& claim, int c, bool end) const {
  if (claim.ends != end) return false;
  switch (options_.recognition) {
    case Recognition::kNone:
      return false;
    case Recognition::kByCounter:
      return true;  // each coordinator that claims this number has read the claims before it
    case Recognition::kByIncarnation:
      return claim.maker == c;
  }
  return false;
}

void Attempts::AddClaiming(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const uint8_t attempt = before.claims;
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  coordinator = Coordinator{kRuns, attempt, before.step, 0};
  if (state.claims.count == attempt) {
    next.claims.Push({0, before.attempt, before.step, Byte(c)});
    steps.Add(next, "C%d claims attempt %d with parent (%d, %d)", c, attempt, before.attempt,
              before.step);
    if (!state.lost_answers) return;
    --next.lost_answers;
    coordinator = before;
    coordinator.phase = kRepeatsClaim;
    steps.AddFault(next, "C%d claims attempt %d, and the answer is lost", c, attempt);
    return;
  }
  const Claim& claim = state.claims.items[attempt];
  if (TakesForOwn(claim, c, /*end=*/false)) {
    steps.Add(next, "C%d finds its claim of attempt %d", c, attempt);
    return;
  }
  coordinator = Coordinator{kStarts, 0, 0, 0};
  next.turned = claim.maker == c;
  steps.Add(next, "C%d's claim of attempt %d fails", c, attempt);
}

// The answer to the end record was lost.
void Attempts::AddEnding(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  State next = state;
  const bool own = TakesForOwn(state.claims.items[before.attempt + 1], c, /*end=*/true);
  next.turned = !own;
  next.coordinators[c] = Coordinator{own ? kEnded : kGone, 0, 0, 0};
  steps.Add(next, "C%d repeats the end record", c);
}

void Attempts::AddReading(const State& state, int c, Steps<State>& steps) const {
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  const uint8_t count = state.claims.count;
  if (count > 0 && state.claims.items[count - 1].ends) {
    coordinator.phase = kEnded;
    coordinator.claims = 0;
    steps.Add(next, "C%d finds that the job has ended", c);
    return;
  }
  coordinator = Coordinator{kHasRead, 0, 0, count};
  if (count > 0 && options_.restores_by_claims) {
    const uint8_t highest = Byte(count - 1);
    if (state.indexes[highest]) {
      coordinator.attempt = highest;
      coordinator.step = HighestStep(state.indexes[highest]);
    } else {
      coordinator.attempt = state.claims.items[highest].parent;
      coordinator.step = state.claims.items[highest].step;
    }
  } else {
    for (uint8_t attempt = 0; attempt < count; ++attempt) {
      if (!state.indexes[attempt]) continue;
      uint8_t step = HighestStep(state.indexes[attempt]);
      if (step < coordinator.step) continue;
      coordinator.attempt = attempt;
      coordinator.step = step;
    }
  }
  steps.Add(next, "C%d reads the storage: parent (%d, %d)", c, coordinator.attempt,
            coordinator.step);
}

void Attempts::AddTraining(const State& state, int c, Steps<State>& steps) const {
  const Coordinator& before = state.coordinators[c];
  const uint8_t attempt = before.attempt;
  const bool has_index = Contains(state.indexes[attempt], before.step);
  State next = state;
  Coordinator& coordinator = next.coordinators[c];
  if (before.step < kSteps) {
    ++coordinator.step;
    steps.Add(next, "C%d closes step %d of attempt %d", c, before.step, attempt);
  }
  if (before.step > 0 && !has_index) {
    next = state;
    Include(next.indexes[attempt], before.step);
    steps.Add(next, "C%d writes the index of attempt %d, step %d", c, attempt, before.step);
  }
  if (before.step < kSteps || !has_index) return;

  next = state;
  const bool is_highest = state.claims.count == attempt + 1;
  if (options_.end_is_claimed && !is_highest) {
    coordinator.phase = kGone;
    steps.Add(next, "C%d finds a higher attempt, and exits", c);
    return;
  }
  coordinator.phase = kEnded;
  next.ends.Push({attempt, Byte(state.claims.count - 1)});
  if (options_.end_is_claimed) next.claims.Push({1, attempt, before.step, Byte(c)});
  steps.Add(next, "C%d ends the job with attempt %d", c, attempt);
  if (!state.lost_answers || !options_.end_is_claimed) return;
  --next.lost_answers;
  coordinator.phase = kRepeatsEnd;
  steps.AddFault(next, "C%d ends the job with attempt %d, and the answer is lost", c, attempt);
}

}  // namespace sluice::protocol_models
