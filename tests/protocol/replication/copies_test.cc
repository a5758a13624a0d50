#include "tests/protocol/replication/copies.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = Copies::Options;

constexpr char kDeadlock[] = "no step is possible, and the job is not done";
constexpr char kTakenBack[] = "a committed version is taken back";

// Shard 2 is the target of partition 0.
Options WithMove() {
  Options options;
  options.shards = 3;
  options.plan = Copies::Plan::kMove;
  options.changes = 1;
  return options;
}

// Shard 2 has a whole copy of partition 1 and receives one of partition 0, both of one owner.
Options WithOneOwner() {
  Options options = WithMove();
  options.one_owner = true;
  return options;
}

// Owner, follower and target of a partition; the owner and a coordinator die.
Options WithLostInstall() {
  Options options;
  options.shards = 3;
  options.plan = Copies::Plan::kMove;
  options.losers_first = false;
  options.shard_crashes = options.coordinator_crashes = 1;
  return options;
}

TEST(CopiesTest, HoldsWhileCopiesAreMadeWhenAShardCrashes) {
  Options options;
  options.whole_at_start = false;
  options.shard_crashes = options.changes = 1;
  ExpectHolds(Copies(options), 34'290);
}

TEST(CopiesTest, HoldsWhenAShardCrashesAndANewOneReceivesCopies) {
  Options options;
  options.shards = 3;
  options.third_in_view = false;
  options.shard_crashes = options.changes = 1;
  ExpectHolds(Copies(options), 36'055);
}

TEST(CopiesTest, HoldsWhenAShardAndACoordinatorCrash) {
  Options options;
  options.shards = 3;
  options.shard_crashes = options.coordinator_crashes = 1;
  ExpectHolds(Copies(options), 30'613);
}

TEST(CopiesTest, HoldsWhenStreamsBreak) {
  Options options;
  options.whole_at_start = false;
  options.breaks = 2;
  options.changes = 1;
  options.faults = 3;
  ExpectHolds(Copies(options), 46'455);
}

TEST(CopiesTest, HoldsWithAMoveWhenAShardCrashes) {
  Options options = WithMove();
  options.shard_crashes = 1;
  ExpectHolds(Copies(options), 111'142);
}

TEST(CopiesTest, HoldsWithAMoveOfTheOnlyCopyWhenACoordinatorCrashes) {
  Options options = WithMove();
  options.followers = false;
  options.coordinator_crashes = 1;
  ExpectHolds(Copies(options), 31'076);
}

TEST(CopiesTest, HoldsWhenAShardIsDrainedAndTheOtherAndACoordinatorCrash) {
  Options options;
  options.plan = Copies::Plan::kDrain;
  options.changes = options.shard_crashes = options.coordinator_crashes = 1;
  options.faults = 3;
  ExpectHolds(Copies(options), 16'849);
}

TEST(CopiesTest, HoldsInASplitCluster) {
  Options options;
  options.suspicions = 2;
  options.second_coordinators = 1;
  options.faults = 3;
  ExpectHolds(Copies(options), 103'850);
}

TEST(CopiesTest, HoldsWithALostInstallWhenAShardAndACoordinatorCrash) {
  ExpectHolds(Copies(WithLostInstall()), 94'888);
}

TEST(CopiesTest, HoldsWithASnapshotWhenAShardCrashes) {
  Options options;
  options.snapshot = true;
  options.shard_crashes = options.changes = 1;
  ExpectHolds(Copies(options), 9'986);
}

TEST(CopiesTest, HoldsWithOneOwnerWhenItCrashes) {
  Options options = WithOneOwner();
  options.shard_crashes = 1;
  ExpectHolds(Copies(options), 116'796);
}

TEST(CopiesTest, HoldsWithOneOwnerWhenStreamsBreak) {
  Options options = WithOneOwner();
  options.breaks = 2;
  options.faults = 3;
  ExpectHolds(Copies(options), 51'718);
}

TEST(CopiesTest, HoldsWhileAcksAreHeldBackWhenAShardCrashes) {
  Options options = WithOneOwner();
  options.queue_is_full = true;
  options.shard_crashes = 1;
  ExpectHolds(Copies(options), 97'127);
}

TEST(CopiesTest, ACopyThatGatesOnlyOnceItIsWholeMissesAStep) {
  Options options;
  options.whole_at_start = options.gates_from_start = false;
  ExpectViolation(Copies(options), "a copy misses a step", 7);
}

TEST(CopiesTest, ACopyThatBeginsWithAnUncommittedVersionCannotRollBack) {
  Options options;
  options.whole_at_start = options.base_is_committed = false;
  options.shard_crashes = 1;
  ExpectViolation(Copies(options), "the version to return to is gone", 8);
}

TEST(CopiesTest, ACopyThatOutlivesAnInstallWithoutBeingNamedDiffers) {
  Options options;
  options.whole_at_start = options.drops_others = false;
  options.changes = 1;
  ExpectViolation(Copies(options), "two copies of one version differ", 14);
}

TEST(CopiesTest, AnOwnerThatDoesNotSendAgainNeverCloses) {
  Options options;
  options.resends = false;
  options.breaks = 1;
  ExpectViolation(Copies(options), kDeadlock, 5);
}

TEST(CopiesTest, APromisedShardThatDoesNotAckAgainBlocksAnAfterStep) {
  Options options;
  options.answers_repetitions = false;
  options.breaks = options.changes = 1;
  ExpectViolation(Copies(options), kDeadlock, 9);
}

TEST(CopiesTest, APromisedShardThatHoldsAcksBackBlocksAnAfterStep) {
  Options options = WithOneOwner();
  options.queue_is_full = true;
  options.promise_releases_acks = false;
  ExpectViolation(Copies(options), kDeadlock, 11);
}

TEST(CopiesTest, AnInstallThatReachesADrainedShardLastIsForgotten) {
  Options options;
  options.plan = Copies::Plan::kDrain;
  options.losers_first = false;
  options.changes = options.shard_crashes = 1;
  ExpectViolation(Copies(options), kTakenBack, 16);
}

TEST(CopiesTest, AnAfterStepBeforeAllInstallsIsNeverReached) {
  Options options;
  options.shards = 3;
  options.plans_wait_for_installs = false;
  options.shard_crashes = options.changes = 1;
  ExpectViolation(Copies(options), kDeadlock, 10);
}

TEST(CopiesTest, WithoutR2TheVersionToReturnToIsGone) {
  Options options;
  options.promise = false;
  options.shard_crashes = options.changes = 1;
  ExpectViolation(Copies(options), "the version to return to is gone", 14);
}

TEST(CopiesTest, WithoutR2ForPartialCopiesTheVersionToReturnToIsGone) {
  Options options = WithMove();
  options.followers = options.promised_stays_partial = false;
  options.shard_crashes = 1;
  ExpectViolation(Copies(options), "the version to return to is gone", 18);
}

TEST(CopiesTest, WithoutR2ForAcksACopyMissesTheStepThatItDropped) {
  Options options = WithOneOwner();
  options.acks_stop_at_dropped_entry = false;
  ExpectViolation(Copies(options), "a copy misses a step", 13);
}

TEST(CopiesTest, WithoutR3ACommittedVersionIsTakenBack) {
  Options options;
  options.followers = options.older_view_is_at_first_step = false;
  options.changes = options.coordinator_crashes = 1;
  ExpectViolation(Copies(options), kTakenBack, 15);
}

TEST(CopiesTest, WithoutR3ForCopiesAShardIsBehindTheView) {
  Options options = WithLostInstall();
  options.older_copy = Copies::OlderCopy::kAsReplied;
  ExpectViolation(Copies(options), "a shard is behind the view's first step", 20);
}

TEST(CopiesTest, WithoutR4BothSidesContinue) {
  Options options;
  options.claim = false;
  options.suspicions = 2;
  options.second_coordinators = 1;
  options.faults = 3;
  ExpectViolation(Copies(options), kTakenBack, 15);
}

TEST(CopiesTest, WithoutTheRecordOfR4ANewCoordinatorContinuesTheOtherSide) {
  Options options;
  options.carries_out_records = false;
  options.suspicions = 2;
  options.coordinator_crashes = 1;
  options.faults = 3;
  ExpectViolation(Copies(options), kTakenBack, 16);
}

TEST(CopiesTest, WithoutR10AnAfterStepIsNeverReached) {
  Options options;
  options.copies_count_for_after_step = false;
  options.changes = 1;
  ExpectViolation(Copies(options), kDeadlock, 7);
}

TEST(CopiesTest, WithoutR14ASnapshotWhosePinsDiedIsNeverComplete) {
  Options options;
  options.snapshot = true;
  options.snapshot_is_abandoned = false;
  options.shard_crashes = 1;
  ExpectViolation(Copies(options), kDeadlock, 14);
}

}  // namespace
}  // namespace sluice::protocol_models
