#include "tests/protocol/membership/initialization.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

Initialization::Options WithFaults(uint8_t worker_crashes, uint8_t suspicions,
                                   uint8_t shard_crashes, uint8_t coordinator_crashes,
                                   uint8_t second_coordinators) {
  Initialization::Options options;
  options.worker_crashes = worker_crashes;
  options.suspicions = suspicions;
  options.shard_crashes = shard_crashes;
  options.coordinator_crashes = coordinator_crashes;
  options.second_coordinators = second_coordinators;
  return options;
}

TEST(InitializationTest, HoldsWhenAWorkerAndACoordinatorCrash) {
  ExpectHolds(Initialization(WithFaults(1, 0, 0, 1, 0)), 284'850);
}

TEST(InitializationTest, HoldsWithTwoCoordinatorsWhenAWorkerIsSuspected) {
  ExpectHolds(Initialization(WithFaults(0, 1, 0, 0, 1)), 1'041'079);
}

TEST(InitializationTest, HoldsWithTwoCoordinatorsWhenOneCrashes) {
  ExpectHolds(Initialization(WithFaults(0, 0, 0, 1, 1)), 753'719);
}

TEST(InitializationTest, WithoutR12PushesOfTwoRequestsMix) {
  Initialization::Options options = WithFaults(0, 1, 0, 0, 0);
  options.pushes_name_request = false;
  ExpectViolation(Initialization(options), "the first view mixes two workers' version 0", 22);
}

TEST(InitializationTest, WithoutR12AReportOfAnOlderRequestInstallsTheFirstViewTooEarly) {
  Initialization::Options options = WithFaults(0, 0, 0, 1, 0);
  options.ready_names_request = false;
  ExpectViolation(Initialization(options),
                  "the first view is installed on a shard without all of version 0", 25);
}

TEST(InitializationTest, WithoutTermsInR12TwoCoordinatorsUseOneNumber) {
  Initialization::Options options = WithFaults(0, 0, 0, 0, 1);
  options.requests_have_terms = false;
  options.survey = false;
  ExpectViolation(Initialization(options), "no step is possible, and the job is not done", 17);
}

TEST(InitializationTest, WithoutTheSurveyOfR12AHalfInstalledFirstViewIsNeverCompleted) {
  Initialization::Options options = WithFaults(0, 0, 0, 1, 1);
  options.survey = false;
  ExpectViolation(Initialization(options), "no step is possible, and the job is not done", 28);
}

}  // namespace
}  // namespace sluice::protocol_models
