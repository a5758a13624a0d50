#include "tests/protocol/membership/reconnect.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(ReconnectTest, Holds) { ExpectHolds(Reconnect(Reconnect::Options()), 41); }

TEST(ReconnectTest, HoldsWhenTheOldStreamStaysOpen) {
  Reconnect::Options options;
  options.closes_old_stream = false;
  ExpectHolds(Reconnect(options), 38);
}

TEST(ReconnectTest, HoldsWhenTheWorkerOmitsBlocksThatTheShardReports) {
  Reconnect::Options options;
  options.omits_known_blocks = true;
  ExpectHolds(Reconnect(options), 34);
}

TEST(ReconnectTest, WithoutR9ABlockIsAddedTwice) {
  Reconnect::Options options;
  options.ignores_repetitions = false;
  options.closes_old_stream = false;
  ExpectViolation(Reconnect(options), "a block is added twice", 5);
}

}  // namespace
}  // namespace sluice::protocol_models
