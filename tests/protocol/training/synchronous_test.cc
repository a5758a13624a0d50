#include "tests/protocol/training/synchronous.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = Synchronous::Options;

TEST(SynchronousTest, HoldsWhenWorkersCrash) {
  Options options;
  options.worker_crashes = 2;
  options.last_step_commits = true;
  ExpectHolds(Synchronous(options), 120'892);
}

TEST(SynchronousTest, HoldsWhenAWorkerIsSuspectedAndAnotherCrashes) {
  Options options;
  options.worker_crashes = options.suspicions = 1;
  options.steps = 2;
  options.last_step_commits = true;
  ExpectHolds(Synchronous(options), 384'109);
}

TEST(SynchronousTest, HoldsWithCopiesWhenAWorkerAndAShardCrash) {
  Options options;
  options.copies = true;
  options.worker_crashes = options.shard_crashes = 1;
  ExpectHolds(Synchronous(options), 617'412);
}

TEST(SynchronousTest, HoldsWithCopiesWhenAWorkerJoins) {
  Options options;
  options.copies = true;
  options.joins = options.joins_per_coordinator = 1;
  options.steps = 2;
  ExpectHolds(Synchronous(options), 200'455);
}

TEST(SynchronousTest, HoldsWithSumsAndCopiesWhenAWorkerAndAShardCrash) {
  Options options;
  options.copies = options.sums = true;
  options.worker_crashes = options.shard_crashes = 1;
  options.steps = 2;
  ExpectHolds(Synchronous(options), 297'989);
}

TEST(SynchronousTest, HoldsWithAMoveWhenAShardCrashes) {
  Options options;
  options.shards = 3;
  options.move = true;
  options.shard_crashes = 1;
  options.steps = 2;
  ExpectHolds(Synchronous(options), 347'631);
}

TEST(SynchronousTest, WithoutTermsInR1AMicrobatchIsAddedTwice) {
  Options options;
  options.views_have_terms = false;
  options.suspicions = options.coordinator_crashes = 1;
  options.steps = 2;
  ExpectViolation(Synchronous(options), "a microbatch is added twice", 18);
}

TEST(SynchronousTest, WithoutUniqueTermsInR1TwoViewsHaveOneId) {
  Options options;
  options.terms_are_unique = false;
  options.second_coordinators = 2;
  options.suspicions = 1;
  options.faults = 3;
  options.steps = 1;
  ExpectViolation(Synchronous(options), "two different views with one id are installed", 15);
}

TEST(SynchronousTest, WithoutNumberedPausesInR1TheVersionToReturnToIsGone) {
  Options options;
  options.pauses_are_numbered = false;
  options.joins = options.worker_crashes = 1;
  options.steps = 2;
  ExpectViolation(Synchronous(options), "the version to return to is gone", 30);
}

TEST(SynchronousTest, WithoutTheRefusalOfR1AnOldCoordinatorBlocksTheNextOne) {
  Options options;
  options.refused_exits = false;
  options.second_coordinators = options.coordinator_crashes = 1;
  options.steps = 1;
  ExpectViolation(Synchronous(options), "no step is possible, and the job is not done", 9,
                  Progress::kNoDeadlock);
}

TEST(SynchronousTest, WithoutR2TheVersionToReturnToIsGone) {
  Options options;
  options.promise = false;
  options.copies = true;
  options.worker_crashes = options.shard_crashes = 1;
  ExpectViolation(Synchronous(options), "the version to return to is gone", 23);
}

TEST(SynchronousTest, WithoutANewViewAsR3WantsTheVersionToReturnToIsGone) {
  Options options;
  options.after_survey = Synchronous::AfterSurvey::kInstallsAgain;
  options.worker_crashes = options.coordinator_crashes = 1;
  ExpectViolation(Synchronous(options), "the version to return to is gone", 20);
}

TEST(SynchronousTest, WithoutTheOverrideOfR5AViewChangeWaitsForADeadMember) {
  Options options;
  options.now_overrides = false;
  options.joins = options.worker_crashes = 1;
  ExpectViolation(Synchronous(options), "no step is possible, and the job is not done", 10,
                  Progress::kNoDeadlock);
}

TEST(SynchronousTest, WithoutR5ForFollowersAFollowerStopsBeforeItsOwner) {
  Options options;
  options.after_step_waits_for_followers = false;
  options.copies = true;
  options.joins = options.joins_per_coordinator = 1;
  options.steps = 2;
  ExpectViolation(Synchronous(options), "no step is possible, and the job is not done", 17);
}

TEST(SynchronousTest, WithoutR9AWorkerPushesAGradientOfHalfAVersion) {
  Options options;
  options.drops_older_pulls = false;
  options.suspicions = 1;
  ExpectViolation(Synchronous(options), "a worker pushes a step ahead of the partition", 18);
}

TEST(SynchronousTest, WithoutTheRollbackOfR10TheTargetMixesTwoHistories) {
  Options options;
  options.target_rolls_back = false;
  options.shards = 3;
  options.move = true;
  options.worker_crashes = 1;
  ExpectViolation(Synchronous(options),
                  "the target of a move applies a gradient to another version", 21);
}

TEST(SynchronousTest, WithoutR10TheTargetOfAMoveIsBehindTheView) {
  Options options;
  options.target_counts_with_step = false;
  options.shards = 3;
  options.move = true;
  options.steps = 2;
  ExpectViolation(Synchronous(options), "a shard is behind the view's first step", 18);
}

TEST(SynchronousTest, WithoutACommitByTheCoordinatorTheLastVersionIsNeverCommitted) {
  Options options;
  options.coordinator_commits_last = false;
  options.last_step_commits = true;
  options.steps = 1;
  ExpectViolation(Synchronous(options), "no step is possible, and the job is not done", 12);
}

}  // namespace
}  // namespace sluice::protocol_models
