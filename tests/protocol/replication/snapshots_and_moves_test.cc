#include "tests/protocol/replication/snapshots_and_moves.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = SnapshotsAndMoves::Options;

Options WithMove() {
  Options options;
  options.shards = 3;
  options.move = true;
  return options;
}

Options WithEnd() {
  Options options;
  options.end = true;
  options.snapshots = 0;
  options.steps = 1;
  return options;
}

TEST(SnapshotsAndMovesTest, HoldsWhenAWorkerCrashesAndAnotherJoins) {
  Options options;
  options.steps = 3;
  options.worker_crashes = options.joins = 1;
  ExpectHolds(SnapshotsAndMoves(options), 784'722);
}

TEST(SnapshotsAndMovesTest, HoldsWhenAWorkerCrashesAndViewChangesAbandonTheSnapshot) {
  Options options;
  options.worker_crashes = 1;
  options.view_change = SnapshotsAndMoves::ViewChange::kAbandons;
  ExpectHolds(SnapshotsAndMoves(options), 23'682);
}

TEST(SnapshotsAndMovesTest, HoldsWithAMove) { ExpectHolds(SnapshotsAndMoves(WithMove()), 25'756); }

TEST(SnapshotsAndMovesTest, HoldsWithAMoveWhenACoordinatorCrashes) {
  Options options = WithMove();
  options.snapshots = 0;
  options.steps = 3;
  options.faults = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 165'956);
}

TEST(SnapshotsAndMovesTest, HoldsWithAMoveThatANewCoordinatorDrops) {
  Options options = WithMove();
  options.snapshots = 0;
  options.coordinator_crashes = 1;
  options.move_continues = false;
  ExpectHolds(SnapshotsAndMoves(options), 34'686);
}

TEST(SnapshotsAndMovesTest, HoldsWithAMoveAndTwoCoordinators) {
  Options options = WithMove();
  options.snapshots = 0;
  options.faults = options.second_coordinators = 1;
  ExpectHolds(SnapshotsAndMoves(options), 52'299);
}

TEST(SnapshotsAndMovesTest, HoldsAtTheEndWhenAWorkerAndACoordinatorCrash) {
  Options options = WithEnd();
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 100'648);
}

TEST(SnapshotsAndMovesTest, HoldsAtTheEndWhenAShardAndACoordinatorCrash) {
  Options options = WithEnd();
  options.shard_crashes = options.coordinator_crashes = 1;
  ExpectHolds(SnapshotsAndMoves(options), 173'577);
}

TEST(SnapshotsAndMovesTest, HoldsAtTheEndWithTwoCoordinators) {
  Options options = WithEnd();
  options.worker_crashes = options.second_coordinators = 1;
  ExpectHolds(SnapshotsAndMoves(options), 537'471);
}

TEST(SnapshotsAndMovesTest, WithoutR14AnIndexNamesAVersionThatWasTakenBack) {
  Options options;
  options.worker_crashes = 1;
  options.writes_committed_only = false;
  ExpectViolation(SnapshotsAndMoves(options),
                  "an index names files that are not of the committed version", 10);
}

TEST(SnapshotsAndMovesTest, WithoutR14ASnapshotIsNeverCompleteAfterARollback) {
  Options options;
  options.worker_crashes = 1;
  options.view_change = SnapshotsAndMoves::ViewChange::kNamesNothing;
  ExpectViolation(SnapshotsAndMoves(options), "no step is possible, and the job is not done", 25);
}

TEST(SnapshotsAndMovesTest, WithoutThePinOfAMovesSourceASnapshotIsNeverComplete) {
  Options options = WithMove();
  options.source_keeps_pin = false;
  ExpectViolation(SnapshotsAndMoves(options), "no step is possible, and the job is not done", 31);
}

TEST(SnapshotsAndMovesTest, WithoutTheLastCommitItsPinIsNeverWritten) {
  Options options;
  options.last_commit_is_told = false;
  ExpectViolation(SnapshotsAndMoves(options), "no step is possible, and the job is not done", 12);
}

TEST(SnapshotsAndMovesTest, WithoutR3AViewHasPartitionsOfTwoAttempts) {
  Options options;
  options.shard_crashes = options.coordinator_crashes = 1;
  options.older_attempt = SnapshotsAndMoves::OlderAttempt::kRollsBack;
  ExpectViolation(SnapshotsAndMoves(options), "the version to return to is gone", 21);
}

TEST(SnapshotsAndMovesTest, WithoutR11AnAbandonedAttemptEndsTheJob) {
  Options options = WithEnd();
  options.shard_crashes = options.second_coordinators = 1;
  options.end_is_claimed = false;
  ExpectViolation(SnapshotsAndMoves(options),
                  "an attempt ends the job after a higher one was claimed", 21);
}

TEST(SnapshotsAndMovesTest, WithoutAFinishForLateShardsTheyNeverExit) {
  Options options = WithEnd();
  options.shard_crashes = options.coordinator_crashes = 1;
  options.late_shards_are_told_of_end = false;
  ExpectViolation(SnapshotsAndMoves(options), "no step is possible, and the job is not done", 19);
}

}  // namespace
}  // namespace sluice::protocol_models
