// Tests the simulator's checker with hand-made contents.
#include "tests/simulation/checker/checker.h"

#include <cstddef>
#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/layout.h"
#include "tests/simulation/checker/toy_model.h"

namespace sluice::simulation {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBatch = 6;
constexpr uint64_t kWorkers = 5;

v1::JobSpec Job() {
  v1::JobSpec job;
  v1::TrainingSpec& training = *job.mutable_training();
  training.set_mode(v1::BOUNDED_STALENESS);
  training.set_aggregation(v1::TrainingSpec::SUM);
  training.set_global_batch_size(kBatch);
  training.set_microbatch_size(2);
  return job;
}

// One shard with one partition of two tensors. Worker w has computed samples [6w, 6w + 6).
class CheckerTest : public testing::Test {
 protected:
  CheckerTest() {
    now_.incarnation = 77;
    now_.view.set_attempt(1);
    now_.view.set_number(1);
    PartitionFacts& content = now_.partitions.emplace_back();
    for (uint32_t tensor = 0; tensor < 2; ++tensor) {
      content.blocks.push_back(model_.Initial(tensor));
    }
    checker_.OnShard(now_);
    now_.view.set_number(2);
    for (uint64_t worker = 0; worker < kWorkers; ++worker) {
      checker_.OnUpdate(TagOf(worker), SamplesOf(worker));
    }
  }

  static PositionRange SamplesOf(uint64_t worker) {
    return {worker * kBatch, (worker + 1) * kBatch};
  }
  // No tag is a sum of other tags.
  static double TagOf(uint64_t worker) { return static_cast<double>(uint64_t{1} << (10 + worker)); }

  void Add(uint64_t worker, uint32_t tensor, const PositionRange& samples) {
    const Elements3 gradient = model_.Gradient(0, samples, tensor, TagOf(worker));
    for (size_t i = 0; i < gradient.size(); ++i)
      now_.partitions[0].blocks[tensor][i] += gradient[i];
  }
  void Record(uint64_t worker, const PositionRange& samples) {
    now_.clocks[worker] = 1;
    now_.last_samples[worker] = samples;
    ++now_.partitions[0].version;
  }
  void Apply(uint64_t worker) {
    for (uint32_t tensor = 0; tensor < 2; ++tensor) Add(worker, tensor, SamplesOf(worker));
    Record(worker, SamplesOf(worker));
  }

  const v1::JobSpec job_ = Job();
  ToyModel model_{1, 2, false, kWorkers* kBatch, job_};
  Checker checker_{&model_, job_, *MakeLayout(model_.table(), 1)};
  Checker::ShardNow now_;
};

TEST_F(CheckerTest, InstallMayApplyOneUpdateOfEachWorker) {
  for (uint64_t worker = 0; worker < kWorkers; ++worker) Apply(worker);
  checker_.OnShard(now_);
  EXPECT_EQ(checker_.failure(), "");
}

TEST_F(CheckerTest, FindsPartialUpdateAmongWholeOnes) {
  for (uint64_t worker = 0; worker + 1 < kWorkers; ++worker) Apply(worker);
  Add(kWorkers - 1, 0, SamplesOf(kWorkers - 1));
  Record(kWorkers - 1, SamplesOf(kWorkers - 1));
  checker_.OnShard(now_);
  EXPECT_THAT(checker_.failure(), HasSubstr("not a set of whole updates"));
}

TEST_F(CheckerTest, FindsUnrecordedUpdateAmongOthers) {
  for (uint64_t worker = 0; worker < kWorkers; ++worker) Apply(worker);
  now_.last_samples.erase(0);
  checker_.OnShard(now_);
  EXPECT_THAT(checker_.failure(), HasSubstr("not a set of whole updates"));
}

TEST_F(CheckerTest, FindsSamplesSharedByTwoUpdatesOfOneInstall) {
  checker_.OnUpdate(TagOf(1), SamplesOf(0));
  Apply(0);
  for (uint32_t tensor = 0; tensor < 2; ++tensor) Add(1, tensor, SamplesOf(0));
  Record(1, SamplesOf(0));
  checker_.OnShard(now_);
  EXPECT_EQ(checker_.failure(), "samples [0, 6) are applied twice");
}

// Bounded staleness: the shard is the arbiter, and other shards have copies of its partition.
class LeaseTest : public CheckerTest {
 protected:
  LeaseTest() {
    v1::View view;
    *view.mutable_id() = now_.view;
    for (uint64_t worker = 0; worker < kWorkers; ++worker) {
      view.add_workers()->mutable_process()->set_incarnation(worker);
    }
    checker_.OnView(view);
  }

  static v1::Lease LeaseOf(uint64_t worker, uint64_t clock) {
    v1::Lease lease;
    lease.mutable_samples()->set_begin(SamplesOf(worker).begin);
    lease.mutable_samples()->set_end(SamplesOf(worker).end);
    lease.set_clock(clock);
    return lease;
  }
  void RecordLease(uint64_t worker, uint64_t clock) {
    checker_.OnLeaseRecorded(now_, worker, LeaseOf(worker, clock));
  }
  void GiveLease(uint64_t worker, uint64_t clock) {
    checker_.OnLease(now_, worker, LeaseOf(worker, clock));
  }
  void Finish(uint64_t worker) {
    Apply(worker);
    checker_.OnShard(now_);
  }
};

TEST_F(LeaseTest, LowestHolderMayFinishBeforeRecordedLeaseIsGiven) {
  GiveLease(0, 0);
  GiveLease(1, 40);
  RecordLease(2, 0);
  Finish(0);
  GiveLease(2, 0);
  EXPECT_EQ(checker_.failure(), "");
}

TEST_F(LeaseTest, RecordedLeaseHoldsDownTheClockOfTheNext) {
  GiveLease(0, 0);
  GiveLease(1, 40);
  RecordLease(2, 0);
  Finish(0);
  RecordLease(3, 0);
  GiveLease(3, 0);
  EXPECT_EQ(checker_.failure(), "");
}

TEST_F(LeaseTest, RepeatedRecordIsNotLease) {
  GiveLease(0, 0);
  RecordLease(1, 0);
  GiveLease(1, 0);
  Finish(1);
  Finish(0);
  GiveLease(2, 40);
  RecordLease(1, 0);
  EXPECT_EQ(checker_.failure(), "");
}

TEST_F(LeaseTest, FindsLeaseRecordedBelowAllHolders) {
  GiveLease(0, 1);
  GiveLease(1, 40);
  RecordLease(2, 0);
  EXPECT_EQ(checker_.failure(), "a worker gets a lease at clock 0, below all lease holders (R13)");
}

TEST_F(LeaseTest, FindsUnrecordedLeaseBelowAllHolders) {
  GiveLease(0, 1);
  GiveLease(1, 40);
  GiveLease(2, 0);
  EXPECT_EQ(checker_.failure(), "a worker gets a lease at clock 0, below all lease holders (R13)");
}

}  // namespace
}  // namespace sluice::simulation
