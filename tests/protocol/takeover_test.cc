#include "tests/protocol/takeover.h"

#include <gtest/gtest.h>

#include "tests/protocol/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = Takeover::Options;

TEST(TakeoverTest, HoldsWithTwoCoordinators) { ExpectHolds(Takeover(Options()), 539'501); }

TEST(TakeoverTest, HoldsWithThreeCoordinators) {
  Options options;
  options.second_coordinators = 2;
  options.view_changes = 0;
  options.abandons = 0;
  ExpectHolds(Takeover(options), 542'970);
}

TEST(TakeoverTest, HoldsWithTermsInNamesWhenAbandonedFilesAreRemovedAtOnce) {
  Options options;
  options.names_have_terms = true;
  options.abandoned = Takeover::Removal::kAtOnce;
  ExpectHolds(Takeover(options), 706'565);
}

TEST(TakeoverTest, ACoordinatorRemovesAbandonedFilesThatAnotherOneHasNamed) {
  Options options;
  options.abandoned = Takeover::Removal::kAtOnce;
  ExpectViolation(Takeover(options), "a file that the newest index names is missing", 21);
}

TEST(TakeoverTest, ANewCoordinatorRemovesFilesThatItsFrozenPredecessorThenNames) {
  for (bool names_have_terms : {false, true}) {
    Options options;
    options.names_have_terms = names_have_terms;
    options.found = Takeover::Removal::kAtOnce;
    ExpectViolation(Takeover(options), "a file that the newest index names is missing", 19);
  }
}

TEST(TakeoverTest, WithoutTheRefusalOfR1TwoCoordinatorsRunTheShards) {
  Options options;
  options.lower_terms_are_refused = false;
  ExpectViolation(Takeover(options), "the version to return to is gone", 17);
}

TEST(TakeoverTest, WithoutR2TheVersionToReturnToIsGone) {
  Options options;
  options.promise = false;
  ExpectViolation(Takeover(options), "the version to return to is gone", 10);
}

TEST(TakeoverTest, WithoutR3ACommittedVersionIsTakenBack) {
  Options options;
  options.older_view_is_at_first_step = false;
  ExpectViolation(Takeover(options), "a committed version is taken back", 16);
}

}  // namespace
}  // namespace sluice::protocol_models
