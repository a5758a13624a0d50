// A world for DecideJob, and its decision as text.
#ifndef SLUICE_OPERATOR_RECONCILER_TESTING_DECIDE_SCENE_H_
#define SLUICE_OPERATOR_RECONCILER_TESTING_DECIDE_SCENE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/decide.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/observed_job.h"
#include "operator/reconciler/pod_status.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::reconciler {

inline constexpr policy::Replica kCoordinator = {v1::COORDINATOR, 0};
inline constexpr policy::Replica kShard = {v1::SHARD, 0};
inline constexpr policy::Replica kWorker0 = {v1::WORKER, 0};
inline constexpr policy::Replica kWorker1 = {v1::WORKER, 1};
inline constexpr policy::Replica kShard1 = {v1::SHARD, 1};

inline const absl::Time kStart = absl::FromUnixSeconds(1700000000);

// A job with one shard and two workers, and its world; each decision continues from the previous
// one.
class Scene {
 public:
  Scene() { Spec(kube::Json::object()); }

  // Merged into the spec, as a new generation.
  void Spec(const kube::Json& patch) {
    spec_.merge_patch(patch);
    Read();
  }
  void Metadata(const kube::Json& patch) {
    metadata_.merge_patch(patch);
    Read();
  }

  PodStatus& Pod(const policy::Replica& replica) {
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
  PodStatus& Runs(const policy::Replica& replica) {
    PodStatus& pod = Pod(replica);
    pod.begun = pod.ready = pod.was_ready = true;
    pod.ip = "10.0.0.1";
    return pod;
  }
  PodStatus& Ends(const policy::Replica& replica, int code, int signal = 0) {
    PodStatus& pod = Pod(replica);
    pod.ended = pod.terminal = true;
    pod.ready = false;
    pod.ended_at = now;
    pod.exit.code = code;
    pod.exit.signal = signal;
    return pod;
  }
  void Gone(const policy::Replica& replica) {
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
    for (const policy::Replica& replica : {kCoordinator, kShard, kWorker0, kWorker1}) Runs(replica);
    Says(v1::JobProgress::TRAINING);
    Decide();
    Pass(absl::Minutes(1));
  }
  void Says(v1::JobProgress::Phase phase) {
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

  kube::Json metadata_ = {{"name", "a"}, {"namespace", "ns"}, {"uid", "u-1"}};
  kube::Json spec_ = kube::Json::parse(R"({
      "model": {"type": "Builtin", "name": "mlp"}, "training": {"steps": 10},
      "data": {"format": "Synthetic", "synthetic": {"shape": [3]}},
      "parameterServer": {"replicas": 1}, "worker": {"replicas": 2}, "backoffLimit": 2,
      "checkpoint": {"storage": {"type": "PersistentVolumeClaim", "claimName": "c"}}})");
  int pods_ = 0;
  int generation_ = 0;
};

// All actions of a plan except the status.
inline std::vector<std::string> Actions(const ReconcilePlan& plan, absl::Time now) {
  std::vector<std::string> actions;
  for (const PodDeletion& deletion : plan.deletions) {
    actions.push_back(absl::StrCat("delete ", deletion.name,
                                   deletion.grace_seconds.has_value()
                                       ? absl::StrCat(" grace ", *deletion.grace_seconds)
                                       : ""));
  }
  for (const policy::Replica& replica : plan.creations) {
    actions.push_back(absl::StrCat("create ", policy::ReplicaName(replica)));
  }
  if (plan.delete_job) actions.push_back("delete the job");
  if (plan.ensure_objects) actions.push_back("ensure objects");
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

// A row of a table: a world, and the complete decision.
struct DecideRow {
  const char* name;
  std::function<void(Scene*)> given;
  std::vector<std::string> actions;
  std::string summary;
};

class DecideJobTest : public ::testing::TestWithParam<DecideRow> {};

inline std::string NameOf(const ::testing::TestParamInfo<DecideRow>& info) {
  return info.param.name;
}

inline void ExpectPlan(const DecideRow& row) {
  Scene scene;
  row.given(&scene);
  const ReconcilePlan plan = scene.Decide();
  EXPECT_THAT(Actions(plan, scene.now), ::testing::ElementsAreArray(row.actions));
  EXPECT_EQ(kube::GetString(plan.status, {"summary"}), row.summary);
}

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_TESTING_DECIDE_SCENE_H_
