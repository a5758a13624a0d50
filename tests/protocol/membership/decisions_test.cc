#include "tests/protocol/membership/decisions.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = Decisions::Options;

constexpr char kWrongFactor[] = "a step closes with the factor of another evaluation";

TEST(DecisionsTest, HoldsWithTwoCoordinators) {
  Options options;
  options.restorations = 0;
  ExpectHolds(Decisions(options), 1'405'506);
}

TEST(DecisionsTest, HoldsWhenRestored) {
  Options options;
  options.second_coordinators = 0;
  ExpectHolds(Decisions(options), 65'663);
}

TEST(DecisionsTest, EvaluationMustEndBeforeTrainingContinues) {
  Options options;
  options.barrier_waits_for_decision = false;
  ExpectViolation(Decisions(options), kWrongFactor, 6);
}

TEST(DecisionsTest, RepliesMustHaveDecisions) {
  Options options;
  options.replies_have_decisions = false;
  ExpectViolation(Decisions(options), kWrongFactor, 18);
}

TEST(DecisionsTest, VersionMustDecideOnce) {
  Options options;
  options.decides_once = false;
  ExpectViolation(Decisions(options), kWrongFactor, 15);
}

TEST(DecisionsTest, CheckpointMustHaveDecisions) {
  Options options;
  options.index_has_decisions = false;
  ExpectViolation(Decisions(options), kWrongFactor, 14);
}

TEST(DecisionsTest, FirstVersionMustBeEvaluated) {
  Options options;
  options.first_version_is_evaluated = false;
  ExpectViolation(Decisions(options), kWrongFactor, 6);
}

TEST(DecisionsTest, CopyMustWaitAtBarrier) {
  Options options;
  options.copies_wait_at_barrier = false;
  ExpectViolation(Decisions(options), "a copy is updated with another factor than its partition",
                  6);
}

TEST(DecisionsTest, InstallMustHaveDecisions) {
  Options options;
  options.install_has_decisions = false;
  ExpectViolation(Decisions(options), kWrongFactor, 11);
}

}  // namespace
}  // namespace sluice::protocol_models
