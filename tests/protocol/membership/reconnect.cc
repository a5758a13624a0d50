#include "tests/protocol/membership/reconnect.h"

namespace sluice::protocol_models {

Reconnect::State Reconnect::Initial() const {
  State state{};
  state.may_break = 1;
  return state;
}

std::string Reconnect::Violation(const State& state) const {
  for (uint8_t added : state.added) {
    if (added > 1) return "a block is added twice";
  }
  return "";
}

void Reconnect::AddSteps(const State& state, Steps<State>& steps) const {
  State next = state;
  if (state.sent < kBlocks) {
    ++next.sent;
    if (options_.omits_known_blocks && state.stream == 1 && Contains(state.known, state.sent)) {
      steps.Add(next, "the worker omits block %d, which the shard has", state.sent);
    } else {
      next.channels[state.stream].Push(state.sent);
      steps.Add(next, "the worker sends block %d on stream %d", state.sent, state.stream);
    }
  }
  for (int stream = 0; stream < 2; ++stream) {
    if (!state.channels[stream].Empty()) AddArrival(state, stream, steps);
  }
  if (state.may_break && state.stream == 0) {
    next = state;
    next.stream = 1;
    next.sent = 0;
    next.may_break = 0;
    next.old_is_closed = options_.closes_old_stream;
    steps.AddFault(next, "the stream breaks, and the worker opens another one");
  }
  if (!state.channels[0].Empty() && state.stream == 1) {
    next = state;
    next.channels[0].Clear();
    steps.Add(next, "the network loses the rest of the old stream");
  }
}

void Reconnect::AddArrival(const State& state, int stream, Steps<State>& steps) const {
  State next = state;
  const uint8_t block = next.channels[stream].Pop();
  if (stream == 0 && state.old_is_closed) {
    steps.Add(next, "the shard drops block %d of the old stream", block);
  } else if (state.complete) {
    steps.Add(next, "the shard ignores block %d: the worker is complete", block);
  } else if (options_.ignores_repetitions && Contains(state.known, block)) {
    steps.Add(next, "the shard ignores block %d: it has arrived before", block);
  } else {
    ++next.added[block];
    Include(next.known, block);
    next.complete = next.known == 3;
    steps.Add(next, "the shard adds block %d of stream %d", block, stream);
  }
}

}  // namespace sluice::protocol_models
