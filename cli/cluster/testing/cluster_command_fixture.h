// The fixture of tests of the command line with jobs of a cluster, which is an API server in
// memory.
#ifndef SLUICE_CLI_CLUSTER_TESTING_CLUSTER_COMMAND_FIXTURE_H_
#define SLUICE_CLI_CLUSTER_TESTING_CLUSTER_COMMAND_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/cli.h"
#include "cli/cluster/testing/command_output.h"
#include "cli/common/environment.h"
#include "operator/kube/api_error.h"
#include "operator/kube/config.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/http.h"
#include "operator/kube/http_client.h"
#include "operator/kube/object.h"
#include "operator/reconciler/names.h"
#include "services/common/io/file_util.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::cli {

inline constexpr char kManifest[] = R"(apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: mnist}
spec:
  model: {name: mlp}
  data: {format: Synthetic, synthetic: {samples: 100, shape: [4], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 1000}
)";

inline constexpr char kKubeconfig[] = R"(apiVersion: v1
kind: Config
current-context: here
clusters: [{name: c, cluster: {server: "https://api.test:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: here, context: {cluster: c, user: u, namespace: team}}]
)";

class ClusterCommandTest : public ::testing::Test {
 protected:
  using Json = kube::Json;

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
  void AddEvent(const std::string& name, const std::string& type, const std::string& message) {
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

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_TESTING_CLUSTER_COMMAND_FIXTURE_H_
