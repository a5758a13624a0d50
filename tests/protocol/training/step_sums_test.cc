#include "tests/protocol/training/step_sums.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

constexpr char kDeadlock[] = "no step is possible, and the job is not done";

StepSums::Options TwoShards() {
  StepSums::Options options;
  options.shards = 2;
  return options;
}

StepSums::Options OneChange() {
  StepSums::Options options;
  options.changes = 1;
  return options;
}

StepSums::Options OneBreak() {
  StepSums::Options options;
  options.breaks = 1;
  return options;
}

TEST(StepSumsTest, HoldsWhenAWorkerCrashesAndStartsAgain) {
  StepSums::Options options = TwoShards();
  options.worker_crashes = options.joins = 1;
  options.steps = 2;
  ExpectHolds(StepSums(options), 40'812);
}

TEST(StepSumsTest, HoldsWhenTheOwnerOfPartition0CrashesAndACoordinatorTakesOver) {
  StepSums::Options options = TwoShards();
  options.shard_crashes = options.takeovers = 1;
  ExpectHolds(StepSums(options), 26'853);
}

TEST(StepSumsTest, HoldsWhenAWorkerCrashesAndACoordinatorTakesOver) {
  StepSums::Options options = TwoShards();
  options.worker_crashes = options.takeovers = 1;
  ExpectHolds(StepSums(options), 54'610);
}

TEST(StepSumsTest, HoldsWhenAWorkerIsSuspectedAndACoordinatorTakesOver) {
  StepSums::Options options;
  options.suspicions = options.takeovers = 1;
  ExpectHolds(StepSums(options), 145'332);
}

TEST(StepSumsTest, HoldsWhenStreamsBreakAndTheViewChanges) {
  StepSums::Options options;
  options.steps = 2;
  options.breaks = options.changes = 1;
  ExpectHolds(StepSums(options), 18'696);
}

TEST(StepSumsTest, HoldsWithThreeFaults) {
  StepSums::Options options = TwoShards();
  options.worker_crashes = options.joins = options.takeovers = options.breaks = 1;
  options.faults = 3;
  ExpectHolds(StepSums(options), 646'882);
}

TEST(StepSumsTest, HoldsWithAMemberThatDoesNotComputeWhenAnotherCrashes) {
  StepSums::Options options;
  options.workers = 3;
  options.worker_crashes = 1;
  ExpectHolds(StepSums(options), 3'753);
}

TEST(StepSumsTest, MembersThatNeedDifferentSumsFailTheJob) {
  StepSums::Options options;
  options.members_differ = true;
  ExpectHolds(StepSums(options), 33);
}

TEST(StepSumsTest, WithoutTheLastMessageMembersThatNeedDifferentSumsWaitForever) {
  StepSums::Options options;
  options.members_differ = true;
  options.members_say_that_they_are_done = false;
  ExpectViolation(StepSums(options), kDeadlock, 11);
}

TEST(StepSumsTest, AnInstallMustDropTheShardsSums) {
  StepSums::Options options = OneChange();
  options.install_drops_sums = false;
  ExpectViolation(StepSums(options), "a sum has parts of two views", 9);
}

TEST(StepSumsTest, AnInstallMustDropGradientsOfASurvivor) {
  StepSums::Options options;
  options.worker_crashes = 1;
  options.install_drops_gradients = false;
  ExpectViolation(StepSums(options), "a step closes with gradients of different sums", 20);
}

TEST(StepSumsTest, AMemberThatKeepsItsGradientIsAwaitedForever) {
  StepSums::Options options = OneChange();
  options.install_drops_gradients = false;
  ExpectViolation(StepSums(options), kDeadlock, 23);
}

TEST(StepSumsTest, AComputationMustBeginAgainInANewView) {
  StepSums::Options options = OneChange();
  options.install_begins_again = false;
  ExpectViolation(StepSums(options), "a shard refuses the part of a member that keeps the contract",
                  12);
}

TEST(StepSumsTest, PartsOfAnOlderViewMustBeIgnored) {
  StepSums::Options options = OneChange();
  options.old_parts_are_ignored = false;
  ExpectViolation(StepSums(options), "a sum has parts of two views", 9);
}

TEST(StepSumsTest, AnswersOfAnOlderViewMustBeIgnored) {
  StepSums::Options options = OneChange();
  options.old_answers_are_ignored = false;
  ExpectViolation(StepSums(options), "a worker computes with the sum of an older view", 10);
}

TEST(StepSumsTest, AWorkerMustCompareAnAnswerWithTheSumThatItWaitsFor) {
  StepSums::Options options = OneBreak();
  options.answers_are_compared = false;
  ExpectViolation(StepSums(options), "a worker takes one sum for another", 9);
}

TEST(StepSumsTest, AWorkerMustRepeatItsPartOnANewStream) {
  StepSums::Options options = OneBreak();
  options.parts_are_repeated = false;
  ExpectViolation(StepSums(options), kDeadlock, 4);
}

TEST(StepSumsTest, ARepeatedPartMustCountOnce) {
  StepSums::Options options = OneBreak();
  options.repeated_parts_count_once = false;
  ExpectViolation(StepSums(options), "a sum has a part twice", 4);
}

TEST(StepSumsTest, ARepeatedPartMustBeAnsweredAgain) {
  StepSums::Options options = OneBreak();
  options.repeated_parts_are_answered = false;
  ExpectViolation(StepSums(options), kDeadlock, 9);
}

TEST(StepSumsTest, MessagesOfOlderStepsMustBeIgnored) {
  StepSums::Options options;
  options.steps = 2;
  options.older_steps_are_ignored = false;
  ExpectViolation(StepSums(options), kDeadlock, 26);
}

TEST(StepSumsTest, MembersWithoutSamplesMustNotBeAwaited) {
  StepSums::Options options;
  options.workers = 3;
  options.only_computing_members_count = false;
  ExpectViolation(StepSums(options), kDeadlock, 4);
}

}  // namespace
}  // namespace sluice::protocol_models
