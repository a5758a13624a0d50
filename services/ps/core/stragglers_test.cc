// Steps that do not wait for every member (training.stragglers, timeouts.gradients).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;
using Values = std::vector<float>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

// Three members: 7 has microbatch 0, 8 has 1, 9 has 2 and 3. A step waits for two of them and adds
// the sum of their gradients.
class StragglersTest : public ::testing::Test {
 protected:
  StragglersTest() {
    v1::TrainingSpec& training = *shard.job.mutable_training();
    training.set_aggregation(v1::TrainingSpec::SUM);
    training.set_steps(100);
    training.mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
    training.mutable_stragglers()->set_backup(1);
  }
  void Begin() {
    shard.Begin({7, 8, 9});
    for (uint64_t member : {7, 8, 9}) streams.push_back(shard.Open(member));
  }
  static v1::Range Assigned(size_t member) {
    return member == 2 ? kMicrobatches(2, 4) : kMicrobatches(member, member + 1);
  }
  void Push(size_t member, uint64_t step, uint32_t partition, float value) {
    const Values values(partition == 0 ? 4 : 2, value);
    shard.Push(streams[member], step, partition, values, Assigned(member));
  }
  void PushAll(size_t member, uint64_t step, float value) {
    for (uint32_t partition : {0, 1}) Push(member, step, partition, value);
  }
  std::vector<v1::StepParticipants> TakeSets() {
    std::vector<v1::StepParticipants> sets;
    for (const SendToShard& action : shard.TakeActions<SendToShard>()) {
      if (action.header.has_step_participants()) sets.push_back(action.header.step_participants());
    }
    return sets;
  }
  void SendSet(uint64_t step, const std::vector<uint64_t>& members) {
    v1::Header header = shard.HeaderOf(1);
    header.mutable_step_participants()->set_step(step);
    for (uint64_t member : members) header.mutable_step_participants()->add_members(member);
    shard.Send(other, header);
  }
  // This shard owns partition 1 only. The other shard chooses the participants.
  void BeginAsSecond() {
    shard.owner = {1, 0};
    Begin();
    other = shard.Open(kOtherShardIncarnation, v1::SHARD);
  }

  ShardHarness shard;
  std::vector<StreamId> streams;
  StreamId other = 0;
};

TEST_F(StragglersTest, StepClosesWithoutTheSlowestMember) {
  Begin();
  PushAll(0, 0, 1);
  EXPECT_EQ(shard.Version(0), 0);
  PushAll(2, 0, 10);
  EXPECT_EQ(shard.Values(0), (Values{11, 11, 11, 11}));
  EXPECT_EQ(shard.Values(1), (Values{11, 11}));
}

TEST_F(StragglersTest, AllPartitionsCloseWithTheSameMembers) {
  Begin();
  Push(0, 0, 0, 1);
  Push(1, 0, 0, 10);
  EXPECT_EQ(shard.Version(0), 0) << "no member has pushed all partitions";
  Push(1, 0, 1, 10);
  Push(2, 0, 1, 100);
  Push(2, 0, 0, 100);
  EXPECT_EQ(shard.Values(0), (Values{110, 110, 110, 110}));
  EXPECT_EQ(shard.Values(1), (Values{110, 110}));
}

TEST_F(StragglersTest, DropsLateContributionAndAnswersItWithTheNewestVersion) {
  Begin();
  for (uint64_t step : {0, 1, 2}) {
    PushAll(0, step, 1);
    PushAll(1, step, 1);
  }
  EXPECT_EQ(shard.Version(0), 3);
  PushAll(2, 0, 1000);
  EXPECT_EQ(shard.Values(0), (Values{6, 6, 6, 6}));
  EXPECT_THAT(shard.TakeData(streams[2]),
              ElementsAre(Pair(Pair(0, 3), Values{6, 6, 6, 6}), Pair(Pair(1, 3), Values{6, 6})));
}

TEST_F(StragglersTest, PartsOfDroppedContributionHaveNoEffect) {
  Begin();
  Push(2, 0, 0, 1000);
  PushAll(0, 0, 1);
  PushAll(1, 0, 1);
  EXPECT_EQ(shard.Values(0), (Values{2, 2, 2, 2}));
  PushAll(0, 1, 1);
  PushAll(2, 1, 5);
  EXPECT_EQ(shard.Values(0), (Values{8, 8, 8, 8}));
}

TEST_F(StragglersTest, MeanDividesByTheSamplesOfTheParticipants) {
  shard.job.mutable_training()->set_aggregation(v1::TrainingSpec::MEAN);
  Begin();
  for (uint32_t partition : {0, 1}) {
    const Values values(partition == 0 ? 4 : 2, 8);
    shard.Push(streams[0], 0, partition, values, Assigned(0), 1);
    shard.Push(streams[1], 0, partition, values, Assigned(1), 3);
  }
  EXPECT_EQ(shard.Values(0), (Values{4, 4, 4, 4}));
}

TEST_F(StragglersTest, CountsDroppedContributionsWhenTheStepIsCommitted) {
  Begin();
  PushAll(0, 0, 1);
  PushAll(1, 0, 1);
  EXPECT_EQ(shard.core().Status().dropped_contributions, 0);
  PushAll(0, 1, 1);
  EXPECT_EQ(shard.core().Status().dropped_contributions, 0) << "one member's push is not enough";
  PushAll(1, 1, 1);
  EXPECT_EQ(shard.core().Status().dropped_contributions, 1);
}

TEST_F(StragglersTest, RolledBackStepCountsNoDroppedContributions) {
  shard.owner = {0, 1};
  Begin();
  Push(0, 0, 0, 1);
  Push(1, 0, 0, 1);
  EXPECT_EQ(shard.Version(0), 1);
  shard.ChangeView(2, 0, {7, 8});
  EXPECT_EQ(shard.Version(0), 0);
  EXPECT_EQ(shard.core().Status().dropped_contributions, 0);
}

TEST_F(StragglersTest, WaitsForAtLeastOneMember) {
  shard.job.mutable_training()->mutable_stragglers()->set_backup(5);
  Begin();
  EXPECT_EQ(shard.Version(0), 0);
  PushAll(1, 0, 3);
  EXPECT_EQ(shard.Values(0), (Values{3, 3, 3, 3}));
}

TEST_F(StragglersTest, StepDoesNotWaitForMemberWithoutSamples) {
  Begin();
  for (uint32_t partition : {0, 1}) {
    shard.Push(streams[0], 0, partition, Values(partition == 0 ? 4 : 2, 0), Assigned(0), 0);
  }
  EXPECT_EQ(shard.Version(0), 0);
  PushAll(2, 0, 3);
  EXPECT_EQ(shard.Values(0), (Values{3, 3, 3, 3}))
      << "one of the two members with samples may be missing";
}

TEST_F(StragglersTest, SendsParticipantsToOtherShardsAndAgainAfterReconnect) {
  shard.owner = {0, 1};
  Begin();
  Push(0, 0, 0, 1);
  Push(2, 0, 0, 1);
  const std::vector<v1::StepParticipants> sets = TakeSets();
  ASSERT_THAT(sets, SizeIs(1));
  EXPECT_EQ(sets[0].step(), 0);
  EXPECT_THAT(sets[0].members(), ElementsAre(7, 9));
  shard.core().OnShardConnected(kOtherShardIncarnation, shard.now);
  EXPECT_THAT(TakeSets(), SizeIs(1));
}

TEST_F(StragglersTest, OtherShardWaitsForAllParticipants) {
  BeginAsSecond();
  Push(0, 0, 1, 1);
  Push(1, 0, 1, 10);
  EXPECT_EQ(shard.Version(1), 0) << "this shard does not choose";
  SendSet(0, {8, 9});
  EXPECT_EQ(shard.Version(1), 0);
  Push(2, 0, 1, 100);
  EXPECT_EQ(shard.Values(1), (Values{110, 110}));
  SendSet(0, {8, 9});
  EXPECT_EQ(shard.Version(1), 1) << "repeated participants change nothing";
}

TEST_F(StragglersTest, RefusesParticipantsOfLaterStep) {
  BeginAsSecond();
  SendSet(1, {7});
  EXPECT_THAT(shard.StatusOf(other).message(), HasSubstr("while this shard is at step 0"));
}

TEST_F(StragglersTest, RefusesParticipantThatIsNotAMember) {
  BeginAsSecond();
  SendSet(0, {7, 33});
  EXPECT_THAT(shard.StatusOf(other).message(), HasSubstr("not a member"));
}

TEST_F(StragglersTest, RefusesEmptyParticipants) {
  BeginAsSecond();
  SendSet(0, {});
  EXPECT_THAT(shard.StatusOf(other).message(), HasSubstr("has no participants"));
}

TEST_F(StragglersTest, ClipsByTheNormOfTheParticipants) {
  shard.job.mutable_optimizer()->set_clip_norm(6);
  Begin();
  Push(2, 0, 0, 1000);
  PushAll(0, 0, 1);
  PushAll(1, 0, 1);
  // The sum of the participants is 6 elements of 2. Its norm is below clip_norm.
  EXPECT_EQ(shard.Values(0), (Values{2, 2, 2, 2}));
}

// ---- timeouts.gradients

class GradientsTimeoutTest : public ::testing::Test {
 protected:
  GradientsTimeoutTest() {
    shard.job.mutable_timeouts()->set_gradients(15);
    shard.job.mutable_training()->set_steps(2);
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
    shard.TakeMessages();
  }
  void Push(StreamId stream, uint64_t step) {
    for (uint32_t partition : {0, 1}) {
      shard.Push(stream, step, partition, Values(partition == 0 ? 4 : 2, 1),
                 stream == one ? kMicrobatches(0, 2) : kMicrobatches(2, 4));
    }
  }
  // Calls OnTick when the core asks for it, as the shard's timer does.
  void Pass(absl::Duration time) {
    const absl::Time end = shard.now + time;
    while (shard.core().NextDeadline() < end) {
      shard.now = shard.core().NextDeadline();
      shard.core().OnTick(shard.now);
    }
    shard.now = end;
    shard.core().OnTick(shard.now);
  }
  std::vector<uint64_t> Awaited(absl::Duration later) {
    Pass(later);
    return Awaited();
  }
  std::vector<uint64_t> Awaited() {
    std::vector<uint64_t> awaited;
    for (const v1::ShardProgress& progress : shard.TakeMessages(
             &v1::MemberMessage::has_shard_progress, &v1::MemberMessage::shard_progress)) {
      awaited.assign(progress.awaited().begin(), progress.awaited().end());
    }
    return awaited;
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
};

TEST_F(GradientsTimeoutTest, ReportsMembersWhoseContributionIsOverdue) {
  Push(one, 0);
  EXPECT_THAT(Awaited(absl::Seconds(14)), IsEmpty());
  EXPECT_THAT(Awaited(absl::Seconds(2)), ElementsAre(8));
}

TEST_F(GradientsTimeoutTest, EachStepRestartsTheTimeout) {
  Pass(absl::Seconds(14));
  Push(one, 0);
  Push(two, 0);
  EXPECT_THAT(Awaited(absl::Seconds(14)), IsEmpty());
  EXPECT_THAT(Awaited(absl::Seconds(2)), ElementsAre(7, 8));
}

// The shard reads what the workers have sent meanwhile only after the first events.
TEST_F(GradientsTimeoutTest, TimeWhileTheShardWasFrozenCountsAgainstNoWorker) {
  Push(one, 0);
  shard.now += absl::Seconds(60);
  shard.core().OnConnected(4711, shard.now);
  shard.core().OnTick(shard.now);
  EXPECT_THAT(Awaited(), IsEmpty());
  EXPECT_THAT(Awaited(absl::Seconds(13)), IsEmpty());
  EXPECT_THAT(Awaited(absl::Seconds(3)), ElementsAre(8));
}

TEST_F(GradientsTimeoutTest, AwaitsNoMemberAfterTheLastStep) {
  for (uint64_t step : {0, 1}) {
    Push(one, step);
    Push(two, step);
  }
  EXPECT_THAT(Awaited(absl::Seconds(60)), IsEmpty());
}

}  // namespace
}  // namespace sluice::ps
