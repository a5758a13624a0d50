#include "operator/reconciler/expectations.h"

#include <gtest/gtest.h>

#include <memory>

#include "operator/reconciler/names.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using runtime::ObjectPtr;

constexpr absl::Duration kLag = Expectations::kWriteLag;
const absl::Time kNow = absl::FromUnixSeconds(1700000000);

Json Pod(const std::string& uid) {
  return {{"metadata",
           {{"name", "a-worker-0"},
            {"namespace", "ns"},
            {"uid", uid},
            {"labels", {{kRoleLabel, "worker"}, {kIndexLabel, "0"}}}}}};
}

// A pod whose deletion was requested at `asked` on the API server's clock.
Json LeavingPod(absl::Time asked, int64_t grace_seconds) {
  Json pod = Pod("u");
  pod["metadata"]["deletionTimestamp"] = kube::EncodeTime(asked + absl::Seconds(grace_seconds));
  pod["metadata"]["deletionGracePeriodSeconds"] = grace_seconds;
  return pod;
}

std::vector<ObjectPtr> Cache(const Json& pod) { return {std::make_shared<const Json>(pod)}; }

Json Job(const std::string& version) { return {{"metadata", {{"resourceVersion", version}}}}; }

TEST(ExpectationsTest, UsesTheJobAsWrittenWhileTheCacheShowsAnOlderOne) {
  Expectations expectations;
  expectations.NoteJob(Job("1"), Job("2"));
  expectations.NoteJob(Job("2"), Job("3"));
  EXPECT_EQ(expectations.NewestJob(Job("1")), Job("3"));
  EXPECT_EQ(expectations.NewestJob(Job("2")), Job("3"));
  EXPECT_EQ(expectations.NewestJob(Job("4")), Job("4"));
  EXPECT_EQ(expectations.NewestJob(Job("1")), Job("1")) << "the cache was newer already";
}

TEST(ExpectationsTest, ShowsACreatedPodUntilTheCacheDoes) {
  Expectations expectations;
  expectations.NoteCreated("a-worker-0", Pod("u"), kNow);
  ASSERT_EQ(expectations.Pods({}, kNow).size(), 1u);
  EXPECT_EQ(expectations.Pods({}, kNow)[0].uid, "u");
  EXPECT_EQ(expectations.Pods(Cache(Pod("u")), kNow).size(), 1u);
  EXPECT_TRUE(expectations.Pods({}, kNow).empty()) << "another client has deleted it";
}

TEST(ExpectationsTest, ForgetsACreatedPodThatTheCacheNeverShows) {
  Expectations expectations;
  expectations.NoteCreated("a-worker-0", Pod("u"), kNow);
  EXPECT_EQ(expectations.Pods({}, kNow + kLag).size(), 1u);
  EXPECT_EQ(expectations.NextCheck(false), kNow + kLag + absl::Milliseconds(1));
  EXPECT_TRUE(expectations.Pods({}, expectations.NextCheck(false)).empty());
  EXPECT_EQ(expectations.NextCheck(false), absl::InfiniteFuture());
}

TEST(ExpectationsTest, ShowsADeletionThatTheCacheLacks) {
  for (const bool forced : {false, true}) {
    Expectations expectations;
    expectations.NoteDeleted("a-worker-0", "u", forced, kNow);
    const PodStatus pod = expectations.Pods(Cache(Pod("u")), kNow + absl::Seconds(1))[0];
    EXPECT_EQ(pod.deletion_asked, kNow);
    EXPECT_EQ(pod.gone_by, kNow);
    EXPECT_EQ(pod.forced, forced);
    EXPECT_FALSE(expectations.Pods(Cache(Pod("v")), kNow)[0].deletion_asked.has_value())
        << "it is the next pod of that name";
    expectations.Pods({}, kNow + 2 * kLag);
    EXPECT_FALSE(expectations.Pods(Cache(Pod("u")), kNow)[0].deletion_asked.has_value());
  }
}

TEST(ExpectationsTest, ADeletedPodIsNoLongerCreated) {
  Expectations expectations;
  expectations.NoteCreated("a-worker-0", Pod("u"), kNow);
  expectations.NoteDeleted("a-worker-0", "u", false, kNow);
  EXPECT_TRUE(expectations.Pods({}, kNow).empty());
}

TEST(ExpectationsTest, CountsTheGracePeriodFromWhenItSawTheDeletion) {
  Expectations expectations;
  const absl::Time theirs = kNow - absl::Hours(1);  // the API server's clock is behind
  PodStatus pod = expectations.Pods(Cache(LeavingPod(theirs, 30)), kNow)[0];
  EXPECT_EQ(pod.deletion_asked, kNow);
  EXPECT_EQ(pod.gone_by, kNow + absl::Seconds(30));

  pod = expectations.Pods(Cache(LeavingPod(theirs, 30)), kNow + absl::Seconds(5))[0];
  EXPECT_EQ(pod.gone_by, kNow + absl::Seconds(30));
  pod = expectations.Pods(Cache(LeavingPod(theirs, 1)), kNow + absl::Seconds(5))[0];
  EXPECT_EQ(pod.deletion_asked, kNow);
  EXPECT_EQ(pod.gone_by, kNow + absl::Seconds(6)) << "a second deletion shortens the period";
}

TEST(ExpectationsTest, DoesNotRepeatAWriteBeforeTheCacheCanShowIt) {
  Expectations expectations;
  EXPECT_TRUE(expectations.MayApply("services/a", {{"v", 1}}, kNow));
  expectations.NoteApplied("services/a", {{"v", 1}}, kNow);
  EXPECT_FALSE(expectations.MayApply("services/a", {{"v", 1}}, kNow));
  EXPECT_TRUE(expectations.MayApply("services/a", {{"v", 2}}, kNow)) << "the job has changed";
  EXPECT_EQ(expectations.NextCheck(true), kNow + kLag + absl::Milliseconds(1));
  EXPECT_EQ(expectations.NextCheck(false), absl::InfiniteFuture());
  EXPECT_TRUE(expectations.MayApply("services/a", {{"v", 1}}, kNow + kLag));
}

TEST(ExpectationsTest, RevertsTheFirstEditAtOnceAndLaterOnesWithGrowingDelays) {
  Expectations expectations;
  const Json wanted = {{"v", 1}};
  absl::Time now = kNow;
  expectations.NoteApplied("services/a", wanted, now);
  expectations.NoteShown("services/a", now);
  EXPECT_EQ(expectations.NextCheck(true), absl::InfiniteFuture());
  EXPECT_TRUE(expectations.MayApply("services/a", wanted, now));

  for (const int lags : {2, 4, 8}) {
    expectations.NoteApplied("services/a", wanted, now);
    expectations.NoteShown("services/a", now);
    EXPECT_FALSE(expectations.MayApply("services/a", wanted, now + lags * kLag - absl::Seconds(1)));
    EXPECT_EQ(expectations.NextCheck(true), now + lags * kLag + absl::Milliseconds(1));
    now += lags * kLag;
    EXPECT_TRUE(expectations.MayApply("services/a", wanted, now));
  }
}

TEST(ExpectationsTest, ForgetsTheEditsOnceAWriteHasLasted) {
  Expectations expectations;
  const Json wanted = {{"v", 1}};
  expectations.NoteApplied("services/a", wanted, kNow);
  expectations.NoteApplied("services/a", wanted, kNow);
  expectations.NoteShown("services/a", kNow + 4 * kLag);
  EXPECT_TRUE(expectations.MayApply("services/a", wanted, kNow + 4 * kLag));
  expectations.NoteApplied("services/a", wanted, kNow + 4 * kLag);
  EXPECT_EQ(expectations.NextCheck(true), kNow + 5 * kLag + absl::Milliseconds(1));
}

}  // namespace
}  // namespace sluice::reconciler
