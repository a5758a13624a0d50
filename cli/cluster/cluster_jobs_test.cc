// The commands for a job that a cluster already has: stop, scale, status, logs and others, with an
// API server in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/cluster/testing/cluster_command_fixture.h"
#include "operator/reconciler/names.h"

namespace sluice::cli {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(ClusterCommandTest, MissingCrdSuggestsInstallation) {
  MakeServer(false);
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", "--cluster", directory_ + "/job.yaml"},
        {"status", "--cluster"},
        {"logs", "mnist", "--cluster"},
        {"stop", "mnist", "--cluster"}}) {
    EXPECT_EQ(Run(command), 2) << command[0];
    EXPECT_THAT(Err(), HasSubstr("helm install sluice")) << command[0];
  }
}

TEST_F(ClusterCommandTest, StopsJobAndTheSameCommandResumesIt) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  SetStatus(StatusOf("Training", 500));
  Start({"stop", "mnist", "--cluster"});
  ASSERT_TRUE(out_->WaitFor("after saving a checkpoint"));
  EXPECT_EQ(Job()["spec"]["suspend"], true);
  SetStatus(StatusOf("Suspended", 510, "Suspended"));
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(Out(), HasSubstr("mnist: Suspended at step 510 of 1,000"));
  StartJob();
  ASSERT_TRUE(out_->WaitFor("The job was suspended; it is resumed"));
  EXPECT_EQ(Job()["spec"]["suspend"], false);
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Wait(), 0);
}

TEST_F(ClusterCommandTest, ScalesAJobThatHasNotEnded) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  EXPECT_EQ(Run({"scale", "mnist", "--cluster"}), 2);
  EXPECT_THAT(Err(), HasSubstr("give --shards, --workers or both"));
  EXPECT_EQ(Run({"scale", "mnist", "--cluster", "--shards", "3", "--workers", "5"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("mnist in namespace team of context here: 3 shards and 5 workers"));
  EXPECT_EQ(Job()["spec"]["parameterServer"]["replicas"], 3);
  EXPECT_EQ(Job()["spec"]["worker"]["replicas"], 5);
  EXPECT_EQ(Run({"scale", "mnist", "--cluster", "--workers", "2"}), 0) << Err();
  EXPECT_EQ(Job()["spec"]["parameterServer"]["replicas"], 3);
  EXPECT_EQ(Job()["spec"]["worker"]["replicas"], 2);
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Run({"scale", "mnist", "--cluster", "--workers", "4"}), 2);
  EXPECT_THAT(Err(), HasSubstr("job mnist is not running (Succeeded"));
  EXPECT_EQ(Job()["spec"]["worker"]["replicas"], 2);
}

TEST_F(ClusterCommandTest, RejectsStopNow) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  EXPECT_EQ(Run({"stop", "mnist", "--cluster", "--now"}), 2);
  EXPECT_THAT(Err(), HasSubstr("kubectl delete stj mnist -n team"));
}

TEST_F(ClusterCommandTest, StatusListsJobsAndShowsAJobWithItsPods) {
  EXPECT_EQ(Run({"status", "--cluster"}), 0);
  EXPECT_THAT(Out(), HasSubstr("No jobs in namespace team of context here"));
  ASSERT_EQ(RunJob({"--detach"}), 0);
  Json status = StatusOf("Training", 500);
  status["lastFailures"] = {{{"time", "2026-01-01T00:00:00Z"},
                             {"pod", "mnist-worker-0"},
                             {"reason", "OOMKilled"},
                             {"message", "killed by signal 9 (Killed)"}}};
  SetStatus(status);
  AddPod("worker-0", "worker", "0");
  EXPECT_EQ(Run({"status", "-n", "team"}), 0);
  EXPECT_THAT(Out(), HasSubstr("mnist                    training: step 500 of 1,000 (50 %)"));
  EXPECT_EQ(Run({"status", "mnist", "--cluster"}), 0);
  EXPECT_THAT(Out(), HasSubstr("  worker-0     training on node-a\n"));
  EXPECT_THAT(Out(), HasSubstr("mnist-worker-0 ended: OOMKilled"));
  SetStatus(StatusOf("Training", 510, "SpecNotInEffect",
                     "the running coordinator keeps the old values of spec.training.steps"));
  EXPECT_EQ(Run({"status", "mnist", "--cluster"}), 0);
  EXPECT_THAT(Out(), HasSubstr("  not in effect: the running coordinator keeps the old values of "
                               "spec.training.steps\n"));
  EXPECT_EQ(Run({"status", "other", "--cluster"}), 2);
  EXPECT_THAT(Err(), HasSubstr("there is no job other in namespace team of context here; there "
                               "are: mnist"));
}

TEST_F(ClusterCommandTest, ReadsLogsFromPods) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  EXPECT_EQ(Run({"logs", "mnist", "--cluster"}), 2);
  EXPECT_THAT(Err(), HasSubstr("the job has no pods now"));
  AddPod("worker-0", "worker", "0");
  AddPod("coordinator", "coordinator", "");
  logs_ = {{"mnist-worker-0", "one\ntwo"}, {"mnist-coordinator", "hello"}};
  EXPECT_EQ(Run({"logs", "mnist", "--cluster"}), 0) << Err();
  // The lines of each pod are in order; the pods are read at the same time.
  EXPECT_THAT(Out(), AnyOf("worker-0    | one\nworker-0    | two\ncoordinator | hello\n",
                           "worker-0    | one\ncoordinator | hello\nworker-0    | two\n",
                           "coordinator | hello\nworker-0    | one\nworker-0    | two\n"));
  EXPECT_EQ(Run({"logs", "mnist", "coordinator", "--cluster"}), 0) << Err();
  EXPECT_EQ(Out(), "coordinator | hello\n");
  EXPECT_EQ(Run({"logs", "mnist", "worker-7", "--cluster"}), 2);
  EXPECT_THAT(Err(), HasSubstr("no log of worker-7"));
}

TEST_F(ClusterCommandTest, FollowedLogsIncludeNewPods) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  logs_ = {{"mnist-worker-0", "of the first instance"}, {"mnist-worker-1", "of another"}};
  AddPod("worker-0", "worker", "0");
  Start({"logs", "mnist", "--cluster", "--follow"});
  ASSERT_TRUE(out_->WaitFor("worker-0    | of the first instance\n"));
  ASSERT_TRUE(admin_->Delete(reconciler::Pods(), {"team", "mnist-worker-0"}, {}).ok());
  AddPod("worker-0", "worker", "0");
  AddPod("worker-1", "worker", "1");
  ASSERT_TRUE(out_->WaitFor("worker-1    | of another\n"));
  logs_end_ = true;
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Wait(), 0);
}

TEST_F(ClusterCommandTest, RequiresKubectlToReachARunningJob) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  SetStatus(StatusOf("Training", 500));
  EXPECT_EQ(Run({"inspect", "mnist", "--cluster"}), 2);
  EXPECT_THAT(Err(), HasSubstr("kubectl is not in PATH"));
  Json status = StatusOf("Succeeded", 1000, "Succeeded");
  status["checkpoint"]["location"] = "/var/lib/sluice/checkpoints/attempt-1";
  SetStatus(status);
  EXPECT_EQ(Run({"export", "mnist", "--cluster", "-o", directory_ + "/x.pt"}), 2);
  EXPECT_THAT(Err(), HasSubstr("is not running"));
  EXPECT_THAT(Err(), HasSubstr("/var/lib/sluice/checkpoints/attempt-1"));
}

}  // namespace
}  // namespace sluice::cli
