// A coordinator that is cut off (docs/protocol.md, section 12): which silent processes it expels.
//
// Two shards have all partitions, and their copies: the attempt is lost if both are expelled. Time
// passes in ticks. An alive process sends a heartbeat in each tick. Processes freeze for good. The
// coordinator's network is cut, with or without its parent's calls; after a cut, messages arrive in
// any order and up to two ticks late (no later than the cut was long), because they are sent again.
// The parent replaces a process that is expelled.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_CUT_OFF_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_CUT_OFF_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class CutOff {
 public:
  struct Options {
    // The coordinator expels no process while it hears none.
    bool suspects_itself = true;
    // The time in which it heard no process counts against none.
    bool forgives = true;
    // If the parent calls all the time, processes that are silent for kAllFrozen ticks are frozen.
    bool trusts_calls = true;
    // The time in which the parent did not call does not count.
    bool restarts_calls = true;
    uint8_t freezes = 2;
    uint8_t cuts = 2;
  };

  static constexpr int kShards = 2;
  // In ticks: the heartbeat timeout, when the coordinator doubts its own network, the longest cut
  // in which the parent calls and in which it does not, and how late messages may be after a cut.
  static constexpr int kTimeout = 3;
  static constexpr int kDoubt = 2;
  static constexpr int kLongestCut = 3 * kTimeout;
  static constexpr int kAllFrozen = 5 * kTimeout;
  static constexpr int kLongestCutOfAll = kAllFrozen + 1;
  static constexpr int kLate = 2;

  enum Network : uint8_t { kWhole, kCut, kCutFromParent };

  struct Shard {
    uint8_t frozen, expelled;
    uint8_t silent;  // for so many ticks
    uint8_t sent;    // its message of this tick has arrived
    uint8_t late;    // ticks for which its messages may still be missing after a cut
  };
  struct State {
    Shard shards[kShards];
    Network network;
    uint8_t cut_for, whole_for;
    uint8_t quiet;  // ticks without any message
    uint8_t calls;  // ticks with calls of the parent, and without any message
    uint8_t freezes, cuts;
    uint8_t wrong;  // a living process was expelled
  };

  explicit CutOff(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  // All faults are mended: all processes live, and are heard.
  bool Done(const State& state) const;

 private:
  void AddFaults(const State& state, Steps<State>& steps) const;
  void AddMessage(const State& state, int shard, Steps<State>& steps) const;
  void AddTick(const State& state, Steps<State>& steps) const;
  void Judge(State& state) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_CUT_OFF_H_
