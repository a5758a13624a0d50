#include "tests/protocol/membership/cut_off.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

// Ticks are counted up to this number, which is above all limits.
constexpr uint8_t kMost = 24;

void Count(uint8_t& ticks) { ticks = std::min<uint8_t>(Byte(ticks + 1), kMost); }

}  // namespace

CutOff::State CutOff::Initial() const {
  State state{};
  state.whole_for = kTimeout;
  state.freezes = options_.freezes;
  state.cuts = options_.cuts;
  return state;
}

std::string CutOff::Violation(const State& state) const {
  return state.wrong ? "a living process is expelled" : "";
}

bool CutOff::Done(const State& state) const {
  return std::all_of(std::begin(state.shards), std::end(state.shards), [&](const Shard& shard) {
    return state.network == kWhole && !shard.frozen && !shard.expelled && shard.silent == 0;
  });
}

void CutOff::AddSteps(const State& state, Steps<State>& steps) const {
  AddFaults(state, steps);
  for (int i = 0; i < kShards; ++i) {
    const Shard& shard = state.shards[i];
    if (state.network == kWhole && !shard.frozen && !shard.sent) AddMessage(state, i, steps);
    if (shard.frozen && shard.expelled) {
      State next = state;
      next.shards[i].frozen = 0;
      steps.Add(next, "the parent replaces %c", 'A' + i);
    }
  }
  if (state.network != kWhole) {
    State next = state;
    next.network = kWhole;
    next.cut_for = next.whole_for = 0;
    // The longer a cut, the rarer messages are sent again.
    for (Shard& shard : next.shards) shard.late = std::min<uint8_t>(state.cut_for, kLate);
    steps.Add(next, "the network is whole again");
  }
  AddTick(state, steps);
}

void CutOff::AddFaults(const State& state, Steps<State>& steps) const {
  for (int i = 0; i < kShards && state.freezes; ++i) {
    if (state.shards[i].frozen || state.shards[i].expelled) continue;
    State next = state;
    --next.freezes;
    next.shards[i].frozen = 1;
    steps.AddFault(next, "%c freezes", 'A' + i);
  }
  // Cuts without a time between them in which all messages arrive are one cut.
  if (state.network != kWhole || !state.cuts || state.whole_for < kTimeout) return;
  for (const Network network : {kCut, kCutFromParent}) {
    State next = state;
    --next.cuts;
    next.network = network;
    steps.AddFault(next, "the coordinator is cut off%s",
                   network == kCutFromParent ? ", also from its parent" : "");
  }
}

// Also of a process that was expelled: it registers again, as a new one.
void CutOff::AddMessage(const State& state, int i, Steps<State>& steps) const {
  State next = state;
  if (options_.forgives && state.quiet >= kDoubt) {
    for (Shard& shard : next.shards) shard.silent = Byte(std::max(shard.silent - state.quiet, 0));
  }
  next.shards[i] = Shard{};
  next.shards[i].sent = 1;
  next.quiet = next.calls = 0;
  steps.Add(next, "a message of %c arrives", 'A' + i);
}

void CutOff::AddTick(const State& state, Steps<State>& steps) const {
  const int longest = state.network == kCutFromParent ? kLongestCutOfAll : kLongestCut;
  if (state.network != kWhole && state.cut_for >= longest) return;
  for (const Shard& shard : state.shards) {
    if (state.network == kWhole && !shard.frozen && !shard.sent && !shard.late) return;
  }

  State next = state;
  for (Shard& shard : next.shards) {
    if (!shard.sent && !shard.expelled) Count(shard.silent);
    if (shard.late) --shard.late;
    shard.sent = 0;
  }
  if (state.network == kWhole) {
    next.whole_for = Byte(std::min(next.whole_for + 1, kTimeout));
  } else {
    Count(next.cut_for);
  }
  Count(next.quiet);
  if (state.network != kCutFromParent) {
    Count(next.calls);
    if (!options_.restarts_calls) next.calls = next.quiet;
  } else if (options_.restarts_calls) {
    next.calls = 0;
  }
  Judge(next);
  steps.Add(next, "a tick passes");
}

void CutOff::Judge(State& state) const {
  const bool heard = state.quiet < kDoubt;
  const bool all_frozen = options_.trusts_calls && state.calls >= kAllFrozen;
  if (options_.suspects_itself && !heard && !all_frozen) return;
  for (Shard& shard : state.shards) {
    if (shard.expelled || shard.silent < kTimeout) continue;
    shard.expelled = 1;
    if (!shard.frozen) state.wrong = 1;
  }
}

}  // namespace sluice::protocol_models
