#include "tests/protocol/attempts.h"

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
        coordinator.claims = 0;
        if (state.claims.count == before.claims) {
          next.claims.Push({0, before.attempt, before.step});
          coordinator.phase = kRuns;
          coordinator.attempt = before.claims;
          steps.Add(next, "C%d claims attempt %d with parent (%d, %d)", c, before.claims,
                    before.attempt, before.step);
        } else {
          coordinator = Coordinator{kStarts, 0, 0, 0};
          steps.Add(next, "C%d's claim of attempt %d fails", c, before.claims);
        }
        break;
      case kRuns:
        AddTraining(state, c, steps);
        coordinator = Coordinator{kGone, 0, 0, 0};
        steps.AddFault(next, "C%d crashes", c);
        break;
      case kEnded:
      case kGone:
        break;
    }
  }
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
  if (options_.end_is_claimed) next.claims.Push({1, attempt, before.step});
  steps.Add(next, "C%d ends the job with attempt %d", c, attempt);
}

}  // namespace sluice::protocol_models
