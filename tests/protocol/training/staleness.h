// Bounded staleness (docs/protocol.md, section 9): leases, clocks, pulls that wait, the end of the
// data.
//
// Up to three workers, the arbiter and a second shard. A clock counts a member's updates; a member
// whose clock is k may compute its next update while no lease holder is more than `bound` behind.
// The second shard learns each clock later than the arbiter.
#ifndef SLUICE_TESTS_PROTOCOL_TRAINING_STALENESS_H_
#define SLUICE_TESTS_PROTOCOL_TRAINING_STALENESS_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Staleness {
 public:
  // The clock at which a member without a lease begins its next one.
  enum class Base {
    kLowestAtLease,  // R13: raised to the lowest clock of the lease holders, when it gets the lease
    kLowestAtJoin,   // raised only when it joins
    kOwn,            // never raised
  };
  // When the second shard answers a pull that the arbiter has answered.
  enum class SecondShard {
    kWaitsForClocks,  // R13: once the clocks of the lease holders that the arbiter names are there
    kAnswersAtOnce,
  };

  struct Options {
    uint8_t workers = 2;
    uint8_t bound = 1;
    uint8_t samples = 6;
    uint8_t lease = 2;  // samples
    uint8_t faults = 2;
    uint8_t worker_crashes = 0;
    uint8_t suspicions = 0;
    uint8_t joins = 0;

    // The rules. Only lease holders count for the lowest clock.
    bool only_holders_count = true;
    Base base = Base::kLowestAtLease;
    // Waiting pulls are checked again at each change of members and leases; else at updates only.
    bool changes_wake_pulls = true;
    SecondShard second_shard = SecondShard::kWaitsForClocks;
  };

  static constexpr int kWorkers = 3;

  enum Phase : uint8_t {
    kWantsLease,
    kHasLease,
    kPullWaits,
    kComputes,
    kFinished,
    kWaitsForSecondShard,
  };

  struct Worker {
    uint8_t alive;
    Phase phase;
    uint8_t clock;
  };
  // The shards' record of a worker.
  struct Record {
    uint8_t member, lease, clock;
    uint8_t second_clock;  // at the second shard
    uint8_t holders;       // those that the arbiter named in its answer
  };
  struct State {
    uint8_t arbiter_exceeds, second_exceeds;
    uint8_t faults, worker_crashes, suspicions, joins, samples;
    Worker workers[kWorkers];
    Record records[kWorkers];
  };

  explicit Staleness(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const;

 private:
  int Lowest(const State& state) const;
  bool MayCompute(const State& state, int worker) const;
  void AnswerPull(State& state, int worker) const;
  void WakePulls(State& state) const;
  void GiveLease(State& state, int worker) const;
  void AddMemberSteps(const State& state, int worker, Steps<State>& steps) const;
  void AddSecondShardSteps(const State& state, int worker, Steps<State>& steps) const;
  void AddFaults(const State& state, int worker, Steps<State>& steps) const;
  void AddMembershipSteps(const State& state, int worker, Steps<State>& steps) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_TRAINING_STALENESS_H_
