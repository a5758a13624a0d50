#include "tests/protocol/training/asynchronous_snapshots.h"

#include <gtest/gtest.h>

#include "tests/protocol/explorer/expectations.h"

namespace sluice::protocol_models {
namespace {

using Options = AsynchronousSnapshots::Options;

TEST(AsynchronousSnapshotsTest, HoldsWhenAWorkerCrashes) {
  ExpectHolds(AsynchronousSnapshots(Options()), 1'653'176);
}

TEST(AsynchronousSnapshotsTest, HoldsWithThreeUpdates) {
  Options options;
  options.updates = 3;
  options.snapshots = 1;
  options.view_changes = 0;
  ExpectHolds(AsynchronousSnapshots(options), 123'248);
}

TEST(AsynchronousSnapshotsTest, WithoutAViewChangeASnapshotHasHalfAnUpdate) {
  Options options;
  options.install_pins = false;
  ExpectViolation(AsynchronousSnapshots(options),
                  "a snapshot has an update on one shard, but not on the other", 7);
}

TEST(AsynchronousSnapshotsTest, WithoutR2ASnapshotHasHalfAnUpdate) {
  Options options;
  options.promise = false;
  ExpectViolation(AsynchronousSnapshots(options),
                  "a snapshot has an update on one shard, but not on the other", 10);
}

TEST(AsynchronousSnapshotsTest, WithoutR6AShardNeverHasAnUpdateOfTheSnapshot) {
  Options options;
  options.applies_after_all_acks = false;
  ExpectViolation(AsynchronousSnapshots(options),
                  "a shard never had an update that another shard has applied", 8);
}

}  // namespace
}  // namespace sluice::protocol_models
