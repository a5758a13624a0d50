// Runs of the models that are too large for every day; README.md says how to start them.
#include <gtest/gtest.h>

#include "tests/protocol/expectations.h"
#include "tests/protocol/initialization.h"
#include "tests/protocol/split_cluster.h"

namespace sluice::protocol_models {
namespace {

TEST(InitializationFullTest, HoldsWhenAWorkerIsSuspectedAndAShardOrCoordinatorCrashes) {
  Initialization::Options options;
  options.suspicions = options.shard_crashes = options.coordinator_crashes = 1;
  ExpectHolds(Initialization(options), 1'442'689);
}

TEST(InitializationFullTest, HoldsWithTwoCoordinatorsWhenAWorkerCrashes) {
  Initialization::Options options;
  options.second_coordinators = options.worker_crashes = 1;
  ExpectHolds(Initialization(options), 1'169'693);
}

TEST(SplitClusterFullTest, HoldsWithThreeFaults) {
  ExpectHolds(SplitCluster(SplitCluster::Options()), 2'302'622);
}

}  // namespace
}  // namespace sluice::protocol_models
