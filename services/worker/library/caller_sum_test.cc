// Sums over a step's members, which a computation waits for.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "services/protocol/worker_limits.h"
#include "services/worker/library/testing/caller_harness.h"

namespace sluice::worker {
namespace {

class SumTest : public CallerTest {
 protected:
  static v1::JobSpec Job() {
    v1::JobSpec job = MakeJob();
    job.mutable_training()->set_sync(v1::TrainingSpec::BATCH_NORM);
    return job;
  }
  // The code; values_ and abandoned_ are the results.
  sluice_code Sum(absl::Duration timeout = kPatience) {
    return caller_.Sum("bn", values_.data(), values_.size(), timeout, &abandoned_).code;
  }

  // Until another thread is in Sum. The work is not ended, so Next has no other effect.
  void WaitUntilSumWaits() {
    while (Next(absl::ZeroDuration()) != SLUICE_BUSY) std::this_thread::yield();
  }

  std::vector<double> values_ = {1, 2};
  bool abandoned_ = false;
};

TEST_F(SumTest, SumReplacesTheValues) {
  Open();
  Instance instance(&caller_, Job());
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  EXPECT_EQ(Sum(kSoon), SLUICE_TIMEOUT);
  EXPECT_EQ(values_, (std::vector<double>{1, 2}));
  EXPECT_EQ(Gradient(), SLUICE_OK);
  EXPECT_EQ(Done(), SLUICE_WRONG_STATE) << "the sum is not finished";
  values_.push_back(3);
  EXPECT_EQ(Sum(kSoon), SLUICE_WRONG_STATE) << "another sum";
  values_.pop_back();

  std::thread shard([&] {
    WaitUntilSumWaits();
    instance.GiveSum(1, {10, 20});
  });
  EXPECT_EQ(Sum(), SLUICE_OK);
  shard.join();
  EXPECT_EQ(values_, (std::vector<double>{10, 20}));
  EXPECT_FALSE(abandoned_);
  EXPECT_EQ(Done(), SLUICE_OK);
}

TEST_F(SumTest, CancelledWorkNeedsNoSum) {
  Open();
  Instance instance(&caller_, Job());
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  std::thread core([&] {
    WaitUntilSumWaits();
    instance.Cancel(1);
  });
  EXPECT_EQ(Sum(), SLUICE_OK);
  core.join();
  EXPECT_TRUE(abandoned_);
  EXPECT_EQ(values_, (std::vector<double>{1, 2}));
  values_.push_back(3);
  EXPECT_EQ(Sum(), SLUICE_OK) << "the next one, at once";
  EXPECT_TRUE(abandoned_);
  EXPECT_EQ(Done(), SLUICE_OK);
}

TEST_F(SumTest, EndOfTheInstanceEndsTheWait) {
  Open();
  auto instance = std::make_unique<Instance>(&caller_, Job());
  instance->Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  std::thread end([&] {
    WaitUntilSumWaits();
    instance.reset();
  });
  EXPECT_EQ(Sum(), SLUICE_OK);
  EXPECT_TRUE(abandoned_);
  end.join();
}

TEST_F(SumTest, OneThreadAtATimeWaitsForSum) {
  Open();
  Instance instance(&caller_, Job());
  EXPECT_EQ(Sum(kSoon), SLUICE_WRONG_STATE) << "no work";
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  std::thread waiting([&] {
    sluice_code code;
    while ((code = Sum()) == SLUICE_BUSY) {
    }
    EXPECT_EQ(code, SLUICE_OK);
  });
  std::vector<double> values = {5, 6};
  bool abandoned = false;
  while (caller_.Sum("bn", values.data(), 2, absl::ZeroDuration(), &abandoned).code !=
         SLUICE_BUSY) {
  }
  EXPECT_FALSE(caller_.StopIfIdle());
  EXPECT_EQ(Done(), SLUICE_BUSY);
  EXPECT_EQ(Next(kSoon), SLUICE_BUSY);
  instance.GiveSum(1, {10, 20});
  waiting.join();
}

TEST_F(SumTest, RefusesSumsThatNoShardTakes) {
  Open();
  Instance instance(&caller_, Job());
  instance.Give(ComputeOf(1, {0, 4}));
  ASSERT_EQ(Next(), SLUICE_OK);
  bool abandoned = false;
  std::vector<double> many(kMaxSumBytes / sizeof(double) + 1);
  const auto code = [&](const std::string& name, size_t count) {
    return caller_.Sum(name, many.data(), count, kSoon, &abandoned).code;
  };
  EXPECT_EQ(code("bn", many.size()), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(code("bn", 0), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(code("", 1), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(code(std::string(kMaxSumNameBytes + 1, 'a'), 1), SLUICE_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace sluice::worker
