#include "tests/protocol/membership/split_cluster.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(SplitClusterTest, HoldsWithTwoFaults) {
  SplitCluster::Options options;
  options.faults = 2;
  ExpectHolds(SplitCluster(options), 560'361);
}

TEST(SplitClusterTest, WithoutR4BothSidesContinue) {
  SplitCluster::Options options;
  options.claim = false;
  ExpectViolation(SplitCluster(options), "both sides continue within one attempt", 12);
}

TEST(SplitClusterTest, WithoutR1AnInstallOfAnOlderPauseTakesACommittedVersionBack) {
  SplitCluster::Options options;
  options.installs_name_pause = false;
  ExpectViolation(SplitCluster(options), "a committed version is taken back", 13);
}

TEST(SplitClusterTest, WithoutTheRefusalOfR1AnOldCoordinatorBlocksTheNextOne) {
  SplitCluster::Options options;
  options.refused_exits = false;
  ExpectViolation(SplitCluster(options), "no step is possible, and the job is not done", 4);
}

}  // namespace
}  // namespace sluice::protocol_models
