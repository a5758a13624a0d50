#include "tests/protocol/training/reduction_tree.h"

#include <gtest/gtest.h>

namespace sluice::protocol_models {
namespace {

// A worker with one range sends at most 2·log2(M) nodes.
int BoundOf(const TreeOptions& options) { return 2 * options.levels; }

TEST(ReductionTreeTest, HoldsForRangesOfEightMicrobatches) {
  TreeOptions options;
  options.levels = 3;
  TreeFindings findings = EnumerateViewChanges(options);
  EXPECT_EQ(findings.violations, 0) << findings.first_violation;
  EXPECT_EQ(findings.cases, 3'240);
  EXPECT_LE(findings.most_nodes, BoundOf(options));
}

TEST(ReductionTreeTest, HoldsForAnySetsOfFourMicrobatches) {
  TreeOptions options;
  options.contiguous = false;
  TreeFindings findings = EnumerateViewChanges(options);
  EXPECT_EQ(findings.violations, 0) << findings.first_violation;
  EXPECT_EQ(findings.cases, 10'449);
}

TEST(ReductionTreeTest, OldNodesInsideTheNewAssignmentAreCorrectToo) {
  TreeOptions options;
  options.levels = 3;
  options.rule = TreeRule::kOldNodesInside;
  TreeFindings findings = EnumerateViewChanges(options);
  EXPECT_EQ(findings.violations, 0) << findings.first_violation;
  EXPECT_EQ(findings.cases, 3'240);
  EXPECT_EQ(findings.most_nodes, 6);
}

TEST(ReductionTreeTest, OldNodesInsideTheNewAssignmentGrowBeyondTheBound) {
  TreeGrowth growth = KeepOldNodes(3);
  EXPECT_EQ(growth.sets, 2'909u);
  EXPECT_EQ(growth.most_nodes, 8u);
}

TEST(ReductionTreeTest, NodesPartlyOutsideTheNewAssignmentOverlap) {
  TreeOptions options;
  options.rule = TreeRule::kOldNodesThatTouch;
  TreeFindings findings = EnumerateViewChanges(options);
  EXPECT_EQ(findings.first_violation, "a microbatch is added twice");
  EXPECT_EQ(findings.violations, 126);
}

TEST(ReductionTreeTest, NodesThatAShardKeepsAfterTheInstallOverlap) {
  TreeOptions options;
  options.install_drops_nodes = false;
  TreeFindings findings = EnumerateViewChanges(options);
  EXPECT_EQ(findings.first_violation, "a microbatch is added twice");
  EXPECT_EQ(findings.violations, 1'981);
  EXPECT_EQ(findings.cases, 2'940);
}

}  // namespace
}  // namespace sluice::protocol_models
