#include "services/coordinator/core/facts/training_mode.h"

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/model.pb.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr uint64_t kShard = 11;

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.incarnation = 77;
  options.job.mutable_training()->set_global_batch_size(10);
  options.job.mutable_training()->set_microbatch_size(5);
  options.job.mutable_training()->set_steps(4);
  return options;
}

// An attempt with one shard, which owns the only partition.
class TrainingModeTest : public ::testing::Test {
 protected:
  void Begin(v1::Mode mode) {
    Attempt& attempt = facts_.attempt;
    attempt.mode = mode;
    attempt.model.ready.emplace();
    attempt.model.length = *JobLength::Create(facts_.job(), /*training_samples=*/100);
    v1::TensorTable table;
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("w");
    tensor.set_dtype(v1::FLOAT32);
    tensor.add_shape(1);
    v1::View::Shard shard;
    shard.mutable_process()->set_incarnation(kShard);
    attempt.BeginWith({shard}, {0}, LayoutIndex(table, *MakeLayout(table, /*partitions=*/1)));
    facts_.training.Begin();
  }

  // A worker with a lease, whose newest update has this clock.
  void AddLeaseholder(uint64_t worker, uint64_t clock) {
    reply_.add_leases()->set_worker(worker);
    v1::ClockRecord& record = *reply_.add_clocks();
    record.set_worker(worker);
    record.set_clock(clock);
  }
  void Reply() {
    v1::Pause pause;
    pause.mutable_id()->set_number(1);
    *reply_.mutable_pause() = pause.id();
    facts_.view_change.Begin(pause, {kShard}, kStart);
    ASSERT_TRUE(facts_.view_change.OnReply(kShard, reply_));
  }

  CoordinatorRules rules_;
  Facts facts_{Options(), &rules_, kStart};
  v1::PauseReply reply_;
};

TEST_F(TrainingModeTest, AnAsynchronousJobExpelsAllIdleLeaseholders) {
  Begin(v1::ASYNCHRONOUS);
  AddLeaseholder(1, 5);
  AddLeaseholder(2, 7);
  Reply();
  EXPECT_THAT(facts_.mode().IdleLeaseholders(), ElementsAre(1, 2));
}

TEST_F(TrainingModeTest, WithBoundedStalenessOnlyTheSlowestLeaseholdersAreIdle) {
  Begin(v1::BOUNDED_STALENESS);
  AddLeaseholder(1, 5);
  AddLeaseholder(2, 7);
  AddLeaseholder(3, 5);
  Reply();
  EXPECT_THAT(facts_.mode().IdleLeaseholders(), ElementsAre(1, 3));
}

TEST_F(TrainingModeTest, ASynchronousJobHasNoLeases) {
  Begin(v1::SYNCHRONOUS);
  Reply();
  EXPECT_THAT(facts_.mode().IdleLeaseholders(), IsEmpty());
}

TEST_F(TrainingModeTest, ASynchronousJobDividesItsMicrobatches) {
  Begin(v1::SYNCHRONOUS);
  EXPECT_EQ(facts_.mode().MaxMembers(), 2);
  v1::View view;
  view.add_workers();
  view.add_workers();
  facts_.mode().DivideWork({0, 0}, &view);
  EXPECT_EQ(view.workers(0).microbatches(0).end(), 1);
  EXPECT_EQ(view.workers(1).microbatches(0).end(), 2);
}

// A shard's report on a view without workers changes nothing.
TEST_F(TrainingModeTest, ViewWithoutWorkersDeterminesTheFinalVersion) {
  Begin(v1::SYNCHRONOUS);
  v1::ShardProgress progress;
  progress.set_closed(3);
  facts_.training.OnProgress(kShard, progress);
  for (const v1::Mode mode : {v1::SYNCHRONOUS, v1::ASYNCHRONOUS}) {
    facts_.attempt.mode = mode;
    EXPECT_EQ(facts_.mode().FinalVersion(), facts_.training.view().first_step());
  }
}

TEST_F(TrainingModeTest, ProgressIsCountedInTheModesOwnUnit) {
  Begin(v1::SYNCHRONOUS);
  v1::ShardProgress progress;
  progress.set_closed(3);
  progress.set_samples(25);
  facts_.training.OnProgress(kShard, progress);
  EXPECT_EQ(facts_.mode().ScheduleStep(), 3);

  facts_.attempt.mode = v1::ASYNCHRONOUS;
  EXPECT_EQ(facts_.mode().Samples(), 25);
  EXPECT_EQ(facts_.mode().ScheduleStep(), 2);  // whole global batches
  EXPECT_EQ(facts_.mode().InstalledBarrier(2), 20);
}

TEST_F(TrainingModeTest, ASynchronousJobIsCompleteOnceTheLastStepIsCommitted) {
  Begin(v1::SYNCHRONOUS);
  v1::ShardProgress progress;
  progress.set_closed(4);
  facts_.training.OnProgress(kShard, progress);
  EXPECT_FALSE(facts_.mode().Complete());
  facts_.training.RaiseCommitted(4);
  EXPECT_TRUE(facts_.mode().Complete());
}

TEST_F(TrainingModeTest, OnlyModesInStepCanBeHeldAtAVersion) {
  Begin(v1::SYNCHRONOUS);
  EXPECT_TRUE(facts_.mode().InStep());
  facts_.attempt.mode = v1::ASYNCHRONOUS;
  EXPECT_FALSE(facts_.mode().InStep());
  facts_.attempt.mode = v1::BOUNDED_STALENESS;  // maxStaleness is 0
  EXPECT_TRUE(facts_.mode().InStep());
}

}  // namespace
}  // namespace sluice::coordinator
