// `sluice run --cluster` with an API server in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/cluster/testing/cluster_command_fixture.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/http.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST_F(ClusterCommandTest, AppliesJobAndFollowsItToSuccess) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("Job mnist in namespace team of context here created\n"));
  EXPECT_EQ(Job()["spec"]["training"], Json({{"steps", 1000}}));
  EXPECT_FALSE(Job()["spec"].contains("seed")) << "the API server sets the defaults";
  SetStatus(StatusOf("Starting", 0));
  AddEvent("a", "Warning", "no node takes mnist-ps-0");
  ASSERT_TRUE(out_->WaitFor("Warning: Reason: no node takes mnist-ps-0\n"));
  Json status = StatusOf("Training", 500);
  status["training"]["evaluation"] = {
      {"step", 500}, {"epoch", 1.5}, {"loss", 0.1}, {"samples", 100}, {"accuracy", 97.5}};
  SetStatus(status);
  ASSERT_TRUE(out_->WaitFor("Step 500 (epoch 1.50): accuracy 97.50 %, loss 0.1000 on 100 samp"));
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Wait(), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("Trained mnist: accuracy 97.50 % after 1,000 steps"));
  EXPECT_THAT(Out(), HasSubstr("logs         sluice logs mnist --cluster --namespace team"));
}

TEST_F(ClusterCommandTest, FailureShowsReasonAndLastLogLinesOfBlamedPod) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("created"));
  logs_["mnist-worker-0"] = "reading data\nno such file";
  Json status = StatusOf("Failed", 10, "Failed", "worker-0 never became ready");
  status["lastFailures"] = {{{"pod", "mnist-worker-0"}}};
  SetStatus(status);
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(Out(), HasSubstr("Failed: mnist, last reported at step 10 of 1,000"));
  EXPECT_THAT(Err(), HasSubstr("Last log lines of worker-0:\n  reading data\n  no such file\n"));
  EXPECT_THAT(Err(), HasSubstr("job mnist failed: worker-0 never became ready"));
}

TEST_F(ClusterCommandTest, CtrlCDetachesAndTheJobContinues) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("created"));
  SetStatus(StatusOf("Training", 500));
  AddEvent("a", "Normal", "it trains");
  ASSERT_TRUE(out_->WaitFor("it trains"));
  Interrupt();
  EXPECT_EQ(Wait(), 130);
  EXPECT_THAT(Err(), HasSubstr("Job mnist continues in namespace team"));
  EXPECT_THAT(Err(), HasSubstr("sluice run " + directory_ + "/job.yaml --cluster"));
  EXPECT_THAT(Err(), HasSubstr("sluice stop mnist --cluster --namespace team"));
  EXPECT_THAT(Err(), HasSubstr("kubectl delete stj mnist -n team"));
  EXPECT_THAT(Job()["spec"].value("suspend", false), false);
}

TEST_F(ClusterCommandTest, DetachOnlyApplies) {
  EXPECT_EQ(RunJob({"--detach"}), 0);
  EXPECT_THAT(Out(), HasSubstr("created"));
  EXPECT_THAT(Err(), HasSubstr("sluice logs mnist --cluster --namespace team --follow"));
  EXPECT_EQ(RunJob({"-d"}), 0);
  EXPECT_THAT(Out(), HasSubstr("already exists, unchanged"));
  EXPECT_EQ(RunJob({"-d", "--workers", "4", "--quiet"}), 0);
  EXPECT_THAT(Out() + Err(), IsEmpty());
  EXPECT_EQ(Job()["spec"]["worker"]["replicas"], 4);
}

TEST_F(ClusterCommandTest, DryRunStoresNothing) {
  EXPECT_EQ(RunJob({"--dry-run"}), 0);
  EXPECT_THAT(Out(), HasSubstr("would be created"));
  EXPECT_TRUE(Job().is_null());
}

TEST_F(ClusterCommandTest, FollowsExistingJobWithoutItsPastEvents) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  SetStatus(StatusOf("Training", 500));
  AddEvent("a", "Normal", "long ago");
  StartJob();
  ASSERT_TRUE(out_->WaitFor("already exists, unchanged"));
  // Wait until its watches have begun.
  while (server_->running_watches() < 3) std::this_thread::yield();
  AddEvent("b", "Normal", "just now");
  ASSERT_TRUE(out_->WaitFor("just now"));
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Wait(), 0);
  EXPECT_THAT(Out(), Not(HasSubstr("long ago")));
}

TEST_F(ClusterCommandTest, ReportsEndedJob) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(RunJob(), 0);
  EXPECT_THAT(Out(), HasSubstr("has already ended: Succeeded at step 1,000 of 1,000"));
  EXPECT_THAT(Out(), HasSubstr("kubectl delete stj mnist -n team"));
  SetStatus(StatusOf("Failed", 10, "Failed", "no data"));
  EXPECT_EQ(RunJob(), 1);
  EXPECT_THAT(Err(), HasSubstr("has already ended: Failed at step 10 of 1,000: no data"));
}

TEST_F(ClusterCommandTest, SurvivesBrokenWatchesAndExpiredVersions) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("created"));
  for (int i = 0; i < 3; ++i) {
    while (server_->running_watches() < 3) std::this_thread::yield();
    server_->Compact();
    server_->CutWatches(i % 2 == 0);
    AddEvent(absl::StrCat("event-", i), "Normal", absl::StrCat("number ", i));
    ASSERT_TRUE(out_->WaitFor(absl::StrCat("number ", i)));
  }
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Wait(), 0);
}

TEST_F(ClusterCommandTest, DeletedJobIsAFailure) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("created"));
  SetStatus(StatusOf("Training", 10));
  while (server_->running_watches() < 3) std::this_thread::yield();
  ASSERT_TRUE(admin_->Delete(reconciler::TrainingJobs(), {"team", "mnist"}, {}).ok());
  EXPECT_EQ(Wait(), 1);
  EXPECT_THAT(Err(), HasSubstr("job mnist failed: it was deleted"));
}

TEST_F(ClusterCommandTest, RejectsBadManifestBeforeAnyRequest) {
  Write("job.yaml", std::string(kManifest) + "  trainign: {}\n");
  EXPECT_EQ(RunJob(), 2);
  EXPECT_THAT(Err(), HasSubstr("job.yaml:9:3: spec.trainign"));
  EXPECT_THAT(server_->Requests(), IsEmpty());
}

TEST_F(ClusterCommandTest, PrintsTheApiServersRefusalAndExitsWithCode2) {
  RefuseWrites(422, "Invalid", "TrainingJob \"mnist\" is invalid: spec.model: not so");
  EXPECT_EQ(RunJob(), 2);
  EXPECT_THAT(Err(), HasSubstr("TrainingJob \"mnist\" is invalid: spec.model: not so"));
}

TEST_F(ClusterCommandTest, SuggestsRemedyForChangedFixedField) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  RefuseWrites(
      422, "Invalid",
      "TrainingJob \"mnist\" is invalid: spec.seed: `seed` is fixed for the life of a job");
  EXPECT_EQ(RunJob(), 2);
  EXPECT_THAT(Err(), HasSubstr("spec.seed: `seed` is fixed"));
  EXPECT_THAT(Err(), HasSubstr("give the job another name"));
}

TEST_F(ClusterCommandTest, ConflictSuggestsForceConflicts) {
  ASSERT_EQ(RunJob({"--detach"}), 0);
  kube::WriteOptions apply;
  apply.field_manager = "kubectl";
  apply.force = true;
  ASSERT_TRUE(
      admin_
          ->Patch(reconciler::TrainingJobs(), {"team", "mnist"}, kube::PatchKind::kApply,
                  {{"metadata", {{"name", "mnist"}}}, {"spec", {{"worker", {{"replicas", 3}}}}}},
                  apply)
          .ok());
  EXPECT_EQ(RunJob({"--detach", "--workers", "2"}), 2);
  EXPECT_THAT(Err(), HasSubstr("conflict with \"kubectl\""));
  EXPECT_THAT(Err(), HasSubstr("--force-conflicts"));
  EXPECT_EQ(RunJob({"--detach", "--workers", "2", "--force-conflicts"}), 0) << Err();
  EXPECT_EQ(Job()["spec"]["worker"]["replicas"], 2);
}

TEST_F(ClusterCommandTest, ForbiddenSuggestsTheRoleToAskFor) {
  RefuseWrites(403, "Forbidden",
               "trainingjobs.sluice.dev \"mnist\" is forbidden: User \"ann\" cannot patch resource "
               "\"trainingjobs\" in API group \"sluice.dev\" in the namespace \"team\"");
  EXPECT_EQ(RunJob(), 2);
  EXPECT_THAT(Err(), HasSubstr("User \"ann\" cannot patch"));
  EXPECT_THAT(Err(), HasSubstr("ask for the role edit"));
  RefuseWrites(403, "Forbidden", "exceeded quota: jobs");
  EXPECT_EQ(RunJob(), 2);
  EXPECT_THAT(Err(), Not(HasSubstr("role edit")));
}

TEST_F(ClusterCommandTest, UnreachableServerFailsWithItsAddress) {
  server_->SetFaultInjector([](const kube::HttpRequest&) {
    kube::FakeApiServer::Fault fault;
    fault.status = absl::UnavailableError("connection refused");
    return fault;
  });
  EXPECT_EQ(RunJob(), 1);
  EXPECT_THAT(Err(), HasSubstr("https://api.test:6443 (context here) cannot be reached"));
}

TEST_F(ClusterCommandTest, RequiresKubeconfig) {
  std::filesystem::remove(directory_ + "/kubeconfig");
  EXPECT_EQ(RunJob(), 2);
  EXPECT_THAT(Err(), HasSubstr("no cluster is configured"));
  EXPECT_EQ(RunJob({"--kubeconfig", directory_ + "/other"}), 2);
  EXPECT_THAT(Err(), HasSubstr("other"));
  Write("kubeconfig", kKubeconfig);
  EXPECT_EQ(RunJob({"--context", "nowhere"}), 2);
  EXPECT_THAT(Err(), HasSubstr("no entry is named \"nowhere\""));
}

TEST_F(ClusterCommandTest, NamespaceComesFromFlagManifestOrContext) {
  Write("job.yaml", absl::StrCat(kManifest, "---\n"));
  EXPECT_EQ(RunJob({"-d", "-n", "other"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("in namespace other of"));
  std::string own = kManifest;
  own.replace(own.find("{name: mnist}"), 13, "{name: mnist, namespace: own}");
  Write("job.yaml", own);
  EXPECT_EQ(RunJob({"-d"}), 0) << Err();
  EXPECT_THAT(Out(), HasSubstr("in namespace own of"));
  EXPECT_EQ(RunJob({"-d", "-n", "other"}), 2);
  EXPECT_THAT(Err(), HasSubstr("the manifest's namespace is own"));
}

TEST_F(ClusterCommandTest, RejectsFlagsOfLocalRuns) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--fresh"}, {"--port", "1234"}, {"--bin-dir", "/x"}}) {
    EXPECT_EQ(RunJob(flags), 2);
    EXPECT_THAT(Err(), HasSubstr(flags[0] + " applies to jobs of this machine"));
  }
}

TEST_F(ClusterCommandTest, FollowedJobThatIsSuspendedExitsWith130) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("created"));
  ASSERT_TRUE(admin_
                  ->Patch(reconciler::TrainingJobs(), {"team", "mnist"}, kube::PatchKind::kMerge,
                          {{"spec", {{"suspend", true}}}}, {})
                  .ok());
  SetStatus(StatusOf("Suspended", 510, "Suspended"));
  EXPECT_EQ(Wait(), 130);
  EXPECT_THAT(Out(), HasSubstr("Stopped mnist at step 510 of 1,000"));
  EXPECT_THAT(Err(), HasSubstr("Run the same command to resume."));
}

TEST_F(ClusterCommandTest, JsonOutputHasOneObjectPerLineAndASummaryLast) {
  StartJob({"--output", "json"});
  ASSERT_TRUE(out_->WaitFor("created"));
  SetStatus(StatusOf("Training", 500));
  AddPod("worker-0", "worker", "0");
  ASSERT_TRUE(out_->WaitFor("\"pod\":\"mnist-worker-0\""));
  SetStatus(StatusOf("Failed", 500, "Failed", "no more data"));
  EXPECT_EQ(Wait(), 1);
  Json last;
  for (absl::string_view line : absl::StrSplit(Out(), '\n', absl::SkipEmpty())) {
    last = Json::parse(line);
    EXPECT_TRUE(last.contains("type") && last.contains("time")) << line;
  }
  EXPECT_EQ(last["type"], "summary");
  EXPECT_EQ(last["outcome"], "Failed");
  EXPECT_EQ(last["exitCode"], 1);
  EXPECT_EQ(last["reason"], "no more data");
}

TEST_F(ClusterCommandTest, QuietRunPrintsOnlyTheFinalMetric) {
  StartJob({"--quiet"});
  while (Job().is_null()) std::this_thread::yield();
  SetStatus(StatusOf("Succeeded", 1000, "Succeeded"));
  EXPECT_EQ(Wait(), 0);
  EXPECT_EQ(Out(), "Trained mnist: 1,000 steps\n");
}

}  // namespace
}  // namespace sluice::cli
