#include "services/coordinator/core/view_change.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000);
const CoordinatorRules kRules;

v1::Pause PauseNumber(uint64_t number, bool now = true) {
  v1::Pause pause;
  pause.mutable_id()->set_number(number);
  pause.set_now(now);
  return pause;
}

v1::PauseReply ReplyTo(uint64_t number) {
  v1::PauseReply reply;
  reply.mutable_pause()->set_number(number);
  return reply;
}

v1::Install InstallNumber(uint64_t number) {
  v1::Install install;
  install.mutable_view()->mutable_id()->set_number(number);
  return install;
}

TEST(ViewChange, IsCompleteWhenAllShardsHaveRepliedToNewestPause) {
  ViewChange change(&kRules);
  change.Reset({1, 2});
  change.Begin(PauseNumber(5), kNow);
  EXPECT_TRUE(change.OnReply(1, ReplyTo(5)));
  EXPECT_FALSE(change.AllReplied());
  EXPECT_TRUE(change.OnReply(2, ReplyTo(5)));
  EXPECT_TRUE(change.AllReplied());
}

TEST(ViewChange, ReplyCountsOnlyForItsPause) {
  ViewChange change(&kRules);
  change.Reset({1, 2});
  change.Begin(PauseNumber(5, /*now=*/false), kNow);
  change.OnReply(1, ReplyTo(5));
  change.Begin(PauseNumber(6), kNow);
  EXPECT_FALSE(change.OnReply(2, ReplyTo(5)));
  EXPECT_TRUE(change.replies().empty()) << "a new Pause forgets the old replies";
}

TEST(ViewChange, RepliesOfOtherShardsDoNotCount) {
  ViewChange change(&kRules);
  change.Reset({1});
  EXPECT_FALSE(change.OnReply(1, ReplyTo(5))) << "there is no Pause";
  change.Begin(PauseNumber(5), kNow);
  EXPECT_FALSE(change.OnReply(9, ReplyTo(5)));
}

TEST(ViewChange, IsInstalledWhenAllShardsConfirmNewestView) {
  ViewChange change(&kRules);
  change.Reset({1, 2});
  change.Decide(InstallNumber(5), kNow);
  EXPECT_TRUE(change.installing());
  EXPECT_TRUE(change.OnInstalled(1, InstallNumber(5).view().id()));
  EXPECT_FALSE(change.OnInstalled(1, InstallNumber(5).view().id())) << "repeated";
  EXPECT_TRUE(change.HasInstalled(1));
  change.Decide(InstallNumber(6), kNow);
  EXPECT_FALSE(change.OnInstalled(2, InstallNumber(5).view().id())) << "an older view";
  EXPECT_EQ(change.installs().size(), 2u) << "a shard may still be in the older view";
  change.OnInstalled(1, InstallNumber(6).view().id());
  change.OnInstalled(2, InstallNumber(6).view().id());
  EXPECT_FALSE(change.installing());
  EXPECT_EQ(change.installs().size(), 1u);
}

TEST(ViewChange, ShardsThatOweAnAnswerForTooLongAreOverdue) {
  ViewChange change(&kRules);
  change.Reset({1, 2});
  change.Begin(PauseNumber(5), kNow);
  change.OnReply(1, ReplyTo(5));
  const absl::Duration timeout = absl::Seconds(3);
  EXPECT_EQ(change.NextDeadline(timeout), kNow + timeout);
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(2), timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + timeout, timeout), ElementsAre(2));
  change.Decide(InstallNumber(5), kNow + absl::Seconds(1));
  EXPECT_THAT(change.Overdue(kNow + timeout, timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(4), timeout), ElementsAre(1, 2));
}

TEST(ViewChange, ForgivenTimeDoesNotCount) {
  ViewChange change(&kRules);
  change.Reset({1});
  const absl::Duration timeout = absl::Seconds(3);
  change.Begin(PauseNumber(5), kNow);
  change.Forgive(absl::Seconds(10));
  EXPECT_EQ(change.NextDeadline(timeout), kNow + absl::Seconds(13));
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(12), timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(13), timeout), ElementsAre(1));
  change.Decide(InstallNumber(5), kNow + absl::Seconds(13));
  change.Forgive(absl::Seconds(10));
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(25), timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(26), timeout), ElementsAre(1));
}

TEST(ViewChange, PauseAfterStepMayTakeAsLongAsTheStep) {
  ViewChange change(&kRules);
  change.Reset({1});
  change.Begin(PauseNumber(5, /*now=*/false), kNow);
  EXPECT_THAT(change.Overdue(kNow + absl::Hours(1), absl::Seconds(3)), IsEmpty());
  EXPECT_EQ(change.NextDeadline(absl::Seconds(3)), absl::InfiniteFuture());
}

}  // namespace
}  // namespace sluice::coordinator
