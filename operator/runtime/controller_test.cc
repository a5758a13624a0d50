#include "operator/runtime/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "services/common/threads/mutex.h"
#include "services/common/threads/notification.h"

namespace sluice::runtime {
namespace {

using ::testing::ElementsAre;

// Returns the results that the test has prepared, in order; then Done.
class ScriptedReconciler : public Reconciler {
 public:
  Result Reconcile(const Key& key) override {
    MutexLock lock(&mutex);
    names.push_back(key.name);
    if (answers.empty()) return Result::Done();
    Result answer = answers.front();
    answers.pop_front();
    return answer;
  }
  Mutex mutex;
  std::deque<Result> answers;
  std::vector<std::string> names;
};

class RecordingObserver : public ControllerObserver {
 public:
  void OnReconciled(const Key&, const Result& result, absl::Duration, absl::Duration,
                    absl::Duration retry_in) override {
    kinds.push_back(KindName(result.kind));
    retries.push_back(retry_in);
  }
  std::vector<std::string> kinds;
  std::vector<absl::Duration> retries;
};

class ControllerTest : public ::testing::Test {
 protected:
  const Key a_{"ns", "a"};
  FakeClock clock_;
  ScriptedReconciler reconciler_;
  RecordingObserver observer_;
  Controller controller_{{"test", 1, {}}, &reconciler_, &clock_, &observer_};
};

TEST_F(ControllerTest, ADoneKeyWaitsForAChange) {
  controller_.queue()->Add(a_);
  EXPECT_TRUE(controller_.ProcessOne());
  clock_.Advance(absl::Hours(10));
  EXPECT_FALSE(controller_.ProcessOne());
}

TEST_F(ControllerTest, RetriesAnErrorWithGrowingDelays) {
  reconciler_.answers = {Result::Error(absl::UnavailableError("x")), Result::Requeue(),
                         Result::Done(), Result::Error(absl::UnavailableError("y"))};
  controller_.queue()->Add(a_);
  EXPECT_TRUE(controller_.ProcessOne());
  EXPECT_FALSE(controller_.ProcessOne());
  clock_.Advance(absl::Milliseconds(5));
  EXPECT_TRUE(controller_.ProcessOne());
  clock_.Advance(absl::Milliseconds(9));
  EXPECT_FALSE(controller_.ProcessOne());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(controller_.ProcessOne());
  controller_.queue()->Add(a_);
  EXPECT_TRUE(controller_.ProcessOne());
  EXPECT_THAT(observer_.kinds, ElementsAre("error", "requeue", "done", "error"));
  EXPECT_THAT(observer_.retries, ElementsAre(absl::Milliseconds(5), absl::Milliseconds(10),
                                             absl::ZeroDuration(), absl::Milliseconds(5)));
}

TEST_F(ControllerTest, LimitsAKeyThatRequeuesImmediately) {
  reconciler_.answers = std::deque<Result>(1000, Result::RequeueAfter(absl::ZeroDuration()));
  controller_.queue()->Add(a_);
  for (int i = 0; i < 100; ++i) {
    while (controller_.ProcessOne()) {
    }
    clock_.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(reconciler_.names.size(), 10u) << "in 100 ms";
}

TEST_F(ControllerTest, RequeuesAfterTheRequestedTimeWithoutAFailure) {
  reconciler_.answers = {Result::RequeueAfter(absl::Minutes(1))};
  controller_.queue()->Add(a_);
  EXPECT_TRUE(controller_.ProcessOne());
  EXPECT_EQ(controller_.queue()->Failures(a_), 0);
  clock_.Advance(absl::Seconds(59));
  EXPECT_FALSE(controller_.ProcessOne());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(controller_.ProcessOne());
}

TEST(ControllerThreadsTest, WorkersReconcileAndStopWaitsForThem) {
  class Notifier : public Reconciler {
   public:
    Result Reconcile(const Key&) override {
      called.Notify();
      return Result::Done();
    }
    Notification called;
  };
  const RealClock clock;
  Notifier notifier;
  Controller controller({"test", 3, {}}, &notifier, &clock, nullptr);
  controller.Start();
  controller.queue()->Add({"ns", "a"});
  notifier.called.Wait();
  controller.Stop();
  EXPECT_EQ(controller.queue()->processing(), 0u);
}

}  // namespace
}  // namespace sluice::runtime
