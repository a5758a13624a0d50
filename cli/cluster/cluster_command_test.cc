// Tests of the command line with jobs of a cluster, which is an API server in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/cli.h"
#include "cli/cluster/testing/command_output.h"
#include "operator/kube/api_error.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "services/common/mutex.h"

namespace sluice::cli {
namespace {

using kube::Json;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: mnist}
spec:
  model: {name: mlp}
  data: {format: Synthetic, synthetic: {samples: 100, shape: [4], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 1000}
)";

constexpr char kKubeconfig[] = R"(apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "https://api.test:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: here, context: {cluster: c, user: u, namespace: team}}]
)";

class ClusterCommandTest : public ::testing::Test {
 protected:
  ClusterCommandTest()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        files_(MakeRealFileSystem()) {
    std::filesystem::create_directories(directory_);
    Write("job.yaml", kManifest);
    Write("kubeconfig", kKubeconfig);
    MakeServer(true);
  }
  ~ClusterCommandTest() override {
    // Ends the job of a test that failed before its end.
    {
      MutexLock lock(&mutex_);
      if (interrupt_) interrupt_(1);
    }
    Wait();
  }

  void MakeServer(bool with_trainingjobs) {
    kube::FakeApiServer::Options options;
    options.end_watches_when_drained = false;
    server_ = std::make_unique<kube::FakeApiServer>(&clock_, options);
    if (with_trainingjobs) {
      server_->RegisterType({reconciler::TrainingJobs(), true, "/spec/worker/replicas",
                             "/status/worker/replicas", false});
    }
    server_->RegisterType({reconciler::Pods(), true, "", "", false});
    server_->RegisterType({Events(), false, "", "", false});
    kube::HttpClient::Options client;
    client.sleep = [](absl::Duration) {};
    admin_ = std::make_unique<kube::HttpClient>(server_.get(), std::move(client));
  }

  static kube::ResourceType Events() { return {"", "v1", "events", "Event", true}; }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ + "/" + name) << text;
  }

  Environment MakeEnvironment() {
    Environment environment;
    environment.in = &in_;
    environment.files = files_.get();
    environment.clock = &clock_;
    environment.cluster.kubeconfig = directory_ + "/kubeconfig";
    environment.cluster.connect = [this](const kube::ClientConfig& config)
        -> absl::StatusOr<std::unique_ptr<kube::HttpTransport>> {
      EXPECT_EQ(config.server, "https://api.test:6443");
      return std::make_unique<LogTransport>(server_.get(), &logs_, &logs_end_);
    };
    environment.set_interrupt_handler = [this](std::function<void(int)> handler) {
      MutexLock lock(&mutex_);
      interrupt_ = std::move(handler);
    };
    return environment;
  }

  // Runs a command to its end.
  int Run(const std::vector<std::string>& arguments) {
    Start(arguments);
    return Wait();
  }
  void Start(const std::vector<std::string>& arguments) {
    Wait();
    out_ = std::make_unique<SharedText>();
    err_ = std::make_unique<SharedText>();
    thread_ = std::thread([this, arguments] {
      std::ostream out(out_.get());
      std::ostream err(err_.get());
      Environment environment = MakeEnvironment();
      environment.out = &out;
      environment.err = &err;
      code_ = RunCommandLine(arguments, environment);
    });
  }
  void StartJob(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"run", "--cluster", directory_ + "/job.yaml"});
    Start(more);
  }
  int RunJob(std::vector<std::string> more = {}) {
    StartJob(std::move(more));
    return Wait();
  }
  int Wait() {
    if (thread_.joinable()) thread_.join();
    return code_;
  }
  std::string Out() const { return out_->text(); }
  std::string Err() const { return err_->text(); }

  // Presses Ctrl-C as soon as a handler is set.
  void Interrupt() {
    MutexLock lock(&mutex_);
    ASSERT_TRUE(interrupt_);
    interrupt_(1);
  }

  Json Job() {
    const absl::StatusOr<Json> job =
        admin_->Get(reconciler::TrainingJobs(), {"team", "mnist"}, kube::Subresource::kNone);
    return job.ok() ? *job : Json();
  }
  // Writes the status like the operator.
  void SetStatus(const Json& status) {
    kube::WriteOptions options;
    options.subresource = kube::Subresource::kStatus;
    const auto patched = admin_->Patch(reconciler::TrainingJobs(), {"team", "mnist"},
                                       kube::PatchKind::kMerge, {{"status", status}}, options);
    ASSERT_TRUE(patched.ok()) << patched.status();
  }
  static Json StatusOf(const std::string& summary, uint64_t step, const std::string& condition = "",
                       const std::string& message = "") {
    Json status = {{"summary", summary},
                   {"training", {{"step", step}, {"totalSteps", 1000}, {"samples", step * 64}}},
                   {"conditions", Json::array()}};
    if (!condition.empty()) {
      status["conditions"].push_back(
          {{"type", condition}, {"status", "True"}, {"reason", "Because"}, {"message", message}});
    }
    return status;
  }
  void Tell(const std::string& name, const std::string& type, const std::string& message) {
    const Json event = {{"metadata", {{"name", name}}},
                        {"involvedObject",
                         {{"kind", "TrainingJob"}, {"name", "mnist"}, {"uid", kube::UidOf(Job())}}},
                        {"type", type},
                        {"reason", "Reason"},
                        {"message", message}};
    ASSERT_TRUE(admin_->Create(Events(), "team", event, {}).ok());
  }
  void AddPod(const std::string& process, const std::string& role, const std::string& index) {
    Json pod = {{"metadata",
                 {{"name", "mnist-" + process},
                  {"labels",
                   {{reconciler::kJobLabel, "mnist"},
                    {reconciler::kRoleLabel, role},
                    {reconciler::kIndexLabel, index}}},
                  {"ownerReferences", {{{"uid", kube::UidOf(Job())}, {"controller", true}}}}}},
                {"spec", {{"nodeName", "node-a"}}}};
    const auto created = admin_->Create(reconciler::Pods(), "team", pod, {});
    ASSERT_TRUE(created.ok()) << created.status();
    const Json status = {
        {"containerStatuses",
         {{{"name", role}, {"state", {{"running", {{"startedAt", "2026-01-01T00:00:00Z"}}}}}}}},
        {"conditions", {{{"type", "Ready"}, {"status", "True"}}}}};
    kube::WriteOptions options;
    options.subresource = kube::Subresource::kStatus;
    ASSERT_TRUE(admin_
                    ->Patch(reconciler::Pods(), {"team", "mnist-" + process},
                            kube::PatchKind::kMerge, {{"status", status}}, options)
                    .ok());
  }
  // Answers every write with this refusal.
  void RefuseWrites(int code, const std::string& reason, const std::string& message) {
    server_->SetFaultInjector([=](const kube::HttpRequest& request) {
      std::optional<kube::FakeApiServer::Fault> fault;
      if (request.method == "GET") return fault;
      fault.emplace();
      fault->response.code = code;
      fault->response.body =
          Json{{"kind", "Status"}, {"reason", reason}, {"message", message}}.dump();
      return fault;
    });
  }

  const std::string directory_;
  const std::unique_ptr<FileSystem> files_;
  const RealClock clock_;
  std::unique_ptr<kube::FakeApiServer> server_;
  std::unique_ptr<kube::HttpClient> admin_;
  std::map<std::string, std::string> logs_;  // by pod
  std::atomic<bool> logs_end_{false};        // whether followed logs end
  std::istringstream in_;
  std::unique_ptr<SharedText> out_ = std::make_unique<SharedText>();
  std::unique_ptr<SharedText> err_ = std::make_unique<SharedText>();
  std::thread thread_;
  int code_ = -1;
  Mutex mutex_;
  std::function<void(int)> interrupt_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(ClusterCommandTest, AppliesJobAndFollowsItToSuccess) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("Job mnist in namespace team of context here created\n"));
  EXPECT_EQ(Job()["spec"]["training"], Json({{"steps", 1000}}));
  EXPECT_FALSE(Job()["spec"].contains("seed")) << "the API server sets the defaults";
  SetStatus(StatusOf("Starting", 0));
  Tell("a", "Warning", "no node takes mnist-ps-0");
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
  EXPECT_THAT(Out(), HasSubstr("Failed: mnist at step 10 of 1,000"));
  EXPECT_THAT(Err(), HasSubstr("Last log lines of worker-0:\n  reading data\n  no such file\n"));
  EXPECT_THAT(Err(), HasSubstr("job mnist failed: worker-0 never became ready"));
}

TEST_F(ClusterCommandTest, CtrlCDetachesAndTheJobContinues) {
  StartJob();
  ASSERT_TRUE(out_->WaitFor("created"));
  SetStatus(StatusOf("Training", 500));
  Tell("a", "Normal", "it trains");
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
  Tell("a", "Normal", "long ago");
  StartJob();
  ASSERT_TRUE(out_->WaitFor("already exists, unchanged"));
  // Wait until its watches have begun.
  while (server_->running_watches() < 3) std::this_thread::yield();
  Tell("b", "Normal", "just now");
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
    Tell(absl::StrCat("event-", i), "Normal", absl::StrCat("number ", i));
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
  EXPECT_EQ(Out(), "Trained mnist: 1,000 steps (0.00 epochs)\n");
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
