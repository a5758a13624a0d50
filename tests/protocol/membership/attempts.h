// Attempts and the end of a job (docs/protocol.md, sections 6.1 and 11, R11): claims by exclusive
// create, checkpoint indexes, and up to three coordinators that take each other for dead. The
// answer to a claim may be lost; then the coordinator repeats it.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_ATTEMPTS_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_ATTEMPTS_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Attempts {
 public:
  enum class Recognition : uint8_t { kNone, kByCounter, kByIncarnation };

  struct Options {
    // R11: the end of the job is the next claim; else a coordinator ends the job without a claim.
    bool end_is_claimed = true;
    // R11: restoring uses the newest index of the highest claimed attempt, else that claim's
    // parent; else the newest index of all.
    bool restores_by_claims = true;
    // R11: how a coordinator recognizes that a claim that exists is its own. Counters alone do not
    // suffice: two coordinators that read the same claims take the same one.
    Recognition recognition = Recognition::kByIncarnation;
    uint8_t lost_answers = 1;
  };

  static constexpr int kCoordinators = 3;
  static constexpr int kSteps = 3;
  static constexpr int kClaims = 6;

  enum Phase : uint8_t {
    kOff,
    kStarts,
    kHasRead,
    kRepeatsClaim,
    kRuns,
    kRepeatsEnd,
    kEnded,
    kGone
  };

  struct Claim {
    uint8_t ends, parent, step;
    uint8_t maker;
  };
  struct Coordinator {
    Phase phase;
    uint8_t attempt, step;
    uint8_t claims;  // those that it has read
  };
  struct End {
    uint8_t attempt, highest;  // the attempt that ends the job, and the highest claimed one
  };
  struct State {
    Queue<Claim, kClaims> claims;
    uint8_t indexes[kClaims];  // by attempt: the steps that have a checkpoint index
    Coordinator coordinators[kCoordinators];
    Queue<End, kCoordinators> ends;
    uint8_t starts, lost_answers;
    uint8_t turned;  // a coordinator has exited because of its own claim
  };

  explicit Attempts(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  // All coordinators have ended or crashed.
  bool Done(const State& state) const;

 private:
  bool TakesForOwn(const Claim& claim, int coordinator, bool end) const;
  void AddClaiming(const State& state, int coordinator, Steps<State>& steps) const;
  void AddEnding(const State& state, int coordinator, Steps<State>& steps) const;
  void AddReading(const State& state, int coordinator, Steps<State>& steps) const;
  void AddTraining(const State& state, int coordinator, Steps<State>& steps) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_ATTEMPTS_H_
