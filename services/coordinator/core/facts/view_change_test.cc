#include "services/coordinator/core/facts/view_change.h"

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

v1::Install InstallNumber(uint64_t number, const std::vector<uint64_t>& shards) {
  v1::Install install;
  for (const uint64_t shard : shards) {
    install.mutable_view()->add_shards()->mutable_process()->set_incarnation(shard);
  }
  install.mutable_view()->mutable_id()->set_number(number);
  return install;
}

TEST(ViewChange, IsCompleteWhenAllShardsHaveRepliedToNewestPause) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2}, kNow);
  EXPECT_TRUE(change.OnReply(1, ReplyTo(5)));
  EXPECT_FALSE(change.AllReplied());
  EXPECT_TRUE(change.OnReply(2, ReplyTo(5)));
  EXPECT_TRUE(change.AllReplied());
}

TEST(ViewChange, ReplyCountsOnlyForItsPause) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5, /*now=*/false), {1, 2}, kNow);
  change.OnReply(1, ReplyTo(5));
  change.Begin(PauseNumber(6), {1, 2}, kNow);
  EXPECT_FALSE(change.OnReply(2, ReplyTo(5)));
  EXPECT_TRUE(change.replies().empty()) << "a new Pause forgets the old replies";
}

TEST(ViewChange, IsCompleteWithoutTheReplyOfShardThatIsDropped) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2}, kNow);
  change.OnReply(1, ReplyTo(5));
  change.OnReply(2, ReplyTo(5));
  change.Drop(2);
  EXPECT_TRUE(change.AllReplied());
  EXPECT_FALSE(change.OnReply(2, ReplyTo(5)));
  EXPECT_EQ(change.replies().size(), 1u);
}

TEST(ViewChange, IsInstalledByTheShardsOfTheNewView) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2}, kNow);
  change.Decide(InstallNumber(5, {2, 3}), {}, kNow);
  EXPECT_FALSE(change.OnInstalled(1, InstallNumber(5, {}).view().id())) << "it is left out";
  EXPECT_TRUE(change.OnInstalled(2, InstallNumber(5, {}).view().id()));
  EXPECT_TRUE(change.installing());
  EXPECT_TRUE(change.OnInstalled(3, InstallNumber(5, {}).view().id()));
  EXPECT_FALSE(change.installing());
}

TEST(ViewChange, LosersInstallFirst) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2, 3}, kNow);
  change.Decide(InstallNumber(5, {2, 3}), {1, 2}, kNow);
  EXPECT_TRUE(change.MaySendTo(1)) << "it is left out";
  EXPECT_TRUE(change.MaySendTo(2));
  EXPECT_FALSE(change.MaySendTo(3));
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(9), absl::Seconds(5)), ElementsAre(1, 2));

  const absl::Time later = kNow + absl::Seconds(3);
  EXPECT_TRUE(change.OnInstalled(1, InstallNumber(5, {}).view().id()));
  EXPECT_FALSE(change.ShouldInstallOthers(later));
  EXPECT_THAT(change.losers(), ElementsAre(2));
  EXPECT_TRUE(change.OnInstalled(2, InstallNumber(5, {}).view().id()));
  EXPECT_TRUE(change.ShouldInstallOthers(later));
  EXPECT_FALSE(change.ShouldInstallOthers(later)) << "once";
  EXPECT_TRUE(change.MaySendTo(3));
  EXPECT_EQ(change.NextDeadline(absl::Seconds(5)), later + absl::Seconds(5));
}

TEST(ViewChange, PauseOverridesTheInstallForWhichOthersWait) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2}, kNow);
  change.Decide(InstallNumber(5, {2}), {1}, kNow);
  change.Begin(PauseNumber(6), {1, 2}, kNow);
  EXPECT_THAT(change.losers(), ElementsAre(1)) << "it is still to be watched";
  EXPECT_TRUE(change.OnInstalled(1, InstallNumber(5, {}).view().id()));
  EXPECT_FALSE(change.ShouldInstallOthers(kNow)) << "they have a Pause";
}

TEST(ViewChange, RepliesOfOtherShardsDoNotCount) {
  ViewChange change(&kRules);
  EXPECT_FALSE(change.OnReply(1, ReplyTo(5))) << "there is no Pause";
  change.Begin(PauseNumber(5), {1}, kNow);
  EXPECT_FALSE(change.OnReply(9, ReplyTo(5)));
}

TEST(ViewChange, IsInstalledWhenAllShardsConfirmNewestView) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2}, kNow);
  change.Decide(InstallNumber(5, {1, 2}), {}, kNow);
  EXPECT_TRUE(change.installing());
  EXPECT_TRUE(change.OnInstalled(1, InstallNumber(5, {}).view().id()));
  EXPECT_FALSE(change.OnInstalled(1, InstallNumber(5, {}).view().id())) << "repeated";
  EXPECT_TRUE(change.HasInstalled(1));
  change.Begin(PauseNumber(6), {1, 2}, kNow);
  change.Decide(InstallNumber(6, {1, 2}), {}, kNow);
  EXPECT_FALSE(change.OnInstalled(2, InstallNumber(5, {}).view().id())) << "an older view";
  EXPECT_EQ(change.installs().size(), 2u) << "a shard may still be in the older view";
  change.OnInstalled(1, InstallNumber(6, {}).view().id());
  change.OnInstalled(2, InstallNumber(6, {}).view().id());
  EXPECT_FALSE(change.installing());
  EXPECT_EQ(change.installs().size(), 1u);
}

TEST(ViewChange, ShardsThatOweAnAnswerForTooLongAreOverdue) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5), {1, 2}, kNow);
  change.OnReply(1, ReplyTo(5));
  const absl::Duration timeout = absl::Seconds(3);
  EXPECT_EQ(change.NextDeadline(timeout), kNow + timeout);
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(2), timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + timeout, timeout), ElementsAre(2));
  change.Decide(InstallNumber(5, {1, 2}), {}, kNow + absl::Seconds(1));
  EXPECT_THAT(change.Overdue(kNow + timeout, timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(4), timeout), ElementsAre(1, 2));
}

TEST(ViewChange, ForgivenTimeDoesNotCount) {
  ViewChange change(&kRules);
  const absl::Duration timeout = absl::Seconds(3);
  change.Begin(PauseNumber(5), {1}, kNow);
  change.ExtendDeadlines(absl::Seconds(10));
  EXPECT_EQ(change.NextDeadline(timeout), kNow + absl::Seconds(13));
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(12), timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(13), timeout), ElementsAre(1));
  change.Decide(InstallNumber(5, {1}), {}, kNow + absl::Seconds(13));
  change.ExtendDeadlines(absl::Seconds(10));
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(25), timeout), IsEmpty());
  EXPECT_THAT(change.Overdue(kNow + absl::Seconds(26), timeout), ElementsAre(1));
}

TEST(ViewChange, PauseAfterStepMayTakeAsLongAsTheStep) {
  ViewChange change(&kRules);
  change.Begin(PauseNumber(5, /*now=*/false), {1}, kNow);
  EXPECT_THAT(change.Overdue(kNow + absl::Hours(1), absl::Seconds(3)), IsEmpty());
  EXPECT_EQ(change.NextDeadline(absl::Seconds(3)), absl::InfiniteFuture());
}

}  // namespace
}  // namespace sluice::coordinator
