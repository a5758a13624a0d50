#include "tests/protocol/training/staleness.h"

#include <algorithm>

namespace sluice::protocol_models {
namespace {

using State = Staleness::State;
using Record = Staleness::Record;

int Highest(const State& state) {
  int highest = 0;
  for (const Record& record : state.records) {
    if (record.member) highest = std::max<int>(highest, record.clock);
  }
  return highest;
}

bool AnyLease(const State& state) {
  for (const Record& record : state.records) {
    if (record.member && record.lease) return true;
  }
  return false;
}

// A new view: both shards have the same clocks, and pulls between them begin again.
void ChangeView(State& state) {
  for (int w = 0; w < Staleness::kWorkers; ++w) {
    Record& record = state.records[w];
    Staleness::Worker& worker = state.workers[w];
    record.second_clock = record.clock;
    if (worker.alive && record.member && worker.phase == Staleness::kWaitsForSecondShard) {
      worker.phase = Staleness::kHasLease;
      record.holders = 0;
    }
  }
}

}  // namespace

State Staleness::Initial() const {
  State state{};
  for (int w = 0; w < options_.workers; ++w) state.workers[w].alive = state.records[w].member = 1;
  state.samples = options_.samples;
  state.faults = options_.faults;
  state.worker_crashes = options_.worker_crashes;
  state.suspicions = options_.suspicions;
  state.joins = options_.joins;
  return state;
}

bool Staleness::Done(const State& state) const {
  if (state.samples || AnyLease(state)) return false;
  for (const Worker& worker : state.workers) {
    if (worker.alive && worker.phase != kFinished) return false;
  }
  return true;
}

std::string Staleness::Violation(const State& state) const {
  if (state.arbiter_exceeds) return "the arbiter answers a pull beyond the bound";
  if (state.second_exceeds) return "the second shard answers a pull beyond the bound";
  for (int w = 0; w < kWorkers; ++w) {
    const Worker& worker = state.workers[w];
    if (!worker.alive || worker.phase != kComputes || !state.records[w].member) continue;
    for (const Record& record : state.records) {
      if (record.member && record.lease && worker.clock > record.clock + options_.bound) {
        return "a worker computes beyond the bound";
      }
    }
  }
  return "";
}

// kNone if no member counts.
int Staleness::Lowest(const State& state) const {
  int lowest = kNone;
  for (const Record& record : state.records) {
    if (record.member && (record.lease || !options_.only_holders_count)) {
      lowest = std::min<int>(lowest, record.clock);
    }
  }
  return lowest;
}

bool Staleness::MayCompute(const State& state, int w) const {
  int lowest = Lowest(state);
  return lowest == kNone || state.workers[w].clock <= lowest + options_.bound;
}

void Staleness::AnswerPull(State& state, int w) const {
  state.workers[w].phase = kWaitsForSecondShard;
  state.records[w].holders = 0;
  for (int other = 0; other < kWorkers; ++other) {
    const Record& record = state.records[other];
    if (!record.member || !record.lease) continue;
    if (other != w) Include(state.records[w].holders, other);
    if (state.workers[w].clock > record.clock + options_.bound) state.arbiter_exceeds = 1;
  }
}

void Staleness::WakePulls(State& state) const {
  for (int w = 0; w < kWorkers; ++w) {
    if (state.workers[w].alive && state.records[w].member && state.workers[w].phase == kPullWaits &&
        MayCompute(state, w)) {
      AnswerPull(state, w);
    }
  }
}

void Staleness::GiveLease(State& state, int w) const {
  Record& record = state.records[w];
  int lowest = Lowest(state);
  int base = lowest != kNone ? lowest : Highest(state);
  record.lease = std::min(state.samples, options_.lease);
  state.samples = Byte(state.samples - record.lease);
  if (options_.base == Base::kLowestAtLease) record.clock = std::max(record.clock, Byte(base));
  record.second_clock = std::max(record.second_clock, record.clock);
  state.workers[w].clock = record.clock;
}

void Staleness::AddSteps(const State& state, Steps<State>& steps) const {
  if (state.arbiter_exceeds || state.second_exceeds) return;
  for (int w = 0; w < kWorkers; ++w) {
    if (state.workers[w].alive && state.records[w].member) {
      AddMemberSteps(state, w, steps);
      AddSecondShardSteps(state, w, steps);
      AddFaults(state, w, steps);
    }
    AddMembershipSteps(state, w, steps);
  }
}

void Staleness::AddMemberSteps(const State& state, int w, Steps<State>& steps) const {
  State next = state;
  Worker& worker = next.workers[w];
  Record& record = next.records[w];
  switch (worker.phase) {
    case kWantsLease:
      if (record.lease) {
        worker.phase = kHasLease;
        steps.Add(next, "W%d receives the rest of its lease again", w);
      } else if (state.samples) {
        GiveLease(next, w);
        worker.phase = kHasLease;
        if (options_.changes_wake_pulls) WakePulls(next);
        steps.Add(next, "W%d receives a lease at clock %d", w, record.clock);
      } else if (!AnyLease(state)) {
        worker.phase = kFinished;
        steps.Add(next, "W%d finds neither samples nor leases, and finishes", w);
      }
      break;
    case kHasLease:
      if (MayCompute(next, w)) {
        AnswerPull(next, w);
        steps.Add(next, "W%d pulls at clock %d, and the arbiter answers", w, worker.clock);
      } else {
        worker.phase = kPullWaits;
        steps.Add(next, "W%d pulls at clock %d, and the pull waits", w, worker.clock);
      }
      break;
    case kComputes:
      ++record.clock;
      --record.lease;
      worker.clock = record.clock;
      worker.phase = record.lease ? kHasLease : kWantsLease;
      WakePulls(next);
      steps.Add(next, "W%d's update is applied: its clock is %d", w, record.clock);
      break;
    case kPullWaits:
    case kFinished:
    case kWaitsForSecondShard:
      break;
  }
}

void Staleness::AddSecondShardSteps(const State& state, int w, Steps<State>& steps) const {
  const Record& before = state.records[w];
  State next = state;
  if (before.second_clock < before.clock) {
    ++next.records[w].second_clock;
    steps.Add(next, "the second shard applies W%d's update", w);
  }
  if (state.workers[w].phase != kWaitsForSecondShard || before.second_clock != before.clock) return;

  bool exceeds = false;
  for (int other = 0; other < kWorkers; ++other) {
    const Record& record = state.records[other];
    exceeds = exceeds || (Contains(before.holders, other) && record.member &&
                          state.workers[w].clock > record.second_clock + options_.bound);
  }
  if (exceeds && options_.second_shard == SecondShard::kWaitsForClocks) return;
  next = state;
  next.workers[w].phase = kComputes;
  next.records[w].holders = 0;
  next.second_exceeds = exceeds;
  steps.Add(next, "the second shard answers W%d's pull", w);
}

void Staleness::AddFaults(const State& state, int w, Steps<State>& steps) const {
  if (!state.faults) return;
  State next = state;
  --next.faults;
  if (state.worker_crashes) {
    --next.worker_crashes;
    next.workers[w] = Worker{};
    steps.AddFault(next, "W%d crashes", w);
  }
  if (state.suspicions) {
    next = state;
    --next.faults, --next.suspicions;
    next.samples = Byte(next.samples + state.records[w].lease);
    next.records[w] = Record{};
    next.workers[w].phase = kWantsLease;
    ChangeView(next);
    if (options_.changes_wake_pulls) WakePulls(next);
    steps.AddFault(next, "W%d is expelled wrongly", w);
  }
}

void Staleness::AddMembershipSteps(const State& state, int w, Steps<State>& steps) const {
  const bool alive = state.workers[w].alive;
  const bool member = state.records[w].member;
  State next = state;
  Worker& worker = next.workers[w];
  Record& record = next.records[w];
  if (member && !alive) {
    next.samples = Byte(next.samples + record.lease);
    record = Record{};
    ChangeView(next);
    if (options_.changes_wake_pulls) WakePulls(next);
    steps.Add(next, "a view without W%d: its lease is returned", w);
  }
  if (!member && alive) {
    int lowest = Lowest(state);
    int base = lowest == kNone ? Highest(state) : lowest;
    record.member = 1;
    record.clock = options_.base == Base::kLowestAtJoin ? Byte(base) : 0;
    worker.phase = kWantsLease;
    worker.clock = record.second_clock = record.clock;
    ChangeView(next);
    if (options_.changes_wake_pulls) WakePulls(next);
    steps.Add(next, "a view with W%d, a new incarnation", w);
  }
  if (member || alive) return;
  bool none = true;
  for (const Worker& other : state.workers) none = none && !other.alive;
  worker.alive = 1;
  worker.phase = kWantsLease;
  if (none) {
    steps.Add(next, "W%d starts", w);
  } else if (state.joins) {
    --next.joins;
    steps.AddFault(next, "W%d starts", w);
  }
}

}  // namespace sluice::protocol_models
