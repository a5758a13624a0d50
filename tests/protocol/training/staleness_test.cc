#include "tests/protocol/training/staleness.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

TEST(StalenessTest, HoldsWhenWorkersCrashAndJoin) {
  Staleness::Options options;
  options.worker_crashes = 2;
  options.joins = 2;
  ExpectHolds(Staleness(options), 427'123);
}

TEST(StalenessTest, HoldsWithThreeWorkersWhenOneIsSuspected) {
  Staleness::Options options;
  options.workers = 3;
  options.suspicions = options.worker_crashes = options.joins = 1;
  options.samples = 8;
  ExpectHolds(Staleness(options), 1'717'025);
}

TEST(StalenessTest, HoldsWithBoundZero) {
  Staleness::Options options;
  options.bound = 0;
  options.workers = 3;
  options.worker_crashes = options.joins = 1;
  ExpectHolds(Staleness(options), 76'867);
}

TEST(StalenessTest, HoldsWithBoundTwoAndLongLeases) {
  Staleness::Options options;
  options.bound = 2;
  options.workers = 3;
  options.worker_crashes = options.joins = 1;
  options.samples = 9;
  options.lease = 3;
  options.faults = 3;
  ExpectHolds(Staleness(options), 785'276);
}

TEST(StalenessTest, WithoutR13AMemberWithoutALeaseStopsAllAtTheEndOfTheData) {
  Staleness::Options options;
  options.only_holders_count = false;
  options.lease = 4;
  options.samples = 5;
  ExpectViolation(Staleness(options), "no step is possible, and the job is not done", 19);
}

TEST(StalenessTest, WithoutR13AWaitingPullIsNeverAnsweredAfterADeath) {
  Staleness::Options options;
  options.changes_wake_pulls = false;
  options.worker_crashes = 1;
  ExpectViolation(Staleness(options), "no step is possible, and the job is not done", 13);
}

TEST(StalenessTest, WithoutR13ANewcomerIsFurtherBehindThanTheBound) {
  Staleness::Options options;
  options.base = Staleness::Base::kOwn;
  options.joins = 1;
  options.samples = 8;
  ExpectViolation(Staleness(options), "a worker computes beyond the bound", 12);
}

TEST(StalenessTest, WithoutR13AMemberThatWaitedForALeaseIsFurtherBehindThanTheBound) {
  Staleness::Options options;
  options.base = Staleness::Base::kLowestAtJoin;
  options.workers = 3;
  options.samples = 9;
  ExpectViolation(Staleness(options), "a worker computes beyond the bound", 12);
}

TEST(StalenessTest, WithoutR13TheSecondShardAnswersBeyondTheBound) {
  Staleness::Options options;
  options.second_shard = Staleness::SecondShard::kAnswersAtOnce;
  ExpectViolation(Staleness(options), "the second shard answers a pull beyond the bound", 11);
}

}  // namespace
}  // namespace sluice::protocol_models
