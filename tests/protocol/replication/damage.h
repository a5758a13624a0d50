// Damaged claims and checkpoint indexes (docs/protocol.md, section 6.1; docs/checkpoints.md,
// "Damage").
//
// Coordinators run one after another. Each one reads the storage, claims an attempt, and trains and
// writes indexes until it crashes or has trained all steps. Files become unreadable at any moment.
// The model remembers what a damaged claim said, and so knows which checkpoint is the right one.
#ifndef SLUICE_TESTS_PROTOCOL_REPLICATION_DAMAGE_H_
#define SLUICE_TESTS_PROTOCOL_REPLICATION_DAMAGE_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Damage {
 public:
  struct Options {
    uint8_t crashes = 3;
    uint8_t damages = 3;

    // R11: the number of a damaged claim counts as claimed.
    bool damaged_claims_count = true;
    // Below a damaged claim, whose parent is unknown, the next lower attempt's checkpoints are
    // used; else the job starts from zero.
    bool damaged_claims_lead_to_lower_attempt = true;
    // If the newest index of an attempt is damaged, an older one is used; else the claim's parent.
    bool older_indexes_are_used = true;
  };

  static constexpr int kSteps = 3;
  static constexpr int kAttempts = 6;

  enum Phase : uint8_t { kReads, kHasRead, kTrains, kEnded };
  enum File : uint8_t { kMissing, kWhole, kDamaged };

  // Attempt 0 means none: the job starts from zero.
  struct Checkpoint {
    uint8_t attempt, step;
  };
  struct Claim {
    File file;
    Checkpoint parent;
  };
  struct State {
    Phase phase;
    uint8_t wrong_checkpoint, starts_from_zero;
    uint8_t attempt, step, crashes, damages;
    Checkpoint parent;  // that the coordinator has chosen
    Claim claims[kAttempts];
    File indexes[kAttempts][kSteps + 1];
  };

  explicit Damage(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const { return state.phase == kEnded; }

 private:
  void AddReading(const State& state, Steps<State>& steps) const;
  void AddClaim(const State& state, Steps<State>& steps) const;
  void AddTraining(const State& state, Steps<State>& steps) const;
  void AddDamages(const State& state, Steps<State>& steps) const;
  Checkpoint Choose(const State& state, int attempt) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_REPLICATION_DAMAGE_H_
