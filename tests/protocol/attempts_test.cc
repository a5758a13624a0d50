#include "tests/protocol/attempts.h"

#include <gtest/gtest.h>

#include "tests/protocol/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(AttemptsTest, HoldsWithThreeCoordinators) {
  ExpectHolds(Attempts(Attempts::Options()), 343'204, Progress::kNoDeadlock);
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

}  // namespace
}  // namespace sluice::protocol_models
