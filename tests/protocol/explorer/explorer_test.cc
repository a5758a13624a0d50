#include "tests/protocol/explorer/explorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace sluice::protocol_models {
namespace {

using ::testing::ElementsAre;

// A counter from 0 to `end`, which may jump to a trap.
struct Counter {
  struct State {
    uint8_t value;
    uint8_t trapped;
    uint8_t zeros[300];
    uint8_t last;
  };

  State Initial() const { return State{}; }

  void AddSteps(const State& state, Steps<State>& steps) const {
    State next = state;
    next.last = state.last == 0;
    if (state.trapped != 0) {
      if (trap_turns) steps.Add(next, "turns");
      return;
    }
    next = state;
    if (state.value < end) {
      ++next.value;
      steps.Add(next, "counts to %d", next.value);
      if (state.value + 2 <= end) {
        ++next.value;
        steps.Add(next, "jumps to %d", next.value);
      }
    }
    next = state;
    next.trapped = 1;
    if (trap_at == state.value) steps.AddFault(next, "is trapped");
    next = state;
    next.value = end;
    if (only_a_fault_ends && state.value == end - 1) steps.AddFault(next, "is pushed");
  }

  std::string Violation(const State& state) const {
    return state.value == forbidden ? "the counter has the forbidden value" : "";
  }

  bool Done(const State& state) const { return state.value == done_at; }

  uint8_t end = 9;
  uint8_t done_at = 9;
  uint8_t forbidden = 255;
  uint8_t trap_at = 255;
  bool trap_turns = false;
  bool only_a_fault_ends = false;
};

TEST(ExplorerTest, CountsEveryState) {
  Exploration found = Explore(Counter());
  EXPECT_EQ(found.violation, "");
  EXPECT_EQ(found.states, 10u);
  EXPECT_TRUE(found.trace.empty());
}

TEST(ExplorerTest, ReturnsAShortestTraceToAViolation) {
  Counter counter;
  counter.forbidden = 4;
  Exploration found = Explore(counter);
  EXPECT_EQ(found.violation, "the counter has the forbidden value");
  EXPECT_THAT(found.trace, ElementsAre("jumps to 2", "jumps to 4"));
}

TEST(ExplorerTest, ReportsAViolationInTheInitialState) {
  Counter counter;
  counter.forbidden = 0;
  Exploration found = Explore(counter);
  EXPECT_EQ(found.violation, "the counter has the forbidden value");
  EXPECT_TRUE(found.trace.empty());
}

TEST(ExplorerTest, ReportsAStateWithoutStepsThatIsNotDone) {
  Counter counter;
  counter.trap_at = 3;
  for (Progress progress : {Progress::kDoneStaysReachable, Progress::kNoDeadlock}) {
    Exploration found = Explore(counter, progress);
    EXPECT_EQ(found.violation, "no step is possible, and the job is not done");
    EXPECT_THAT(found.trace, ElementsAre("counts to 1", "jumps to 3", "[fault] is trapped"));
  }
}

TEST(ExplorerTest, ReportsACycleThatTheJobCannotLeave) {
  Counter counter;
  counter.trap_at = 2;
  counter.trap_turns = true;
  Exploration found = Explore(counter);
  EXPECT_EQ(found.violation, "the job can no longer be done");
  EXPECT_THAT(found.trace, ElementsAre("jumps to 2", "[fault] is trapped"));

  EXPECT_EQ(Explore(counter, Progress::kNoDeadlock).violation, "");
}

TEST(ExplorerTest, DoesNotCountAFaultAsProgress) {
  Counter counter;
  counter.end = 8;
  counter.only_a_fault_ends = true;
  EXPECT_EQ(Explore(counter).violation, "no step is possible, and the job is not done");

  counter.done_at = 8;
  EXPECT_EQ(Explore(counter).violation, "");
}

TEST(ExplorerTest, StopsAtTheLimitOfStates) {
  Exploration found = Explore(Counter(), Progress::kDoneStaysReachable, Limits{5});
  EXPECT_EQ(found.violation, "the model has more than 5 states");
}

TEST(StateSetTest, KeepsStatesWhole) {
  struct State {
    uint8_t bytes[1000];
  };
  StateSet set;
  State state{};
  EXPECT_EQ(set.Insert(state), (std::pair<uint32_t, bool>(0, true)));
  for (int i = 0; i < 1000; ++i) {
    state = State{};
    state.bytes[i] = 1;
    state.bytes[(i * 7 + 300) % 1000] = 2;
    EXPECT_EQ(set.Insert(state), (std::pair<uint32_t, bool>(i + 1, true)));
  }
  for (int i = 0; i < 1000; ++i) {
    state = State{};
    state.bytes[i] = 1;
    state.bytes[(i * 7 + 300) % 1000] = 2;
    EXPECT_EQ(set.Insert(state), (std::pair<uint32_t, bool>(i + 1, false)));
    State stored = set.Get<State>(i + 1);
    EXPECT_EQ(std::memcmp(&stored, &state, sizeof(State)), 0);
  }
}

}  // namespace
}  // namespace sluice::protocol_models
