#include "tests/protocol/replication/damage.h"

namespace sluice::protocol_models {
namespace {

using Model = Damage;
using State = Model::State;
using Checkpoint = Model::Checkpoint;

// The newest whole checkpoint of the job's history, which ends with `last`.
Checkpoint Right(const State& state, Checkpoint last) {
  while (last.attempt != 0) {
    for (int step = last.step; step > 0; --step) {
      if (state.indexes[last.attempt][step] == Model::kWhole) return {last.attempt, Byte(step)};
    }
    last = state.claims[last.attempt].parent;
  }
  return {0, 0};
}

bool AnyIndex(const State& state) {
  for (const auto& attempt : state.indexes) {
    for (Model::File file : attempt) {
      if (file != Model::kMissing) return true;
    }
  }
  return false;
}

int HighestClaim(const State& state, bool damaged_count) {
  int highest = 0;
  for (int attempt = 1; attempt < Model::kAttempts; ++attempt) {
    const Model::File file = state.claims[attempt].file;
    if (file == Model::kWhole || (file == Model::kDamaged && damaged_count)) highest = attempt;
  }
  return highest;
}

}  // namespace

State Damage::Initial() const {
  State state{};
  state.crashes = options_.crashes;
  state.damages = options_.damages;
  return state;
}

std::string Damage::Violation(const State& state) const {
  if (state.starts_from_zero) return "the job starts from zero beside checkpoints";
  if (state.wrong_checkpoint) return "the newest whole checkpoint of the history is not used";
  return "";
}

void Damage::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.starts_from_zero || state.wrong_checkpoint || state.phase == kEnded) return;
  if (state.phase == kReads) AddReading(state, steps);
  if (state.phase == kHasRead) AddClaim(state, steps);
  if (state.phase == kTrains) AddTraining(state, steps);
  AddDamages(state, steps);
}

// The checkpoint to restore as a coordinator sees it, which does not know what damaged files said.
Checkpoint Damage::Choose(const State& state, int attempt) const {
  int limit = kSteps;
  while (attempt > 0) {
    for (int step = limit; step > 0; --step) {
      const File file = state.indexes[attempt][step];
      if (file == kWhole) return {Byte(attempt), Byte(step)};
      if (file == kDamaged && !options_.older_indexes_are_used) break;
    }
    const Claim& claim = state.claims[attempt];
    if (claim.file == kWhole) {
      attempt = claim.parent.attempt;
      limit = claim.parent.step;
    } else if (options_.damaged_claims_lead_to_lower_attempt) {
      --attempt;
      limit = kSteps;
    } else {
      return {0, 0};
    }
  }
  return {0, 0};
}

void Damage::AddReading(const State& state, Steps<State>& steps) const {
  State next = state;
  const int highest = HighestClaim(state, options_.damaged_claims_count);
  const Checkpoint chosen = Choose(state, highest);
  const int last = HighestClaim(state, true);
  const Checkpoint right = Right(state, {Byte(last), kSteps});
  next.parent = chosen;
  next.attempt = Byte(highest + 1);
  next.phase = kHasRead;
  if (chosen.attempt != right.attempt || chosen.step != right.step) {
    next.wrong_checkpoint = 1;
    if (chosen.attempt == 0) next.starts_from_zero = 1;
  } else if (chosen.attempt == 0 && AnyIndex(state)) {
    next.phase = kEnded;  // all checkpoints are damaged: the job fails
  }
  steps.Add(next, "a coordinator reads the storage, and chooses (%d, %d)", chosen.attempt,
            chosen.step);
}

void Damage::AddClaim(const State& state, Steps<State>& steps) const {
  State next = state;
  if (state.claims[state.attempt].file != kMissing) {
    next.phase = kReads;
    next.attempt = 0;
    next.parent = Checkpoint{};
    steps.Add(next, "the claim of attempt %d exists, and the coordinator exits", state.attempt);
    return;
  }
  next.claims[state.attempt] = {kWhole, state.parent};
  next.step = state.parent.step;
  next.parent = Checkpoint{};
  next.phase = kTrains;
  steps.Add(next, "the coordinator claims attempt %d with parent (%d, %d)", state.attempt,
            state.parent.attempt, state.parent.step);
}

void Damage::AddTraining(const State& state, Steps<State>& steps) const {
  State next = state;
  if (state.step < kSteps) {
    ++next.step;
    steps.Add(next, "step %d is trained", next.step);
  }
  next = state;
  if (state.step > 0 && state.indexes[state.attempt][state.step] == kMissing) {
    next.indexes[state.attempt][state.step] = kWhole;
    steps.Add(next, "the coordinator writes the index of (%d, %d)", state.attempt, state.step);
  }
  next = state;
  if (state.step == kSteps && state.indexes[state.attempt][state.step] == kWhole) {
    next.phase = kEnded;
    steps.Add(next, "the job ends");
  }
  if (state.crashes) {
    next = state;
    --next.crashes;
    next.phase = kReads;
    next.attempt = next.step = 0;
    steps.AddFault(next, "the coordinator crashes");
  }
}

// A file that the running attempt has not used yet becomes unreadable.
void Damage::AddDamages(const State& state, Steps<State>& steps) const {
  if (!state.damages || state.phase != kReads) return;
  for (int attempt = 1; attempt < kAttempts; ++attempt) {
    State next = state;
    --next.damages;
    if (state.claims[attempt].file == kWhole) {
      next.claims[attempt].file = kDamaged;
      steps.AddFault(next, "the claim of attempt %d is damaged", attempt);
    }
    for (int step = 1; step <= kSteps; ++step) {
      if (state.indexes[attempt][step] != kWhole) continue;
      next = state;
      --next.damages;
      next.indexes[attempt][step] = kDamaged;
      steps.AddFault(next, "the index of (%d, %d) is damaged", attempt, step);
    }
  }
}

}  // namespace sluice::protocol_models
