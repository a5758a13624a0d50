#include "tests/protocol/membership/takeover.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = Takeover::Options;

// The coordinator's rule for files of abandoned snapshots.
Options RemovalOnceOver() {
  Options options;
  options.abandoned = Takeover::Removal::kOnceOver;
  options.found = Takeover::Removal::kNever;
  options.asked_index_is_written = true;
  return options;
}

// So many steps that a push commits a version after one that is saved.
Options RemovalOnceOverWithThreeSteps() {
  Options options = RemovalOnceOver();
  options.steps = 3;
  options.view_changes = 0;
  return options;
}

constexpr char kFileIsMissing[] = "a file that the newest index names is missing";

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

TEST(TakeoverTest, HoldsWhenAbandonedFilesAreRemovedOnceNoIndexWillNameThem) {
  ExpectHolds(Takeover(RemovalOnceOver()), 668'491);
  ExpectHolds(Takeover(RemovalOnceOverWithThreeSteps()), 319'440);
}

TEST(TakeoverTest, HoldsWithThreeCoordinatorsWhenAbandonedFilesAreRemovedOnceNoIndexWillNameThem) {
  Options options = RemovalOnceOver();
  options.second_coordinators = 2;
  options.view_changes = 0;
  options.abandons = 0;
  ExpectHolds(Takeover(options), 607'125);
}

TEST(TakeoverTest, UntilALaterVersionIsCommittedTheNextCoordinatorMayNameTheFiles) {
  Options options = RemovalOnceOverWithThreeSteps();
  options.when_over.later_is_committed = false;
  ExpectViolation(Takeover(options), kFileIsMissing, 21);
}

TEST(TakeoverTest, ACommitInTheNextCoordinatorsViewDoesNotTellThatTheFilesAreNotNamed) {
  Options options = RemovalOnceOverWithThreeSteps();
  options.when_over.in_own_view = false;
  ExpectViolation(Takeover(options), kFileIsMissing, 26);
}

TEST(TakeoverTest, AFrozenPredecessorNamesFilesOfAVersionThatTheOwnFirstViewBeganWith) {
  Options options = RemovalOnceOverWithThreeSteps();
  options.when_over.after_own_first_step = false;
  ExpectViolation(Takeover(options), kFileIsMissing, 23);
}

TEST(TakeoverTest, ACoordinatorRemovesFilesThatItsOwnLateIndexThenNames) {
  Options options = RemovalOnceOverWithThreeSteps();
  options.when_over.index_is_not_asked_for = false;
  ExpectViolation(Takeover(options), kFileIsMissing, 18);
}

TEST(TakeoverTest, ACoordinatorRemovesAbandonedFilesThatAnotherOneHasNamed) {
  Options options;
  options.abandoned = Takeover::Removal::kAtOnce;
  ExpectViolation(Takeover(options), kFileIsMissing, 21);
}

TEST(TakeoverTest, ANewCoordinatorRemovesFilesThatItsFrozenPredecessorThenNames) {
  for (bool names_have_terms : {false, true}) {
    Options options;
    options.names_have_terms = names_have_terms;
    options.found = Takeover::Removal::kAtOnce;
    ExpectViolation(Takeover(options), kFileIsMissing, 19);
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
