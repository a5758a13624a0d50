#include "tests/protocol/replication/damage.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(DamageTest, Holds) { ExpectHolds(Damage(Damage::Options()), 105'199); }

TEST(DamageTest, WithoutTheNumbersOfDamagedClaimsInR11TheJobStartsFromZero) {
  Damage::Options options;
  options.damaged_claims_count = false;
  ExpectViolation(Damage(options), "the job starts from zero beside checkpoints", 7);
}

TEST(DamageTest, WithoutTheNextLowerAttemptTheJobStartsFromZero) {
  Damage::Options options;
  options.damaged_claims_lead_to_lower_attempt = false;
  ExpectViolation(Damage(options), "the job starts from zero beside checkpoints", 10);
}

TEST(DamageTest, WithoutTheNextOlderIndexTheJobStartsFromZero) {
  Damage::Options options;
  options.older_indexes_are_used = false;
  ExpectViolation(Damage(options), "the job starts from zero beside checkpoints", 9);
}

}  // namespace
}  // namespace sluice::protocol_models
