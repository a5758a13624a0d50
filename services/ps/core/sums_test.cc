// Sums over the members that compute in a step (training.sync).
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
using ::testing::SizeIs;
using Numbers = std::vector<double>;

constexpr auto kMicrobatches = ShardHarness::Microbatches;

absl::Cord PayloadOf(const Numbers& numbers) {
  return absl::Cord(absl::string_view(reinterpret_cast<const char*>(numbers.data()),
                                      numbers.size() * sizeof(double)));
}

// Three members: 7 has microbatch 0, 8 has 1, 9 has 2 and 3.
class SumsTest : public ::testing::Test {
 protected:
  SumsTest() {
    v1::TrainingSpec& training = *shard.job.mutable_training();
    training.set_sync(v1::TrainingSpec::BATCH_NORM);
    training.set_global_batch_size(4);
    training.set_microbatch_size(1);
    training.set_steps(100);
  }
  void Begin() {
    shard.Begin({7, 8, 9});
    Open();
  }
  void Open() {
    streams.clear();
    for (uint64_t member : {7, 8, 9}) streams.push_back(shard.Open(member));
  }
  void Give(size_t member, uint64_t step, uint32_t number, const Numbers& numbers,
            const std::string& name = "bn", uint64_t view = 1) {
    v1::Header header = shard.HeaderOf(view);
    v1::StepSum& sum = *header.mutable_step_sum();
    sum.set_step(step);
    sum.set_number(number);
    sum.set_name(numbers.empty() ? "" : name);
    shard.Send(streams[member], header, PayloadOf(numbers));
  }
  // The sums that the member received.
  std::vector<Numbers> Taken(size_t member) {
    std::vector<Numbers> taken;
    for (const SendFrame& frame : shard.TakeSent(streams[member])) {
      if (!frame.header.has_step_sum_answer()) continue;
      const std::string bytes(frame.payload);
      Numbers numbers(bytes.size() / sizeof(double));
      std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(numbers.data()));
      taken.push_back(std::move(numbers));
    }
    return taken;
  }
  void PushAll(uint64_t step) {
    for (size_t member = 0; member < 3; ++member) {
      const v1::Range range = member == 2 ? kMicrobatches(2, 4) : kMicrobatches(member, member + 1);
      const uint64_t samples = range.end() - range.begin();
      for (uint32_t partition : {0, 1}) {
        v1::Header header = shard.MakePush(step, partition, range, samples);
        header.mutable_push()->clear_blocks();
        shard.Send(streams[member], header);
      }
    }
  }
  std::vector<std::string> Failures() {
    std::vector<std::string> reasons;
    for (const v1::MemberMessage& message : shard.TakeMessages()) {
      if (message.has_failure()) reasons.push_back(message.failure().reason());
    }
    return reasons;
  }

  ShardHarness shard;
  std::vector<StreamId> streams;
};

TEST_F(SumsTest, AnswersAllOnceAllHaveGivenTheirParts) {
  Begin();
  Give(2, 0, 0, {1, 10});
  Give(0, 0, 0, {2, 20});
  for (size_t member : {0, 1, 2}) EXPECT_THAT(Taken(member), IsEmpty());
  Give(1, 0, 0, {4, 40});
  for (size_t member : {0, 1, 2}) EXPECT_THAT(Taken(member), ElementsAre(Numbers{7, 70}));
  Give(1, 0, 1, {1});
  Give(0, 0, 1, {1});
  Give(2, 0, 1, {1});
  for (size_t member : {0, 1, 2}) EXPECT_THAT(Taken(member), ElementsAre(Numbers{3}));
}

TEST_F(SumsTest, SumDoesNotDependOnTheOrderOfArrival) {
  Begin();
  const Numbers parts = {1e16, 1, -1e16};
  for (size_t member : {0, 1, 2}) Give(member, 0, 0, {parts[member]});
  const std::vector<Numbers> first = Taken(0);
  for (size_t member : {1, 2, 0}) Give(member, 0, 1, {parts[member]});
  EXPECT_EQ(first, Taken(0));
}

TEST_F(SumsTest, RepeatedPartCountsOnceAndIsAnsweredAgain) {
  Begin();
  Give(0, 0, 0, {1});
  Give(0, 0, 0, {1});
  Give(1, 0, 0, {2});
  Give(2, 0, 0, {3});
  EXPECT_THAT(Taken(0), ElementsAre(Numbers{6}));
  Give(1, 0, 1, {1});
  Give(2, 0, 0, {3});
  EXPECT_THAT(Taken(2), ElementsAre(Numbers{6}, Numbers{6}));
}

TEST_F(SumsTest, MemberWithoutStreamIsAnsweredOnItsNextOne) {
  Begin();
  Give(0, 0, 0, {1});
  Give(1, 0, 0, {2});
  shard.core().OnDisconnected(streams[0], shard.now);
  Give(2, 0, 0, {3});
  streams[0] = shard.Open(7);
  Give(0, 0, 0, {1});
  EXPECT_THAT(Taken(0), ElementsAre(Numbers{6}));
}

TEST_F(SumsTest, NewViewBeginsTheStepsSumsAgain) {
  Begin();
  for (size_t member : {0, 1, 2}) Give(member, 0, 0, {1});
  Give(0, 0, 1, {100});
  shard.ChangeView(2, 0, {7, 8, 9});
  for (size_t member : {0, 1, 2}) Taken(member);
  Give(0, 0, 1, {100}, "bn", 1);
  EXPECT_THAT(Taken(0), IsEmpty()) << "of the older view";
  // Another sum than that of the older view, which must not be the answer.
  for (size_t member : {0, 1, 2}) Give(member, 0, 0, {10}, "bn", 2);
  EXPECT_THAT(Taken(1), ElementsAre(Numbers{30}));
}

TEST_F(SumsTest, PartWaitsDuringPromise) {
  Begin();
  Give(0, 0, 0, {1});
  Give(1, 0, 0, {1});
  shard.Pause(2);
  Give(2, 0, 0, {1});
  EXPECT_THAT(Taken(2), IsEmpty());
}

TEST_F(SumsTest, MemberWithoutSamplesInTheStepIsNotAwaited) {
  Begin();
  v1::View view = shard.MakeView(2, 0, {7, 8, 9});
  view.mutable_workers(2)->clear_microbatches();
  shard.Pause(2);
  shard.Install(view);
  Give(0, 0, 0, {1}, "bn", 2);
  Give(1, 0, 0, {2}, "bn", 2);
  EXPECT_THAT(Taken(0), ElementsAre(Numbers{3}));
  Give(2, 0, 0, {3}, "bn", 2);
  EXPECT_THAT(shard.StatusOf(streams[2]).message(),
              HasSubstr("in which the sender has no samples"));
}

TEST_F(SumsTest, MembersThatNeedDifferentSumsFailTheJob) {
  Begin();
  Give(0, 0, 0, {1, 2}, "batch norm 'a'");
  Give(2, 0, 0, {1, 2, 3}, "batch norm 'b'");
  const std::vector<std::string> failures = Failures();
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0], HasSubstr("a sum of 2 numbers for batch norm 'a', and worker"));
  EXPECT_THAT(failures[0], HasSubstr("a sum of 3 numbers for batch norm 'b': every worker must"));
}

TEST_F(SumsTest, MemberThatIsDoneWhileAnotherNeedsSumFailsTheJob) {
  Begin();
  Give(0, 0, 0, {});
  Give(1, 0, 0, {1}, "batch norm 'a'");
  const std::vector<std::string> failures = Failures();
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0], HasSubstr("needs no further sum, and worker"));
}

TEST_F(SumsTest, NextStepNeedsNotHearThatMembersWereDone) {
  Begin();
  for (size_t member : {0, 1, 2}) Give(member, 0, 0, {1});
  Give(0, 0, 1, {});
  PushAll(0);
  ASSERT_EQ(shard.Version(0), 1u);
  Give(1, 0, 1, {});  // late
  for (size_t member : {0, 1, 2}) Taken(member);
  for (size_t member : {0, 1, 2}) Give(member, 1, 0, {5});
  EXPECT_THAT(Failures(), IsEmpty());
}

TEST_F(SumsTest, RefusesPartsThatBreakTheContract) {
  struct Case {
    uint64_t step;
    uint32_t number;
    size_t numbers;
    std::string name;
    std::string text;
  };
  Begin();
  const std::vector<Case> cases = {
      {1, 0, 1, "bn", "step 1 in a job of 100 steps, while a partition of this shard is at"},
      {100, 0, 1, "bn", "step 100"},
      {0, 1, 1, "bn", "sum 1 of step 0 while sum 0 is the next one"},
      {0, 0, 1, "", "has 8 bytes and the name ''"},
      {0, 0, 0, "bn", "has 0 bytes and the name 'bn'"},
      {0, 0, 1, std::string(513, 'a'), "at most 512 and 1048576 are allowed"},
      {0, 0, 131073, "bn", "at most 512 and 1048576 are allowed"}};
  for (const Case& one : cases) {
    v1::Header header = shard.HeaderOf(1);
    header.mutable_step_sum()->set_step(one.step);
    header.mutable_step_sum()->set_number(one.number);
    header.mutable_step_sum()->set_name(one.name);
    shard.Send(streams[0], header, PayloadOf(Numbers(one.numbers)));
    EXPECT_THAT(shard.StatusOf(streams[0]).message(), HasSubstr(one.text));
    streams[0] = shard.Open(7);
  }
  v1::Header odd = shard.HeaderOf(1);
  odd.mutable_step_sum()->set_name("bn");
  shard.Send(streams[0], odd, absl::Cord("1234567"));
  EXPECT_THAT(shard.StatusOf(streams[0]).message(), HasSubstr("has 7 bytes"));
  EXPECT_THAT(Failures(), IsEmpty());
}

TEST_F(SumsTest, OnlyTheOwnerOfPartition0MakesSums) {
  shard.owner = {1, 0};
  Begin();
  Give(0, 0, 0, {1});
  EXPECT_THAT(shard.StatusOf(streams[0]).message(), HasSubstr("does not own partition 0"));
}

TEST_F(SumsTest, JobWithoutSyncRefusesParts) {
  shard.job.mutable_training()->clear_sync();
  Begin();
  Give(0, 0, 0, {1});
  EXPECT_THAT(shard.StatusOf(streams[0]).message(), HasSubstr("without `sync: BatchNorm`"));
}

}  // namespace
}  // namespace sluice::ps
