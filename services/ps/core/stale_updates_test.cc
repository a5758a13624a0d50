// Staleness rules through ShardCore. Each test compares with values computed by hand.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

using Rules = v1::TrainingSpec::Staleness;

class StalenessRuleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    shard.job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
    shard.job.mutable_training()->set_steps(100);
    shard.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
    shard.job.mutable_optimizer()->set_learning_rate(0.5);
  }
  void Begin(Rules::Rule rule) {
    shard.job.mutable_training()->mutable_staleness()->set_rule(rule);
    shard.Begin({7, 8});
    shard.ChangeView(2, kUpdates, {7, 8});
    shard.TakeMessages();
    one = shard.Open(7);
    two = shard.Open(8);
    for (StreamId stream : {one, two}) {
      v1::Header header = NewHeader();
      header.mutable_lease_request()->set_samples(40);
      shard.Send(stream, header);
      for (const v1::Header& frame : shard.TakeFrames(stream)) {
        if (frame.has_lease()) next_[stream] = frame.lease().samples().begin();
      }
    }
  }
  v1::Header NewHeader() {
    v1::Header header;
    *header.mutable_view() = shard.core().Status().view;
    return header;
  }
  void Pull(StreamId stream) {
    v1::Header header = NewHeader();
    header.mutable_pull()->add_partitions(0);
    header.mutable_pull()->add_partitions(1);
    shard.Send(stream, header);
  }
  // Requests the permit of the next update, whose base version is `staleness` updates old.
  void Permit(StreamId stream, uint64_t clock, uint64_t staleness) {
    v1::Header header = NewHeader();
    header.mutable_permit_request()->set_clock(clock);
    header.mutable_permit_request()->set_base_version(ordinal_ - staleness);
    shard.TakeFrames(stream);
    shard.Send(stream, header);
    for (const v1::Header& frame : shard.TakeFrames(stream)) {
      if (!frame.has_permit()) continue;
      EXPECT_EQ(frame.permit().ordinal(), ordinal_);
      EXPECT_EQ(frame.permit().staleness(), staleness);
    }
    ordinals_[stream] = ordinal_++;
  }
  void Stage(StreamId stream, uint64_t clock, float gradient, uint64_t staleness = 0) {
    Permit(stream, clock, staleness);
    for (uint32_t partition : {0, 1}) {
      v1::Header header = shard.MakePush(0, partition, ShardHarness::Microbatches(0, 1), 1);
      header.mutable_push()->set_clock(clock);
      header.mutable_push()->set_ordinal(ordinals_[stream]);
      shard.Send(stream, header, CordOf(std::vector<float>(partition == 0 ? 4 : 2, gradient)));
    }
  }
  // Stages and applies a worker's next update, of one sample, with this staleness in its permit.
  void Update(StreamId stream, float gradient, uint64_t staleness, bool pull = false) {
    const uint64_t clock = ++clocks_[stream];
    Stage(stream, clock, gradient, staleness);
    v1::Header header = NewHeader();
    v1::Apply& apply = *header.mutable_apply();
    apply.set_clock(clock);
    apply.set_ordinal(ordinals_[stream]);
    *apply.mutable_samples() = ShardHarness::Microbatches(next_[stream], next_[stream] + 1);
    ++next_[stream];
    apply.set_staleness(staleness);
    apply.set_pull_next(pull);
    shard.Send(stream, header);
    ASSERT_TRUE(shard.StatusOf(stream).ok()) << shard.StatusOf(stream);
  }
  // The value of every parameter: all have the same gradients.
  float Value() {
    const std::vector<float> values = shard.Values(0);
    EXPECT_EQ(values, std::vector<float>(4, values[0]));
    EXPECT_EQ(shard.Values(1), std::vector<float>(2, values[0]));
    return values[0];
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
  std::map<StreamId, uint64_t> clocks_;
  std::map<StreamId, uint64_t> next_;  // sample
  // Ordinals of updates. The view begins with kUpdates applied updates.
  static constexpr uint64_t kUpdates = 20;
  uint64_t ordinal_ = kUpdates;
  std::map<StreamId, uint64_t> ordinals_;
};

TEST_F(StalenessRuleTest, WithoutRuleStalenessHasNoEffect) {
  Begin(Rules::NONE);
  Update(one, 1, 9);
  EXPECT_FLOAT_EQ(Value(), -0.5f);
}

TEST_F(StalenessRuleTest, DampedUpdatesMakeSmallerSteps) {
  shard.job.mutable_training()->mutable_staleness()->set_factor(0.5);
  Begin(Rules::DAMPED);
  Update(one, 1, 0);
  EXPECT_FLOAT_EQ(Value(), -0.5f);
  Update(two, 1, 2);  // 0.5 / (1 + 0.5 * 2)
  EXPECT_FLOAT_EQ(Value(), -0.75f);
  Update(one, 2, 6);  // 0.5 / (1 + 0.5 * 6)
  EXPECT_FLOAT_EQ(Value(), -1.0f);
}

TEST_F(StalenessRuleTest, InverseDividesByTheStaleness) {
  Begin(Rules::INVERSE);
  Update(one, 1, 0);
  Update(two, 1, 1);
  EXPECT_FLOAT_EQ(Value(), -1.0f);
  Update(one, 4, 4);
  EXPECT_FLOAT_EQ(Value(), -1.5f);
}

TEST_F(StalenessRuleTest, StaleUpdatesUseLessMomentum) {
  shard.job.mutable_optimizer()->set_momentum(0.75);
  Begin(Rules::MOMENTUM_CORRECTION);
  Update(one, 1, 3);  // b = 1
  EXPECT_FLOAT_EQ(Value(), -0.5f);
  Update(two, 1, 0);  // b = 0.75 + 1
  EXPECT_FLOAT_EQ(Value(), -1.375f);
  Update(one, 1, 1);  // b = (0.75 - 0.5) * 1.75 + 1 = 1.4375
  EXPECT_FLOAT_EQ(Value(), -2.09375f);
  Update(two, 1, 9);  // b = 1: the momentum is never negative
  EXPECT_FLOAT_EQ(Value(), -2.59375f);
}

TEST_F(StalenessRuleTest, DelayCompensationUsesTheVersionThatTheWorkerComputedOn) {
  shard.job.mutable_training()->mutable_staleness()->set_lambda(0.5);
  Begin(Rules::DELAY_COMPENSATION);
  Pull(one);
  Pull(two);
  Update(one, 1, 0, /*pull=*/true);  // at 0: nothing has moved
  EXPECT_FLOAT_EQ(Value(), -0.5f);
  Update(two, 1, 1);  // at 0, now -0.5: g = 1 + 0.5 * 1 * -0.5 = 0.75
  EXPECT_FLOAT_EQ(Value(), -0.875f);
  Update(one, 2, 1);  // at -0.5, now -0.875: g = 2 + 0.5 * 4 * -0.375 = 1.25
  EXPECT_FLOAT_EQ(Value(), -1.5f);
}

TEST_F(StalenessRuleTest, DelayCompensationUsesTheScaledGradient) {
  shard.job.mutable_training()->mutable_staleness()->set_lambda(1);
  Begin(Rules::DELAY_COMPENSATION);
  Pull(one);
  Pull(two);
  Update(one, 1, 0);

  const uint64_t clock = ++clocks_[two];
  Permit(two, clock, 0);
  for (uint32_t partition : {0, 1}) {  // the sum over 4 samples
    v1::Header header = shard.MakePush(0, partition, ShardHarness::Microbatches(0, 1), 4);
    header.mutable_push()->set_clock(clock);
    header.mutable_push()->set_ordinal(ordinals_[two]);
    shard.Send(two, header, CordOf(std::vector<float>(partition == 0 ? 4 : 2, 4)));
  }

  v1::Header header = NewHeader();
  header.mutable_apply()->set_clock(clock);
  header.mutable_apply()->set_ordinal(ordinals_[two]);
  *header.mutable_apply()->mutable_samples() =
      ShardHarness::Microbatches(next_[two], next_[two] + 4);
  shard.Send(two, header);

  EXPECT_FLOAT_EQ(Value(), -0.5f - 0.5f * (1 - 0.5f));
}

TEST_F(StalenessRuleTest, WithoutPullDelayCompensationHasNoEffect) {
  shard.job.mutable_training()->mutable_staleness()->set_lambda(0.5);
  Begin(Rules::DELAY_COMPENSATION);
  Update(one, 1, 0);
  Update(two, 1, 1);
  EXPECT_FLOAT_EQ(Value(), -1.0f);
}

// Another shard has applied the update, so this shard applies it in the same way.
TEST_F(StalenessRuleTest, InstallAppliesWinningUpdateWithItsStaleness) {
  shard.job.mutable_training()->mutable_staleness()->set_lambda(0.5);
  Begin(Rules::DELAY_COMPENSATION);
  Pull(one);
  Pull(two);
  Update(one, 1, 0);
  Stage(two, 1, 1);

  shard.Pause(3);
  v1::Install install = shard.MakeInstall(shard.MakeView(3, kUpdates + 2, {7}));
  v1::ClockRecord& winner = *install.add_clocks();
  winner.set_worker(8);
  winner.set_clock(1);
  winner.set_staleness(1);
  *winner.mutable_samples() = ShardHarness::Microbatches(next_[two], next_[two] + 1);

  v1::CoordinatorMessage message;
  *message.mutable_install() = install;
  shard.Deliver(message);
  EXPECT_FLOAT_EQ(Value(), -0.875f);
}

TEST_F(StalenessRuleTest, InstallDampsWinningUpdateByItsStaleness) {
  shard.job.mutable_training()->mutable_staleness()->set_factor(0.5);
  Begin(Rules::DAMPED);
  Stage(two, 1, 1);
  shard.Pause(3);
  v1::Install install = shard.MakeInstall(shard.MakeView(3, kUpdates + 1, {7}));
  v1::ClockRecord& winner = *install.add_clocks();
  winner.set_worker(8);
  winner.set_clock(1);
  winner.set_staleness(2);
  *winner.mutable_samples() = ShardHarness::Microbatches(0, 1);
  v1::CoordinatorMessage message;
  *message.mutable_install() = install;
  shard.Deliver(message);
  EXPECT_FLOAT_EQ(Value(), -0.25f);
}

TEST_F(StalenessRuleTest, ClockRecordsReportTheStaleness) {
  Begin(Rules::INVERSE);
  Update(one, 1, 4);
  shard.Pause(3);
  const std::vector<v1::PauseReply> replies = shard.TakePauseReplies();
  ASSERT_EQ(replies.size(), 1);
  ASSERT_EQ(replies[0].clocks_size(), 1);
  EXPECT_EQ(replies[0].clocks(0).staleness(), 4);
}

}  // namespace
}  // namespace sluice::ps
