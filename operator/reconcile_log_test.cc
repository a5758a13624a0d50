#include "operator/reconcile_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using runtime::Result;
using ::testing::HasSubstr;

class Counter final : public runtime::ControllerObserver {
 public:
  void OnReconciled(const runtime::Key&, const Result&, absl::Duration, absl::Duration,
                    absl::Duration) override {
    ++notified;
  }
  int notified = 0;
};

class ReconcileLogTest : public ::testing::Test {
 protected:
  void Fail(const std::string& job, const absl::Status& status = absl::InternalError("etcd")) {
    log_.OnReconciled({"ns", job}, Result::Error(status), {}, {}, absl::Seconds(5));
  }

  FakeClock clock_{absl::FromUnixSeconds(1700000000)};
  Counter counter_;
  std::vector<ReconcileLog::Line> lines_;
  ReconcileLog log_{
      {}, [this](const ReconcileLog::Line& line) { lines_.push_back(line); }, &counter_, &clock_};
};

TEST_F(ReconcileLogTest, LogsAFailureWithItsJobAndError) {
  Fail("a", absl::UnavailableError("create pods ns/a-ps-0: no answer"));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].job, "ns/a");
  EXPECT_THAT(lines_[0].why, HasSubstr("create pods ns/a-ps-0: no answer"));
  EXPECT_EQ(lines_[0].retry_in, absl::Seconds(5));
}

TEST_F(ReconcileLogTest, DoesNotLogSuccess) {
  log_.OnReconciled({"ns", "a"}, Result::Done(), {}, {}, {});
  log_.OnReconciled({"ns", "a"}, Result::Requeue(), {}, {}, absl::Seconds(1));
  EXPECT_TRUE(lines_.empty());
  EXPECT_EQ(counter_.notified, 2);
}

TEST_F(ReconcileLogTest, LogsAPersistentFailureOnceAMinute) {
  for (int i = 0; i < 121; ++i) {
    Fail("a");
    clock_.Advance(absl::Seconds(1));
  }
  ASSERT_EQ(lines_.size(), 3u);
  EXPECT_EQ(lines_[0].suppressed, 0);
  EXPECT_EQ(lines_[1].suppressed, 59);
  EXPECT_EQ(counter_.notified, 121);
}

TEST_F(ReconcileLogTest, LogsAnotherErrorOrJobAtOnce) {
  Fail("a");
  Fail("b");
  Fail("a", absl::PermissionDeniedError("pods is forbidden"));
  Fail("a", absl::PermissionDeniedError("pods is forbidden"));
  EXPECT_EQ(lines_.size(), 3u);
}

TEST_F(ReconcileLogTest, AThousandFailingJobsDoNotFloodTheLog) {
  for (int i = 0; i < 1000; ++i) Fail(absl::StrCat(i));
  EXPECT_EQ(lines_.size(), 20u);
  clock_.Advance(absl::Seconds(1));
  Fail("1000");
  ASSERT_EQ(lines_.size(), 21u);
  EXPECT_EQ(lines_[20].suppressed, 980);
}

}  // namespace
}  // namespace sluice
