// A stream that breaks and is opened again within one view (docs/protocol.md, section 7.3, R9).
//
// One worker pushes a gradient of two blocks to one shard. The stream breaks once, and the worker
// sends the gradient again on a second stream, while blocks of the first may still arrive.
#ifndef SLUICE_TESTS_PROTOCOL_MEMBERSHIP_RECONNECT_H_
#define SLUICE_TESTS_PROTOCOL_MEMBERSHIP_RECONNECT_H_

#include <cstdint>
#include <string>

#include "tests/protocol/explorer/explorer.h"
#include "tests/protocol/explorer/state_types.h"

namespace sluice::protocol_models {

class Reconnect {
 public:
  struct Options {
    // R9: a repeated block is ignored; else the shard only ignores blocks of a complete member.
    bool ignores_repetitions = true;
    // R9: a new stream closes the old one.
    bool closes_old_stream = true;
    // The shard reports the blocks that it has, and the worker omits them.
    bool omits_known_blocks = false;
  };

  static constexpr int kBlocks = 2;

  struct State {
    uint8_t stream;  // the one that the worker uses
    uint8_t sent;    // blocks, on that stream
    Queue<uint8_t, kBlocks> channels[2];
    uint8_t added[kBlocks];
    uint8_t known;  // the blocks that have arrived
    uint8_t complete, old_is_closed, may_break;
  };

  explicit Reconnect(const Options& options) : options_(options) {}

  State Initial() const;
  void AddSteps(const State& state, Steps<State>& steps) const;
  std::string Violation(const State& state) const;
  bool Done(const State& state) const { return state.complete; }

 private:
  void AddArrival(const State& state, int stream, Steps<State>& steps) const;

  const Options options_;
};

}  // namespace sluice::protocol_models

#endif  // SLUICE_TESTS_PROTOCOL_MEMBERSHIP_RECONNECT_H_
