// Runs of the models that are too large for every day; README.md says how to start them.
#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"
#include "tests/protocol/membership/initialization.h"
#include "tests/protocol/membership/split_cluster.h"
#include "tests/protocol/membership/takeover.h"
#include "tests/protocol/replication/copies.h"
#include "tests/protocol/replication/snapshots_and_moves.h"
#include "tests/protocol/training/asynchronous.h"
#include "tests/protocol/training/synchronous.h"

namespace sluice::protocol_models {
namespace {

TEST(AsynchronousFullTest, HoldsWithCopiesWhenAWorkerAndAShardCrash) {
  Asynchronous::Options options;
  options.copies = true;
  options.worker_crashes = options.shard_crashes = 1;
  ExpectHolds(Asynchronous(options), 3'129'659);
}

TEST(AsynchronousFullTest, HoldsWhenAWorkerAndACoordinatorCrash) {
  Asynchronous::Options options;
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectHolds(Asynchronous(options), 1'155'087);
}

TEST(AsynchronousFullTest, HoldsWithTwoCoordinatorsWhenAWorkerCrashes) {
  Asynchronous::Options options;
  options.worker_crashes = options.second_coordinators = 1;
  ExpectHolds(Asynchronous(options), 3'840'410);
}

TEST(AsynchronousFullTest, HoldsWhenTheArbiterMovesAndAWorkerCrashes) {
  Asynchronous::Options options;
  options.arbiter_moves = options.worker_crashes = 1;
  ExpectHolds(Asynchronous(options), 1'131'885);
}

TEST(CopiesFullTest, HoldsWithAThirdShardWhileCopiesAreMadeWhenAShardCrashes) {
  Copies::Options options;
  options.shards = 3;
  options.whole_at_start = false;
  options.shard_crashes = options.changes = 1;
  ExpectHolds(Copies(options), 200'256);
}

TEST(CopiesFullTest, HoldsWithASwapWhenAStreamBreaksAndACoordinatorCrashes) {
  Copies::Options options;
  options.whole_at_start = false;
  options.plan = Copies::Plan::kSwap;
  options.changes = options.breaks = options.coordinator_crashes = 1;
  options.faults = 3;
  ExpectHolds(Copies(options), 231'464);
}

TEST(CopiesFullTest, HoldsWithAMoveWhenTwoShardsAndACoordinatorCrash) {
  Copies::Options options;
  options.shards = 3;
  options.steps = 1;
  options.plan = Copies::Plan::kMove;
  options.changes = options.coordinator_crashes = 1;
  options.shard_crashes = 2;
  options.faults = 4;
  ExpectHolds(Copies(options), 614'092);
}

TEST(CopiesFullTest, HoldsWhenAShardIsDrainedAndAnotherAndACoordinatorCrash) {
  Copies::Options options;
  options.shards = 3;
  options.plan = Copies::Plan::kDrain;
  options.changes = options.shard_crashes = options.coordinator_crashes = 1;
  options.faults = 3;
  ExpectHolds(Copies(options), 476'707);
}

TEST(CopiesFullTest, HoldsWhenADrainedShardIsInTheOtherHalfOfTheCluster) {
  Copies::Options options;
  options.plan = Copies::Plan::kDrain;
  options.changes = options.suspicions = options.second_coordinators = 1;
  options.faults = 3;
  ExpectHolds(Copies(options), 230'634);
}

TEST(CopiesFullTest, HoldsInASplitClusterWhenACoordinatorCrashes) {
  Copies::Options options;
  options.suspicions = 2;
  options.second_coordinators = options.coordinator_crashes = 1;
  options.faults = 4;
  ExpectHolds(Copies(options), 1'202'383);
}

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

TEST(SnapshotsAndMovesFullTest, HoldsWithTwoSnapshotsWhenAWorkerCrashesAndAnotherJoins) {
  SnapshotsAndMoves::Options options;
  options.steps = 3;
  options.snapshots = 2;
  options.worker_crashes = options.joins = 1;
  ExpectHolds(SnapshotsAndMoves(options), 1'384'376);
}

TEST(SnapshotsAndMovesFullTest, HoldsWhenAWorkerAndACoordinatorCrash) {
  SnapshotsAndMoves::Options options;
  options.steps = 3;
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'243'338);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithTwoSnapshotsWhenAWorkerAndACoordinatorCrash) {
  SnapshotsAndMoves::Options options;
  options.snapshots = 2;
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'798'719);
}

TEST(SnapshotsAndMovesFullTest, HoldsWhenAShardAndACoordinatorCrash) {
  SnapshotsAndMoves::Options options;
  options.shard_crashes = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'239'037);
}

TEST(SnapshotsAndMovesFullTest, HoldsWhenAShardAndAWorkerCrash) {
  SnapshotsAndMoves::Options options;
  options.shard_crashes = options.worker_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 3'687'754);
}

TEST(SnapshotsAndMovesFullTest, HoldsWhenAnOlderAttemptsShardIsLost) {
  SnapshotsAndMoves::Options options;
  options.shard_crashes = options.coordinator_crashes = 1;
  options.older_attempt = SnapshotsAndMoves::OlderAttempt::kIsLost;
  ExpectHolds(SnapshotsAndMoves(options), 2'126'692);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithTwoCoordinatorsWhenAShardCrashes) {
  SnapshotsAndMoves::Options options;
  options.steps = 1;
  options.shard_crashes = options.second_coordinators = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'378'263);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithAMoveWhenAWorkerCrashes) {
  SnapshotsAndMoves::Options options;
  options.shards = 3;
  options.move = true;
  options.worker_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'596'356);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithAMoveAndASnapshotWhenACoordinatorCrashes) {
  SnapshotsAndMoves::Options options;
  options.shards = 3;
  options.move = true;
  options.faults = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'064'979);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithAMoveWhenAShardCrashes) {
  SnapshotsAndMoves::Options options;
  options.shards = 3;
  options.move = true;
  options.faults = options.shard_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 2'151'681);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithAMoveWhenTwoCoordinatorsCrash) {
  SnapshotsAndMoves::Options options;
  options.shards = 3;
  options.move = true;
  options.snapshots = 0;
  options.coordinator_crashes = 2;
  ExpectHolds(SnapshotsAndMoves(options), 1'503'506);
}

TEST(SnapshotsAndMovesFullTest, HoldsWithAMoveWhenAWorkerAndACoordinatorCrash) {
  SnapshotsAndMoves::Options options;
  options.shards = 3;
  options.move = true;
  options.snapshots = 0;
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 4'696'605);
}

TEST(SnapshotsAndMovesFullTest, HoldsAtTheEndWithTwoCoordinatorsWhenAShardCrashes) {
  SnapshotsAndMoves::Options options;
  options.end = true;
  options.snapshots = 0;
  options.steps = 1;
  options.shard_crashes = options.second_coordinators = 1;
  ExpectHolds(SnapshotsAndMoves(options), 1'279'641);
}

TEST(SnapshotsAndMovesFullTest, HoldsAtTheEndWithAMoveWhenAWorkerCrashes) {
  SnapshotsAndMoves::Options options;
  options.shards = 3;
  options.move = options.end = true;
  options.faults = options.worker_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 3'440'216);
}

TEST(SplitClusterFullTest, HoldsWithThreeFaults) {
  ExpectHolds(SplitCluster(SplitCluster::Options()), 2'302'622);
}

TEST(SynchronousFullTest, HoldsWhenAWorkerAndACoordinatorCrash) {
  Synchronous::Options options;
  options.worker_crashes = options.coordinator_crashes = 1;
  options.last_step_commits = true;
  ExpectHolds(Synchronous(options), 807'139);
}

TEST(SynchronousFullTest, HoldsWithTwoCoordinatorsWhenAWorkerCrashes) {
  Synchronous::Options options;
  options.worker_crashes = options.second_coordinators = 1;
  options.steps = 2;
  ExpectHolds(Synchronous(options), 1'780'765);
}

TEST(SynchronousFullTest, HoldsWithTwoCoordinatorsWhenOneCrashes) {
  Synchronous::Options options;
  options.coordinator_crashes = options.second_coordinators = 1;
  options.steps = 1;
  ExpectHolds(Synchronous(options), 5'417'214);
}

TEST(SynchronousFullTest, HoldsWithSumsWhenAWorkerAndACoordinatorCrash) {
  Synchronous::Options options;
  options.sums = true;
  options.worker_crashes = options.coordinator_crashes = 1;
  options.steps = 2;
  ExpectHolds(Synchronous(options), 701'119);
}

TEST(SynchronousFullTest, HoldsWithAMoveWhenAWorkerCrashes) {
  Synchronous::Options options;
  options.shards = 3;
  options.move = true;
  options.worker_crashes = 1;
  options.steps = 2;
  ExpectHolds(Synchronous(options), 652'876);
}

TEST(SynchronousFullTest, HoldsWhenANewCoordinatorContinuesTheNewestView) {
  Synchronous::Options options;
  options.after_survey = Synchronous::AfterSurvey::kContinues;
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectHolds(Synchronous(options), 387'712);
}

TEST(TakeoverFullTest, HoldsWithThreeSteps) {
  Takeover::Options options;
  options.steps = 3;
  ExpectHolds(Takeover(options), 3'446'364);
}

TEST(TakeoverFullTest, HoldsWithTermsInNamesWhenAbandonedFilesAreRemovedAtOnce) {
  Takeover::Options options;
  options.steps = 3;
  options.names_have_terms = true;
  options.abandoned = Takeover::Removal::kAtOnce;
  ExpectHolds(Takeover(options), 4'408'688);
}

TEST(TakeoverFullTest, HoldsWhenAbandonedFilesAreRemovedOnceNoIndexWillNameThem) {
  Takeover::Options options;
  options.abandoned = Takeover::Removal::kOnceOver;
  options.found = Takeover::Removal::kNever;
  options.asked_index_is_written = true;
  Takeover::Options three_coordinators = options;
  three_coordinators.second_coordinators = 2;
  three_coordinators.view_changes = 0;
  ExpectHolds(Takeover(three_coordinators), 1'975'704);
  options.steps = 3;
  ExpectHolds(Takeover(options), 4'677'367);
}

TEST(TakeoverFullTest, HoldsWhenTheNewCoordinatorCrashes) {
  Takeover::Options options;
  options.coordinator_crashes = options.snapshots = 1;
  options.view_changes = 0;
  ExpectHolds(Takeover(options), 133'686);
}

}  // namespace
}  // namespace sluice::protocol_models
