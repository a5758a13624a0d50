#include "tests/protocol/membership/attempts.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(AttemptsTest, HoldsWithThreeCoordinators) {
  ExpectHolds(Attempts(Attempts::Options()), 932'091, Progress::kNoDeadlock);
}

TEST(AttemptsTest, WithoutR11ForTheEndAnAbandonedAttemptEndsTheJob) {
  Attempts::Options options;
  options.end_is_claimed = false;
  ExpectViolation(Attempts(options), "an attempt ends the job after a higher one was claimed", 11,
                  Progress::kNoDeadlock);
}

TEST(AttemptsTest, WithoutR11ForTheParentAnAbandonedHistoryWins) {
  Attempts::Options options;
  options.restores_by_claims = false;
  ExpectViolation(Attempts(options), "an attempt is restored from an abandoned history", 11,
                  Progress::kNoDeadlock);
}

TEST(AttemptsTest, WithoutR11ForLostAnswersACoordinatorExitsBecauseOfItsOwnClaim) {
  Attempts::Options options;
  options.recognition = Attempts::Recognition::kNone;
  ExpectViolation(Attempts(options), "a coordinator exits because of its own claim", 4,
                  Progress::kNoDeadlock);
}

TEST(AttemptsTest, WithoutTheIncarnationTwoCoordinatorsHaveOneAttempt) {
  Attempts::Options options;
  options.recognition = Attempts::Recognition::kByCounter;
  options.lost_answers = 0;
  ExpectViolation(Attempts(options), "two coordinators have one attempt", 6, Progress::kNoDeadlock);
}

}  // namespace
}  // namespace sluice::protocol_models
