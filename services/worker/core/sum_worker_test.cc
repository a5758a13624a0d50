// Workers whose layers need sums over a whole step (training.sync), by hand-driven messages.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/core/testing/worker_test_harness.h"

namespace sluice::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Steps of 8 samples in 8 microbatches; the worker has the first four. Shard A owns partition 0.
class SumWorkerTest : public testing::Test {
 protected:
  SumWorkerTest() { world_.job_.mutable_training()->set_sync(v1::TrainingSpec::BATCH_NORM); }

  void BeginStep(uint64_t other_begin = 4) {
    world_.Start();
    world_.Install(
        world_.MakeView(1, 5, {{kSelf, {{0, other_begin}}}, {kOther, {{other_begin, 8}}}}, 0));
    world_.ConnectAll();
    world_.ReceiveVersion(5);
    world_.TakeSent(kShardA);
    world_.TakeSent(kShardB);
  }
  ComputeId Computing() const { return world_.computes_.begin()->first; }
  void Give(ComputeId id, const std::string& name, double value) {
    world_.core_.OnSum(id, name, Number(value), world_.now_);
    world_.Do();
  }
  void Answer(uint64_t step, uint32_t number, double value, const v1::View* view = nullptr) {
    v1::Header header;
    if (view != nullptr) *header.mutable_view() = view->id();
    header.mutable_step_sum_answer()->set_step(step);
    header.mutable_step_sum_answer()->set_number(number);
    world_.Receive(kShardA, header, Number(value));
  }
  // The parts that were sent: "step 5, 0: bn = 3".
  std::vector<std::string> Parts(ShardId shard = kShardA) {
    std::vector<std::string> parts;
    for (const SendFrame& frame : world_.TakeSent(shard)) {
      if (!frame.header.has_step_sum()) continue;
      const v1::StepSum& sum = frame.header.step_sum();
      const std::string value =
          frame.payload.empty() ? "nothing" : absl::StrCat(ValueOf(frame.payload));
      parts.push_back(
          absl::StrCat("step ", sum.step(), ", ", sum.number(), ": ", sum.name(), " = ", value));
    }
    return parts;
  }
  std::vector<double> Given() {
    std::vector<double> given;
    for (const GiveSum& give : std::exchange(world_.sums_, {})) {
      given.push_back(ValueOf(give.values));
    }
    return given;
  }

  WorkerHarness world_;
};

TEST_F(SumWorkerTest, SendsItsPartsToTheOwnerOfPartition0AndGivesTheSums) {
  BeginStep();
  Give(Computing(), "bn", 3);
  EXPECT_THAT(Parts(kShardB), IsEmpty());
  EXPECT_THAT(Parts(), ElementsAre("step 5, 0: bn = 3"));
  EXPECT_THAT(Given(), IsEmpty());
  Answer(5, 0, 10);
  Answer(5, 0, 11);  // again
  EXPECT_THAT(Given(), ElementsAre(10));
  Give(Computing(), "bn, backward", 4);
  EXPECT_THAT(Parts(), ElementsAre("step 5, 1: bn, backward = 4"));
  Answer(5, 0, 10);
  EXPECT_THAT(Given(), IsEmpty());
  Answer(5, 1, 20);
  EXPECT_THAT(Given(), ElementsAre(20));
}

TEST_F(SumWorkerTest, SaysWhenItNeedsNoFurtherSum) {
  BeginStep();
  Give(Computing(), "bn", 3);
  Answer(5, 0, 10);
  Parts();
  world_.FinishAllComputes();
  EXPECT_THAT(Parts(), ElementsAre("step 5, 1:  = nothing"));
}

TEST_F(SumWorkerTest, RepeatsItsPartOnNewStream) {
  BeginStep();
  Give(Computing(), "bn", 3);
  Parts();
  world_.Break(kShardA);
  world_.Connect(kShardA);
  EXPECT_THAT(Parts(), ElementsAre("step 5, 0: bn = 3"));
  Answer(5, 0, 10);
  world_.Break(kShardA);
  world_.Connect(kShardA);
  EXPECT_THAT(Parts(), IsEmpty());
}

TEST_F(SumWorkerTest, SendsPartThatWasGivenWithoutStream) {
  BeginStep();
  world_.Break(kShardA);
  Give(Computing(), "bn", 3);
  world_.Connect(kShardA);
  EXPECT_THAT(Parts(), ElementsAre("step 5, 0: bn = 3"));
}

TEST_F(SumWorkerTest, MemberThatComputesAloneNeedsNoShard) {
  BeginStep(8);
  Give(Computing(), "bn", 3);
  EXPECT_THAT(Parts(), IsEmpty());
  EXPECT_THAT(Given(), ElementsAre(3));
  Give(Computing(), "bn", 4);
  EXPECT_THAT(Given(), ElementsAre(4));
  world_.FinishAllComputes();
  EXPECT_THAT(Parts(), IsEmpty());
}

TEST_F(SumWorkerTest, NewViewComputesAllOfTheStepAgain) {
  BeginStep();
  const ComputeId first = Computing();
  Give(first, "bn", 3);
  const v1::View old = world_.view_;
  world_.Install(world_.MakeView(2, 5, {{kSelf, {{0, 4}}}, {103, {{4, 8}}}}, 1));
  EXPECT_THAT(world_.cancelled_, ElementsAre(first));
  Parts();
  Answer(5, 0, 10, &old);
  Answer(5, 0, 10);
  EXPECT_THAT(Given(), IsEmpty()) << "the sum of another view, or of a part that was not given";

  Give(first, "bn", 3);  // by the program, which does not know yet
  EXPECT_THAT(Parts(), IsEmpty());
  world_.FinishCompute(first, 1);
  world_.computes_.erase(first);
  EXPECT_THAT(world_.TakePushes(kShardA), IsEmpty());

  ASSERT_THAT(world_.computes_, SizeIs(1));
  Give(Computing(), "bn", 7);
  EXPECT_THAT(Parts(), ElementsAre("step 5, 0: bn = 7"));
}

TEST_F(SumWorkerTest, NewViewDropsGradientsThatContainOldSums) {
  BeginStep();
  Give(Computing(), "bn", 3);
  Answer(5, 0, 10);
  world_.FinishAllComputes();
  world_.Install(world_.MakeView(2, 5, {{kSelf, {{0, 4}}}, {103, {{4, 8}}}}, 1));
  EXPECT_THAT(world_.Positions(), SizeIs(1)) << "the whole assignment";
}

TEST_F(SumWorkerTest, EachStepBeginsWithSum0) {
  BeginStep();
  Give(Computing(), "bn", 3);
  Answer(5, 0, 10);
  world_.FinishAllComputes();
  world_.ReceiveVersion(6);
  Parts();
  Give(Computing(), "bn", 4);
  EXPECT_THAT(Parts(), ElementsAre("step 6, 0: bn = 4"));
}

}  // namespace
}  // namespace sluice::worker
