// DecideJob as a table: a world, and the complete decision. The course of a job over time, with the
// writes in between, is in operator/operator_test.cc.
#include "operator/reconciler/decide.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/names.h"

namespace sluice::reconciler {
namespace {

using kube::GetString;
using kube::Json;
using policy::Replica;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;
using Phase = v1::JobProgress::Phase;

constexpr Replica kCoordinator = {v1::COORDINATOR, 0};
constexpr Replica kShard = {v1::SHARD, 0};
constexpr Replica kWorker0 = {v1::WORKER, 0};
constexpr Replica kWorker1 = {v1::WORKER, 1};
constexpr Replica kShard1 = {v1::SHARD, 1};

const absl::Time kStart = absl::FromUnixSeconds(1700000000);

// A job with one shard and two workers, and its world; each decision continues from the previous
// one.
class Scene {
 public:
  Scene() { Spec(Json::object()); }

  // Merged into the spec, as a new generation.
  void Spec(const Json& patch) {
    spec_.merge_patch(patch);
    Read();
  }
  void Metadata(const Json& patch) {
    metadata_.merge_patch(patch);
    Read();
  }

  PodStatus& Pod(const Replica& replica) {
    for (PodStatus& pod : world.pods) {
      if (pod.replica == replica) return pod;
    }
    PodStatus pod;
    pod.replica = replica;
    pod.name = PodName("a", replica);
    pod.uid = absl::StrCat("uid-", ++pods_);
    pod.created = pod.started = now;
    pod.template_hash = "h1";
    world.pods.push_back(std::move(pod));
    return world.pods.back();
  }
  PodStatus& Runs(const Replica& replica) {
    PodStatus& pod = Pod(replica);
    pod.begun = pod.ready = pod.was_ready = true;
    pod.ip = "10.0.0.1";
    return pod;
  }
  PodStatus& Ends(const Replica& replica, int code, int signal = 0) {
    PodStatus& pod = Pod(replica);
    pod.ended = pod.terminal = true;
    pod.ready = false;
    pod.ended_at = now;
    pod.exit.code = code;
    pod.exit.signal = signal;
    return pod;
  }
  void Gone(const Replica& replica) {
    for (auto it = world.pods.begin(); it != world.pods.end(); ++it) {
      if (it->replica == replica) {
        world.pods.erase(it);
        return;
      }
    }
  }
  // The whole job runs and trains, and the operator has seen it.
  void Trains() {
    Decide();
    for (const Replica& replica : {kCoordinator, kShard, kWorker0, kWorker1}) Runs(replica);
    Says(v1::JobProgress::TRAINING);
    Decide();
    Pass(absl::Minutes(1));
  }
  void Says(Phase phase) {
    progress.set_phase(phase);
    progress.set_attempt(1);
    progress.clear_processes();
    v1::ProcessStatus* worker = progress.add_processes();
    worker->mutable_process()->set_role(v1::WORKER);
    worker->mutable_process()->set_index(1);
    worker->mutable_process()->set_incarnation(77);
    v1::ProcessStatus* shard = progress.add_processes();
    shard->mutable_process()->set_role(v1::SHARD);
    shard->mutable_process()->set_index(1);
    shard->mutable_process()->set_incarnation(78);
    world.progress = &progress;
    world.progress_of = Pod(kCoordinator).uid;
  }
  void Pass(absl::Duration time) { now += time; }
  // Decides and stores the status.
  ReconcilePlan Decide() {
    ReconcilePlan plan = DecideJob(world, ClusterLimits(), now);
    world.status = plan.status;
    return plan;
  }
  // The coordinator has saved a checkpoint, and all processes have left.
  void Suspends() {
    Says(v1::JobProgress::SUSPENDED);
    Decide();
    for (PodStatus& pod : world.pods) Ends(pod.replica, 0);
  }

  World world;
  v1::JobProgress progress;
  absl::Time now = kStart;

 private:
  void Read() {
    world.job = ReadJob({{"metadata", metadata_}, {"spec", spec_}});
    world.job.generation = ++generation_;
  }

  Json metadata_ = {{"name", "a"}, {"namespace", "ns"}, {"uid", "u-1"}};
  Json spec_ = Json::parse(R"({
      "model": {"type": "Builtin", "name": "mlp"}, "training": {"steps": 10},
      "data": {"format": "Synthetic", "synthetic": {"shape": [3]}},
      "parameterServer": {"replicas": 1}, "worker": {"replicas": 2}, "backoffLimit": 2,
      "checkpoint": {"storage": {"type": "PersistentVolumeClaim", "claimName": "c"}}})");
  int pods_ = 0;
  int generation_ = 0;
};

// All actions of a plan except the status.
std::vector<std::string> Actions(const ReconcilePlan& plan, absl::Time now) {
  std::vector<std::string> actions;
  for (const PodDeletion& deletion : plan.deletions) {
    actions.push_back(absl::StrCat("delete ", deletion.name,
                                   deletion.grace_seconds.has_value()
                                       ? absl::StrCat(" grace ", *deletion.grace_seconds)
                                       : ""));
  }
  for (const Replica& replica : plan.creations) {
    actions.push_back(absl::StrCat("create ", policy::ReplicaName(replica)));
  }
  if (plan.delete_job) actions.push_back("delete the job");
  if (plan.keep_objects) actions.push_back("keep objects");
  if (plan.sync.has_value()) {
    const v1::SetDesiredRequest& desired = plan.sync->desired;
    actions.push_back(absl::StrCat("desire ", desired.workers(), " workers, ", desired.shards(),
                                   " shards", desired.suspend() ? ", suspension" : ""));
    for (const auto& death : plan.sync->deaths) {
      actions.push_back(
          absl::StrCat("report death of incarnation ", death.process().incarnation()));
    }
  }
  if (plan.decide_again != absl::InfiniteFuture()) {
    actions.push_back(absl::StrCat("again after ", absl::FormatDuration(plan.decide_again - now)));
  }
  return actions;
}

struct Row {
  const char* name;
  std::function<void(Scene*)> given;
  std::vector<std::string> actions;
  std::string summary;
};

class DecideJobTest : public ::testing::TestWithParam<Row> {};

TEST_P(DecideJobTest, PlansTheExpectedActions) {
  Scene scene;
  GetParam().given(&scene);
  const ReconcilePlan plan = scene.Decide();
  EXPECT_THAT(Actions(plan, scene.now), ElementsAreArray(GetParam().actions));
  EXPECT_EQ(GetString(plan.status, {"summary"}), GetParam().summary);
}

const char* NameOf(const Row& row) { return row.name; }

const Row kBeginning[] = {
    {"CreatesAllPodsOfANewJobAtOnce",
     [](Scene*) {},
     {"create coordinator", "create ps-0", "create worker-0", "create worker-1", "keep objects"},
     "Starting"},
    {"WaitsForStartingPods",
     [](Scene* s) {
       for (const Replica& replica : {kCoordinator, kShard, kWorker0, kWorker1}) s->Pod(replica);
     },
     {"keep objects"},
     "Starting"},
    {"CreatesMissingPods",
     [](Scene* s) {
       s->Trains();
       s->Gone(kWorker0);
     },
     {"create worker-0", "keep objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"DoesNothingForATrainingJob",
     [](Scene* s) { s->Trains(); },
     {"keep objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"MakesNoCallsToACoordinatorWithoutAnAddress",
     [](Scene* s) {
       s->Trains();
       s->Pod(kCoordinator).ip.clear();
     },
     {"keep objects"},
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
INSTANTIATE_TEST_SUITE_P(Beginning, DecideJobTest, ::testing::ValuesIn(kBeginning),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

const Row kLosses[] = {
    {"ReplacesAnEndedPodAtOnce",
     [](Scene* s) {
       s->Trains();
       s->Ends(kWorker1, 0, 9);
     },
     {"delete a-worker-1 grace 0", "create worker-1", "keep objects", "desire 2 workers, 1 shards",
      "report death of incarnation 77"},
     "Training"},
    {"DeletesAPodWithRunningSidecarsBeforeReplacingIt",
     [](Scene* s) {
       s->Trains();
       s->Ends(kWorker1, 0, 9).terminal = false;
     },
     {"delete a-worker-1", "keep objects", "desire 2 workers, 1 shards",
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
     {"keep objects", "desire 2 workers, 1 shards", "again after 2s"},
     "Training"},
    {"WaitsForAPodThatIsBeingDeleted",
     [](Scene* s) {
       s->Trains();
       s->Pod(kWorker1).deletion_asked = s->now;
       s->Pod(kWorker1).gone_by = s->now + absl::Seconds(15);
     },
     {"keep objects", "desire 2 workers, 1 shards", "again after 25s"},
     "Training"},
    {"ForceDeletesAPodOfALostNodeWhenDue",
     [](Scene* s) {
       s->Trains();
       PodStatus& pod = s->Pod(kWorker1);
       pod.node_lost = true;
       pod.deletion_asked = s->now - absl::Seconds(10);
       pod.gone_by = s->now + absl::Seconds(15);
     },
     {"delete a-worker-1 grace 0", "keep objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"ForceDeletesAPodOnce",
     [](Scene* s) {
       s->Trains();
       PodStatus& pod = s->Pod(kWorker1);
       pod.node_lost = pod.forced = true;
       pod.deletion_asked = pod.gone_by = s->now - absl::Seconds(100);
     },
     {"keep objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"ForceDeletesNothingIfTheJobForbidsIt",
     [](Scene* s) {
       s->Spec({{"nodeFailure", {{"forceDeleteAfterSeconds", 0}}}});
       s->Trains();
       PodStatus& pod = s->Pod(kWorker1);
       pod.node_lost = true;
       pod.deletion_asked = pod.gone_by = s->now - absl::Seconds(100);
     },
     {"keep objects", "desire 2 workers, 1 shards"},
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
     {"delete a-ps-0 grace 0", "create ps-0", "keep objects", "desire 2 workers, 1 shards"},
     "Training"},
};
INSTANTIATE_TEST_SUITE_P(Losses, DecideJobTest, ::testing::ValuesIn(kLosses),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

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

const Row kSlowStarts[] = {
    {"DecidesAgainWhenAPodBecomesSlow",
     [](Scene* s) {
       IsPreparedForLong(s);
       s->Pass(absl::Seconds(20));
     },
     {"keep objects", "desire 2 workers, 1 shards", "again after 40s"},
     "Starting"},
    {"ReportsWhyAPodIsSlow",
     [](Scene* s) {
       IsPreparedForLong(s);
       s->Pass(absl::Minutes(1));
     },
     {"keep objects", "desire 2 workers, 1 shards"},
     "VolumeNotMounted"},
    {"ReportsNothingOnceTheSlowPodHasBegun",
     [](Scene* s) {
       IsPreparedForLong(s);
       s->Pass(absl::Minutes(1));
       s->Decide();
       s->Runs(kWorker1);
     },
     {"keep objects", "desire 2 workers, 1 shards"},
     "Starting"},
};
INSTANTIATE_TEST_SUITE_P(SlowStarts, DecideJobTest, ::testing::ValuesIn(kSlowStarts),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

const Row kOutdated[] = {
    {"RecreatesAWaitingPodIfItsTemplateChanged",
     [](Scene* s) {
       WaitsForAnImage(s);
       s->world.template_hashes[kWorker1] = "h2";
     },
     {"delete a-worker-1", "keep objects", "desire 2 workers, 1 shards"},
     "ImagePullFailed"},
    {"KeepsAWaitingPodIfItsTemplateIsUnchanged",
     [](Scene* s) {
       WaitsForAnImage(s);
       s->world.template_hashes[kWorker1] = "h1";
     },
     {"keep objects", "desire 2 workers, 1 shards"},
     "ImagePullFailed"},
    {"GivesAPodWithoutAReasonHalfAMinute",
     [](Scene* s) {
       WaitsForAnImage(s);
       s->Pod(kWorker1).waiting = {};
       s->world.template_hashes[kWorker1] = "h2";
       s->Pass(absl::Seconds(10));
     },
     {"keep objects", "desire 2 workers, 1 shards", "again after 20s"},
     "Starting"},
    {"KeepsARunningPodIfItsTemplateChanged",
     [](Scene* s) {
       s->Trains();
       s->world.template_hashes[kWorker1] = "h2";
     },
     {"keep objects", "desire 2 workers, 1 shards"},
     "Training"},
};
INSTANTIATE_TEST_SUITE_P(Outdated, DecideJobTest, ::testing::ValuesIn(kOutdated),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

const Json kMovesNothing = {
    {"training", {{"mode", "Asynchronous"}, {"stalenessRule", {{"name", "DelayCompensation"}}}}}};

void ShrinksToOneShard(Scene* s) {
  s->Spec({{"parameterServer", {{"replicas", 2}}}});
  s->Runs(kShard1);
  s->Trains();
  s->Spec({{"parameterServer", {{"replicas", 1}}}});
}

const Row kSizes[] = {
    {"CreatesAnAdditionalWorker",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"worker", {{"replicas", 3}}}});
     },
     {"create worker-2", "keep objects", "desire 3 workers, 1 shards"},
     "Training"},
    {"AsksASurplusWorkerToLeave",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"worker", {{"replicas", 1}}}});
     },
     {"delete a-worker-1", "keep objects", "desire 1 workers, 1 shards"},
     "Training"},
    {"DeletesASurplusWorkerThatHasLeft",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"worker", {{"replicas", 1}}}});
       s->Decide();
       s->Ends(kWorker1, 0);
     },
     {"delete a-worker-1 grace 0", "keep objects", "desire 1 workers, 1 shards",
      "report death of incarnation 77"},
     "Training"},
    {"StartsNewShardsWhileTheJobTrains",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
     },
     {"create ps-1", "create ps-2", "keep objects", "desire 2 workers, 3 shards"},
     "Training"},
    {"LeavesShardsThatHandOverTheirPartitionsAlone",
     [](Scene* s) { ShrinksToOneShard(s); },
     {"keep objects", "desire 2 workers, 1 shards"},
     "Training"},
    {"DeletesAShardThatHasHandedOverItsPartitions",
     [](Scene* s) {
       ShrinksToOneShard(s);
       s->Decide();
       s->Ends(kShard1, 0);
     },
     {"delete a-ps-1 grace 0", "keep objects", "desire 2 workers, 1 shards",
      "report death of incarnation 78"},
     "Training"},
    {"StartsNewShardsWhileAnAsynchronousJobTrains",
     [](Scene* s) {
       s->Spec({{"training", {{"mode", "Asynchronous"}}}});
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
     },
     {"create ps-1", "create ps-2", "keep objects", "desire 2 workers, 3 shards"},
     "Training"},
    {"SavesACheckpointForAnotherNumberOfShards",
     [](Scene* s) {
       s->Spec(kMovesNothing);
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
     },
     {"keep objects", "desire 2 workers, 1 shards, suspension"},
     "Scaling"},
    {"SavesACheckpointForAnotherMode",
     [](Scene* s) {
       s->Trains();
       s->Spec({{"training", {{"mode", "Asynchronous"}}}});
     },
     {"keep objects", "desire 2 workers, 1 shards, suspension"},
     "SwitchingMode"},
    {"SavesACheckpointForAnotherBoundOfStaleness",
     [](Scene* s) {
       s->Spec({{"training",
                 {{"mode", "BoundedStaleness"}, {"boundedStaleness", {{"maxStaleness", 2}}}}}});
       s->Trains();
       s->Spec({{"training", {{"boundedStaleness", {{"maxStaleness", 3}}}}}});
     },
     {"keep objects", "desire 2 workers, 1 shards, suspension"},
     "SwitchingMode"},
    {"ReplacesNothingWhileTheCheckpointIsWritten",
     [](Scene* s) {
       s->Spec(kMovesNothing);
       s->Trains();
       s->Spec({{"parameterServer", {{"replicas", 3}}}});
       s->Decide();
       s->Ends(kWorker1, 1);
     },
     {"keep objects", "desire 2 workers, 1 shards, suspension", "report death of incarnation 77"},
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
      "keep objects"},
     "Recovering"},
};
INSTANTIATE_TEST_SUITE_P(Sizes, DecideJobTest, ::testing::ValuesIn(kSizes),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

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

const Row kEnds[] = {
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
     {"keep objects", "desire 2 workers, 1 shards", "again after 4m"},
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
INSTANTIATE_TEST_SUITE_P(Ends, DecideJobTest, ::testing::ValuesIn(kEnds),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

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
  for (const auto& rows : {std::vector<Row>(std::begin(kBeginning), std::end(kBeginning)),
                           std::vector<Row>(std::begin(kEnds), std::end(kEnds))}) {
    for (const Row& row : rows) {
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
