// DecideJob as a table, for pods that are lost, slow, outdated or frozen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "operator/reconciler/decide.h"
#include "operator/reconciler/testing/decide_scene.h"

namespace sluice::reconciler {
namespace {

using policy::Replica;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_P(DecideJobTest, PlansTheExpectedActions) { ExpectPlan(GetParam()); }

const DecideRow kLosses[] = {
    {"ReplacesAnEndedPodAtOnce",
     [](Scene* s) {
       s->Trains();
       s->Ends(kWorker1, 0, 9);
     },
     {"delete a-worker-1 grace 0", "create worker-1", "ensure objects",
      "desire 2 workers, 1 shards", "report death of incarnation 77"},
     "Training"},
    {"DeletesAPodWithRunningSidecarsBeforeReplacingIt",
     [](Scene* s) {
       s->Trains();
       s->Ends(kWorker1, 0, 9).terminal = false;
     },
     {"delete a-worker-1", "ensure objects", "desire 2 workers, 1 shards",
      "report death of incarnation 77"},
     "Training"},
    {"ReplacesAfterASecondExitInARowOneSecondLater",
     [](Scene* s) {
       s->Trains();
       for (int i = 0; i < 2; ++i) {
         s->Ends(kWorker0, 1);
         s->Decide();
         s->Gone(kWorker0);
         s->Pod(kWorker0).begun = true;
       }
       s->Ends(kWorker0, 1);
     },
     {"ensure objects", "desire 2 workers, 1 shards", "again after 2s"},
     "Training"},
    {"WaitsForAPodThatIsBeingDeleted",
     [](Scene* s) {
       s->Trains();
       s->Pod(kWorker1).deletion_asked = s->now;
       s->Pod(kWorker1).gone_by = s->now + absl::Seconds(15);
     },
     {"ensure objects", "desire 2 workers, 1 shards", "again after 25s"},
     "Training"},
    {"ForceDeletesAPodOfALostNodeWhenDue",
     [](Scene* s) {
       s->Trains();
       PodStatus& pod = s->Pod(kWorker1);
       pod.node_lost = true;
       pod.deletion_asked = s->now - absl::Seconds(10);
       pod.gone_by = s->now + absl::Seconds(15);
     },
     {"delete a-worker-1 grace 0", "ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"ForceDeletesAPodOnce",
     [](Scene* s) {
       s->Trains();
       PodStatus& pod = s->Pod(kWorker1);
       pod.node_lost = pod.forced = true;
       pod.deletion_asked = pod.gone_by = s->now - absl::Seconds(100);
     },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"ForceDeletesNothingIfTheJobForbidsIt",
     [](Scene* s) {
       s->Spec({{"nodeFailure", {{"forceDeleteAfterSeconds", 0}}}});
       s->Trains();
       PodStatus& pod = s->Pod(kWorker1);
       pod.node_lost = true;
       pod.deletion_asked = pod.gone_by = s->now - absl::Seconds(100);
     },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"TooManyRestorationsFailTheJob",
     [](Scene* s) {
       s->Spec({{"backoffLimit", 0}});
       s->Trains();
       s->Ends(kShard, 139);
     },
     {"delete a-coordinator", "delete a-worker-0", "delete a-worker-1",
      "desire 2 workers, 1 shards"},
     "Failed"},
    {"DoesNotCountAnEvictedShard",
     [](Scene* s) {
       s->Spec({{"backoffLimit", 0}});
       s->Trains();
       PodStatus& pod = s->Ends(kShard, 137);
       pod.exit.cause = policy::Cause::kOutside;
       pod.exit.reason = "Evicted";
     },
     {"delete a-ps-0 grace 0", "create ps-0", "ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
};
INSTANTIATE_TEST_SUITE_P(Losses, DecideJobTest, ::testing::ValuesIn(kLosses), NameOf);

void WaitsForAnImage(Scene* s) {
  s->Decide();
  for (const Replica& replica : {kCoordinator, kShard, kWorker0}) s->Runs(replica);
  s->Pod(kWorker1).waiting = {"ImagePullFailed", "no such image"};
}

// Its volumes are not mounted.
void IsPreparedForLong(Scene* s) {
  s->Decide();
  for (const Replica& replica : {kCoordinator, kShard, kWorker0}) s->Runs(replica);
  s->Pod(kWorker1).slow = {"VolumeNotMounted", "no secret"};
  s->Pod(kWorker1).slow_from = s->now + absl::Minutes(1);
}

const DecideRow kSlowStarts[] = {
    {"DecidesAgainWhenAPodBecomesSlow",
     [](Scene* s) {
       IsPreparedForLong(s);
       s->Pass(absl::Seconds(20));
     },
     {"ensure objects", "desire 2 workers, 1 shards", "again after 40s"},
     "Starting"},
    {"ReportsWhyAPodIsSlow",
     [](Scene* s) {
       IsPreparedForLong(s);
       s->Pass(absl::Minutes(1));
     },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "VolumeNotMounted"},
    {"ReportsNothingOnceTheSlowPodHasBegun",
     [](Scene* s) {
       IsPreparedForLong(s);
       s->Pass(absl::Minutes(1));
       s->Decide();
       s->Runs(kWorker1);
     },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "Starting"},
};
INSTANTIATE_TEST_SUITE_P(SlowStarts, DecideJobTest, ::testing::ValuesIn(kSlowStarts), NameOf);

const DecideRow kOutdated[] = {
    {"RecreatesAWaitingPodIfItsTemplateChanged",
     [](Scene* s) {
       WaitsForAnImage(s);
       s->world.template_hashes[kWorker1] = "h2";
     },
     {"delete a-worker-1", "ensure objects", "desire 2 workers, 1 shards"},
     "ImagePullFailed"},
    {"KeepsAWaitingPodIfItsTemplateIsUnchanged",
     [](Scene* s) {
       WaitsForAnImage(s);
       s->world.template_hashes[kWorker1] = "h1";
     },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "ImagePullFailed"},
    {"GivesAPodWithoutAReasonHalfAMinute",
     [](Scene* s) {
       WaitsForAnImage(s);
       s->Pod(kWorker1).waiting = {};
       s->world.template_hashes[kWorker1] = "h2";
       s->Pass(absl::Seconds(10));
     },
     {"ensure objects", "desire 2 workers, 1 shards", "again after 20s"},
     "Starting"},
    {"KeepsARunningPodIfItsTemplateChanged",
     [](Scene* s) {
       s->Trains();
       s->world.template_hashes[kWorker1] = "h2";
     },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
};
INSTANTIATE_TEST_SUITE_P(Outdated, DecideJobTest, ::testing::ValuesIn(kOutdated), NameOf);

// ---- frozen processes without probes

TEST(DecideJob, ReplacesAPodThatDoesNotRegisterWithinTheStartTimeout) {
  Scene scene;
  scene.Spec({{"timeouts", {{"startSeconds", 100}}}});
  scene.Trains();
  const auto says = [&] {
    scene.Says(v1::JobProgress::TRAINING);  // the report has only worker-1
    scene.progress.add_processes()->mutable_process()->set_role(v1::SHARD);
    scene.world.progress_at = scene.now;
  };
  says();
  ReconcilePlan plan = scene.Decide();
  EXPECT_TRUE(plan.deletions.empty());
  EXPECT_EQ(plan.decide_again, scene.now + absl::Seconds(100));
  scene.Pass(absl::Seconds(99));
  says();
  EXPECT_TRUE(scene.Decide().deletions.empty());
  scene.Pass(absl::Seconds(2));
  EXPECT_TRUE(scene.Decide().deletions.empty()) << "the coordinator's report is old";
  says();
  plan = scene.Decide();
  ASSERT_EQ(plan.deletions.size(), 1u);
  EXPECT_EQ(plan.deletions[0].replica, kWorker0);
  EXPECT_EQ(plan.deletions[0].grace_seconds, 1);
}

TEST(DecideJob, RecordsNeitherStartingNorRegisteredPods) {
  Scene scene;
  scene.Trains();
  scene.Says(v1::JobProgress::TRAINING);
  for (const Replica& replica : {kShard, kWorker0}) {
    v1::ProcessStatus& status = *scene.progress.add_processes();
    status.mutable_process()->set_role(replica.role);
    status.mutable_process()->set_index(replica.index);
  }
  scene.world.progress_at = scene.now;
  ReconcilePlan plan = scene.Decide();
  EXPECT_THAT(plan.status.dump(), Not(HasSubstr("missing")));
  EXPECT_EQ(plan.decide_again, absl::InfiniteFuture());
  scene.Gone(kWorker0);
  scene.Pod(kWorker0).begun = true;
  scene.progress.mutable_processes()->RemoveLast();
  scene.Pass(absl::Seconds(10));
  scene.world.progress_at = scene.now;
  EXPECT_THAT(scene.Decide().status.dump(), Not(HasSubstr("missing")));
  scene.Pass(absl::Seconds(10));
  scene.world.progress_at = scene.now;
  EXPECT_THAT(scene.Decide().status.dump(), HasSubstr("missing"));
}

}  // namespace
}  // namespace sluice::reconciler
