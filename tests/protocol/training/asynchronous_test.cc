#include "tests/protocol/training/asynchronous.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = Asynchronous::Options;

TEST(AsynchronousTest, HoldsWithLongLeasesWhenAWorkerCrashes) {
  Options options;
  options.samples = 3;
  options.lease = 2;
  options.worker_crashes = 1;
  ExpectHolds(Asynchronous(options), 42'581);
}

TEST(AsynchronousTest, HoldsWhenAWorkerIsSuspected) {
  Options options;
  options.suspicions = 1;
  ExpectHolds(Asynchronous(options), 901'027);
}

TEST(AsynchronousTest, HoldsWithCopiesWhenAShardCrashes) {
  Options options;
  options.copies = true;
  options.shard_crashes = 1;
  ExpectHolds(Asynchronous(options), 198'041);
}

TEST(AsynchronousTest, HoldsWithCopiesWhenAShardAndACoordinatorCrash) {
  Options options;
  options.samples = 1;
  options.copies = true;
  options.shard_crashes = options.coordinator_crashes = 1;
  ExpectHolds(Asynchronous(options), 152'773);
}

TEST(AsynchronousTest, HoldsWithCopiesOfOneOwnerWhenAShardCrashes) {
  Options options;
  options.copies = options.one_owner = true;
  options.shard_crashes = 1;
  ExpectHolds(Asynchronous(options), 206'205);
}

TEST(AsynchronousTest, HoldsWhenCopiesAreMadeAndAShardCrashes) {
  Options options;
  options.copies = options.makes_copies = true;
  options.shard_crashes = 1;
  ExpectHolds(Asynchronous(options), 719'823);
}

TEST(AsynchronousTest, HoldsWithCopiesWhenTheArbiterAndItsFollowerChangePlaces) {
  Options options;
  options.samples = 1;
  options.copies = true;
  options.arbiter_moves = options.shard_crashes = 1;
  ExpectHolds(Asynchronous(options), 122'945);
}

TEST(AsynchronousTest, WithoutR2ASampleIsLeasedAgainAfterItWasApplied) {
  Options options;
  options.promise = false;
  options.worker_crashes = 1;
  ExpectViolation(Asynchronous(options), "a sample is leased twice", 21);
}

TEST(AsynchronousTest, WithoutR6AShardNeverHasAnUpdateThatAnotherOneApplied) {
  Options options;
  options.applies_after_all_acks = false;
  options.worker_crashes = 1;
  ExpectViolation(Asynchronous(options),
                  "a shard never had an update that another shard has applied", 16);
}

TEST(AsynchronousTest, WithoutTheFollowersAckInR6ItNeverHasAnUpdateThatAnotherShardApplied) {
  Options options;
  options.acks_after_follower = false;
  options.copies = true;
  options.shard_crashes = 1;
  ExpectViolation(Asynchronous(options),
                  "a shard never had an update that another shard has applied", 17);
}

TEST(AsynchronousTest, WithoutTheFollowersAnswerToApplyAnUpdateIsLostWithItsShard) {
  Options options;
  options.answers_after_follower = false;
  options.copies = options.one_owner = true;
  options.shard_crashes = 1;
  ExpectViolation(Asynchronous(options), "an update is lost that its worker knows to be applied",
                  21);
}

TEST(AsynchronousTest, WithoutTheStagedUpdatesACopyThatIsMadeNeverHasThem) {
  Options options;
  options.sends_staged_before_state = false;
  options.copies = options.makes_copies = true;
  options.worker_crashes = 1;
  ExpectViolation(Asynchronous(options), "a follower is out of step", 14);
}

TEST(AsynchronousTest, WithoutR7AnExpelledWorkerReturnsWithItsOldLease) {
  Options options;
  options.returns_as_new_incarnation = false;
  options.suspicions = 1;
  ExpectViolation(Asynchronous(options), "a sample is leased twice", 29);
}

TEST(AsynchronousTest, WithoutR7TheFirstUpdateOfARestartedWorkerCountsAsARepetition) {
  Options options;
  options.clocks_belong_to_incarnations = false;
  options.worker_crashes = options.starts = 1;
  options.same_index_starts = true;
  ExpectViolation(Asynchronous(options),
                  "an update is acked as a repetition, but its sample was never applied", 34);
}

TEST(AsynchronousTest, WithoutR8NoWorkerComputesASampleWhoseLeaseWasRecorded) {
  Options options;
  options.gives_lease_again = false;
  options.coordinator_crashes = 1;
  ExpectViolation(Asynchronous(options), "no step is possible, and the job is not done", 26);
}

TEST(AsynchronousTest, WithoutTheArbitersConfirmationInR8ASampleIsAppliedTwice) {
  Options options;
  options.arbiter_confirms = false;
  options.second_coordinators = options.worker_crashes = 1;
  ExpectViolation(Asynchronous(options), "a sample is applied twice to one partition", 31);
}

TEST(AsynchronousTest, WithoutTheRefusalOfR8AReplacedCoordinatorLeasesASampleAgain) {
  Options options;
  options.arbiter_refuses_old_terms = false;
  options.second_coordinators = 1;
  ExpectViolation(Asynchronous(options), "a sample is leased twice", 23);
}

TEST(AsynchronousTest, WithoutR8ForTheFollowerALeaseIsForgottenWithTheArbiter) {
  Options options;
  options.follower_has_leases = false;
  options.copies = true;
  options.shard_crashes = 1;
  ExpectViolation(Asynchronous(options), "a sample is leased twice", 21);
}

TEST(AsynchronousTest, APermitThatOutlivesItsViewIsNeverReturned) {
  Options options;
  options.permits_end_with_view = false;
  options.worker_crashes = 1;
  ExpectViolation(Asynchronous(options), "no step is possible, and the job is not done", 18);
}

}  // namespace
}  // namespace sluice::protocol_models
