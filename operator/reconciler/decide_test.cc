// DecideJob as a table: a world, and the complete decision. The course of a job over time, with the
// writes in between, is in operator/operator_test.cc.
#include "operator/reconciler/decide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/reconciler/testing/decide_scene.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using policy::Replica;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_P(DecideJobTest, PlansTheExpectedActions) { ExpectPlan(GetParam()); }

const DecideRow kBeginning[] = {
    {"CreatesAllPodsOfANewJobAtOnce",
     [](Scene*) {},
     {"create coordinator", "create ps-0", "create worker-0", "create worker-1", "ensure objects"},
     "Starting"},
    {"WaitsForStartingPods",
     [](Scene* s) {
       for (const Replica& replica : {kCoordinator, kShard, kWorker0, kWorker1}) s->Pod(replica);
     },
     {"ensure objects"},
     "Starting"},
    {"CreatesMissingPods",
     [](Scene* s) {
       s->Trains();
       s->Gone(kWorker0);
     },
     {"create worker-0", "ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"DoesNothingForATrainingJob",
     [](Scene* s) { s->Trains(); },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"MakesNoCallsToACoordinatorWithoutAnAddress",
     [](Scene* s) {
       s->Trains();
       s->Pod(kCoordinator).ip.clear();
     },
     {"ensure objects"},
     "Training"},
    {"LeavesADeletedJobToTheGarbageCollector",
     [](Scene* s) {
       s->Metadata({{"deletionTimestamp", "2026-01-01T00:00:00Z"}});
     },
     {},
     ""},
    {"IgnoresAJobOfAnotherController",
     [](Scene* s) {
       s->Spec({{"managedBy", "example.com/other"}});
     },
     {},
     ""},
    {"CreatesNothingForAJobWithoutStorage",
     [](Scene* s) {
       s->Spec({{"checkpoint", {{"storage", nullptr}}}});
     },
     {},
     "Invalid"},
    {"CreatesNothingForAJobCreatedSuspended",
     [](Scene* s) {
       s->Spec({{"suspend", true}});
     },
     {},
     "Suspended"},
};
INSTANTIATE_TEST_SUITE_P(Beginning, DecideJobTest, ::testing::ValuesIn(kBeginning), NameOf);

const Json kMovesNothing = {
    {"training", {{"mode", "Asynchronous"}, {"stalenessRule", {{"name", "DelayCompensation"}}}}}};

void ShrinksToOneShard(Scene* s) {
  s->Spec({{"parameterServer", {{"replicas", 2}}}});
  s->Runs(kShard1);
  s->Trains();
  s->Spec({{"parameterServer", {{"replicas", 1}}}});
}

const DecideRow kSizes[] = {
    {"CreatesAnAdditionalWorker",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"worker", {{"replicas", 3}}}});
     },
     {"create worker-2", "ensure objects", "desire 3 workers, 1 shards"},
     "Training"},
    {"AsksASurplusWorkerToLeave",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"worker", {{"replicas", 1}}}});
     },
     {"delete a-worker-1", "ensure objects", "desire 1 workers, 1 shards"},
     "Training"},
    {"DeletesASurplusWorkerThatHasLeft",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"worker", {{"replicas", 1}}}});
       s->Decide();
       s->Ends(kWorker1, 0);
     },
     {"delete a-worker-1 grace 0", "ensure objects", "desire 1 workers, 1 shards",
      "report death of incarnation 77"},
     "Training"},
    {"StartsNewShardsWhileTheJobTrains",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
     },
     {"create ps-1", "create ps-2", "ensure objects", "desire 2 workers, 3 shards"},
     "Training"},
    {"LeavesShardsThatHandOverTheirPartitionsAlone",
     [](Scene* s) { ShrinksToOneShard(s); },
     {"ensure objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"DeletesAShardThatHasHandedOverItsPartitions",
     [](Scene* s) {
       ShrinksToOneShard(s);
       s->Decide();
       s->Ends(kShard1, 0);
     },
     {"delete a-ps-1 grace 0", "ensure objects", "desire 2 workers, 1 shards",
      "report death of incarnation 78"},
     "Training"},
    {"StartsNewShardsWhileAnAsynchronousJobTrains",
     [](Scene* s) {
       s->Spec({{"training", {{"mode", "Asynchronous"}}}});
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
     },
     {"create ps-1", "create ps-2", "ensure objects", "desire 2 workers, 3 shards"},
     "Training"},
    {"SavesACheckpointForAnotherNumberOfShards",
     [](Scene* s) {
       s->Spec(kMovesNothing);
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
     },
     {"ensure objects", "desire 2 workers, 1 shards, suspension"},
     "Scaling"},
    {"SavesACheckpointForAnotherMode",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"training", {{"mode", "Asynchronous"}}}});
     },
     {"ensure objects", "desire 2 workers, 1 shards, suspension"},
     "SwitchingMode"},
    {"SavesACheckpointForAnotherBoundOfStaleness",
     [](Scene* s) {
       s->Spec({{"training",
                 {{"mode", "BoundedStaleness"}, {"boundedStaleness", {{"maxStaleness", 2}}}}}});
       s->Trains();
       s->Spec({{"training", {{"boundedStaleness", {{"maxStaleness", 3}}}}}});
     },
     {"ensure objects", "desire 2 workers, 1 shards, suspension"},
     "SwitchingMode"},
    {"ReplacesNothingWhileTheCheckpointIsWritten",
     [](Scene* s) {
       s->Spec(kMovesNothing);
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
       s->Decide();
       s->Ends(kWorker1, 1);
     },
     {"ensure objects", "desire 2 workers, 1 shards, suspension", "report death of incarnation 77"},
     "Scaling"},
    {"DeletesPodsOfAnEndedActivation",
     [](Scene* s) {
       s->Spec(kMovesNothing);
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
       s->Decide();
       s->Suspends();
     },
     {"delete a-coordinator grace 0", "delete a-ps-0 grace 0", "delete a-worker-0 grace 0",
      "delete a-worker-1 grace 0"},
     "Scaling"},
    {"StartsTheNextActivationWithTheNewSize",
     [](Scene* s) {
       s->Spec(kMovesNothing);
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 2}}}});
       s->Decide();
       s->Suspends();
       s->Decide();
       s->world.pods.clear();
     },
     {"create coordinator", "create ps-0", "create ps-1", "create worker-0", "create worker-1",
      "ensure objects"},
     "Recovering"},
};
INSTANTIATE_TEST_SUITE_P(Sizes, DecideJobTest, ::testing::ValuesIn(kSizes), NameOf);

// Its secrets stay until it is gone: its pod mounts them.
TEST(DecideJob, ShardThatIsNoLongerWantedKeepsItsSecretsWhileItHandsOver) {
  Scene scene;
  ShrinksToOneShard(&scene);
  ReconcilePlan plan = scene.Decide();
  EXPECT_EQ(plan.shards, 1u);
  EXPECT_EQ(plan.shard_pods, 2u);
  scene.Gone(kShard1);
  plan = scene.Decide();
  EXPECT_EQ(plan.shards, 1u);
  EXPECT_EQ(plan.shard_pods, 1u);
}

void Succeeds(Scene* s) {
  s->Trains();
  s->Says(v1::JobProgress::SUCCEEDED);
  s->Decide();
}

const DecideRow kEnds[] = {
    {"LetsProcessesLeaveByThemselves",
     [](Scene* s) {
       s->Trains();
       s->Says(v1::JobProgress::SUCCEEDED);
     },
     {"desire 2 workers, 1 shards", "again after 10s"},
     "Succeeded"},
    {"AsksRemainingProcessesToLeave",
     [](Scene* s) {
       Succeeds(s);
       s->Pass(absl::Seconds(10));
     },
     {"delete a-coordinator", "delete a-ps-0", "delete a-worker-0", "delete a-worker-1",
      "desire 2 workers, 1 shards"},
     "Succeeded"},
    {"KeepsRunningPodsWithCleanPodPolicyNone",
     [](Scene* s) {
       s->Spec({{"cleanPodPolicy", "None"}});
       Succeeds(s);
       s->Pass(absl::Seconds(10));
     },
     {"desire 2 workers, 1 shards"},
     "Succeeded"},
    {"KeepsEndedPodsForTheirLogs",
     [](Scene* s) {
       Succeeds(s);
       for (PodStatus& pod : s->world.pods) s->Ends(pod.replica, 0);
     },
     {},
     "Succeeded"},
    {"DeletesEndedPodsWithCleanPodPolicyAll",
     [](Scene* s) {
       s->Spec({{"cleanPodPolicy", "All"}});
       Succeeds(s);
       for (PodStatus& pod : s->world.pods) s->Ends(pod.replica, 0);
     },
     {"delete a-coordinator grace 0", "delete a-ps-0 grace 0", "delete a-worker-0 grace 0",
      "delete a-worker-1 grace 0"},
     "Succeeded"},
    {"CreatesNothingAfterTheEnd",
     [](Scene* s) {
       Succeeds(s);
       s->world.pods.clear();
       s->Spec({{"worker", {{"replicas", 7}}}});
     },
     {},
     "Succeeded"},
    {"DecidesAgainWhenAJobExpires",
     [](Scene* s) {
       s->Spec({{"ttlSecondsAfterFinished", 60}});
       Succeeds(s);
       s->world.pods.clear();
       s->Pass(absl::Seconds(20));
     },
     {"again after 40s"},
     "Succeeded"},
    {"DeletesAnExpiredJob",
     [](Scene* s) {
       s->Spec({{"ttlSecondsAfterFinished", 60}});
       Succeeds(s);
       s->world.pods.clear();
       s->Pass(absl::Seconds(60));
     },
     {"delete the job"},
     "Succeeded"},
    {"DoesNotExpireASuspendedJob",
     [](Scene* s) {
       s->Spec({{"ttlSecondsAfterFinished", 0}, {"suspend", true}});
       s->Decide();
       s->Pass(absl::Hours(1));
     },
     {},
     "Suspended"},
    {"DecidesAgainWhenDeadlinesPass",
     [](Scene* s) {
       s->Spec({{"activeDeadlineSeconds", 300}, {"progressDeadlineSeconds", 1000}});
       s->Trains();
     },
     {"ensure objects", "desire 2 workers, 1 shards", "again after 4m"},
     "Training"},
    {"FailsAJobWithoutProgress",
     [](Scene* s) {
       s->Spec({{"progressDeadlineSeconds", 100}});
       s->Trains();
       s->Pass(absl::Seconds(100));
     },
     {"delete a-coordinator", "delete a-ps-0", "delete a-worker-0", "delete a-worker-1",
      "desire 2 workers, 1 shards"},
     "Failed"},
};
INSTANTIATE_TEST_SUITE_P(Ends, DecideJobTest, ::testing::ValuesIn(kEnds), NameOf);

TEST(DecideJob, DoesNotCountTheExitOfASurplusWorker) {
  Scene scene;
  scene.Trains();
  scene.Spec({{"worker", {{"replicas", 1}}}});
  scene.Decide();
  scene.Pod(kWorker1).deletion_asked = scene.now;
  PodStatus& pod = scene.Ends(kWorker1, 0);
  pod.exit.cause = policy::Cause::kOutside;
  pod.exit.reason = "Deleted";
  const ReconcilePlan plan = scene.Decide();
  EXPECT_EQ(kube::Find(plan.status, {"lastFailures"}), nullptr) << plan.status.dump();
  EXPECT_EQ(kube::Find(plan.status, {"restarts"}), nullptr);
}

TEST(DecideJob, TheStatusListsTheNewestEightExits) {
  Scene scene;
  scene.Trains();
  for (int i = 0; i < 10; ++i) {
    scene.Ends(kWorker0, 30 + i);
    scene.Decide();
    scene.Gone(kWorker0);
    scene.Pass(absl::Minutes(1));
    scene.Runs(kWorker0);
    scene.Decide();
  }
  const Json& failures = scene.world.status["lastFailures"];
  ASSERT_EQ(failures.size(), 8u);
  EXPECT_EQ(failures.front()["exitCode"], 39);
  EXPECT_EQ(failures.back()["exitCode"], 32);
}

TEST(DecideJob, ListsTheExitThatFailsTheJobButNotItsConsequences) {
  Scene scene;
  scene.Trains();
  PodStatus& pod = scene.Ends(kWorker0, 2);
  pod.exit.message = "spec.data: row 7 is damaged";
  const ReconcilePlan plan = scene.Decide();
  for (const auto& event : plan.events) {
    EXPECT_THAT(event.action, Not(HasSubstr("Replace"))) << event.note;
  }
  scene.Ends(kShard, 1);
  scene.Decide();
  ASSERT_NE(kube::Find(scene.world.status, {"completionTime"}), nullptr);
  const Json& failures = scene.world.status["lastFailures"];
  ASSERT_EQ(failures.size(), 1u) << failures.dump();
  EXPECT_EQ(failures[0]["role"], "worker");
  EXPECT_EQ(failures[0]["exitCode"], 2);
  EXPECT_THAT(std::string(failures[0]["message"]), HasSubstr("row 7 is damaged"));
}

TEST(DecideJob, DecidesTheSameForAnUnchangedWorld) {
  for (const auto& rows : {std::vector<DecideRow>(std::begin(kBeginning), std::end(kBeginning)),
                           std::vector<DecideRow>(std::begin(kEnds), std::end(kEnds))}) {
    for (const DecideRow& row : rows) {
      Scene scene;
      row.given(&scene);
      const ReconcilePlan first = scene.Decide();
      const ReconcilePlan second = scene.Decide();
      EXPECT_EQ(second.status, first.status) << row.name;
      EXPECT_EQ(second.delete_job, first.delete_job) << row.name;
      EXPECT_EQ(second.creations.size(), first.creations.size()) << row.name;
      EXPECT_TRUE(second.events.empty()) << row.name << ": " << second.events.front().reason;
    }
  }
}

}  // namespace
}  // namespace sluice::reconciler
