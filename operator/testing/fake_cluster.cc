#include "operator/testing/fake_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "operator/reconciler/names.h"
#include "services/common/check.h"
#include "services/common/threads/mutex.h"

namespace sluice {

using kube::Json;

namespace {

constexpr char kNamespace[] = "ns";

kube::ResourceType EventType() { return {"events.k8s.io", "v1", "events", "Event", true}; }

// The operator's requests to the server.
class Tap final : public kube::HttpTransport {
 public:
  Tap(FakeCluster* cluster, std::vector<std::string>* writes)
      : cluster_(cluster), writes_(writes) {}

  absl::StatusOr<kube::HttpResponse> Do(const kube::HttpRequest& request) override {
    const absl::Status dead = absl::UnavailableError("the operator is dead");
    if (cluster_->operator_dead) return dead;
    NoteVerb(request);
    const bool event = absl::StrContains(request.target, "events.k8s.io");
    if (request.method == "GET" || event) return cluster_->server.Do(request);
    NoteWrite(request);
    std::optional<kube::FakeApiServer::Fault> fault;
    if (cluster_->on_write != nullptr) fault = cluster_->on_write(request);
    if (!fault.has_value()) return cluster_->server.Do(request);
    if (fault->after_effect) (void)cluster_->server.Do(request);
    if (cluster_->operator_dead) return dead;
    if (!fault->status.ok()) return fault->status;
    return fault->response;
  }
  absl::StatusOr<kube::HttpResponse> Stream(const kube::HttpRequest& request, const BodySink& sink,
                                            kube::Cancellation* cancellation) override {
    NoteVerb(request);
    return cluster_->server.Stream(request, sink, cancellation);
  }

 private:
  void NoteWrite(const kube::HttpRequest& request) {
    MutexLock lock(&mutex_);
    writes_->push_back(
        absl::StrCat(request.method, " ", request.target.substr(0, request.target.find('?'))));
  }

  void NoteVerb(const kube::HttpRequest& request) {
    MutexLock lock(&mutex_);
    const size_t query = std::min(request.target.find('?'), request.target.size());
    std::vector<std::string> parts = absl::StrSplit(request.target.substr(1, query - 1), '/');
    // The path is api/v1 or apis/group/version, then namespaces/ns if the request is for one.
    parts.erase(parts.begin(), parts.begin() + (parts[0] == "api" ? 2 : 3));
    if (parts.size() > 2 && parts[0] == "namespaces") parts.erase(parts.begin(), parts.begin() + 2);
    const std::string resource =
        parts.size() > 2 ? absl::StrCat(parts[0], "/", parts[2]) : parts[0];
    std::string verb = absl::AsciiStrToLower(request.method);
    if (verb == "get" && parts.size() == 1) {
      verb = absl::StrContains(request.target, "watch=") ? "watch" : "list";
    }
    if (verb == "post") verb = "create";
    if (verb == "put") verb = "update";
    cluster_->verbs.insert(absl::StrCat(resource, " ", verb));
  }

  FakeCluster* const cluster_;
  Mutex mutex_;  // protects the recorded requests
  std::vector<std::string>* const writes_;
};

kube::HttpClient::Options ClientOptions() {
  kube::HttpClient::Options options;
  options.sleep = [](absl::Duration) {};
  return options;
}

}  // namespace

void FakeCoordinators::Sync(const kube::ObjectKey& job, const std::string& instance,
                            const ControlAddress& address, const v1::SetDesiredRequest& desired,
                            std::vector<v1::SetDesiredRequest::Death> reported) {
  CoordinatorPeer& peer = peers[job];
  peer.instance = instance;
  peer.address = address.host_and_port;
  peer.credentials = address.credentials;
  peer.desired = desired;
  deaths.insert(deaths.end(), reported.begin(), reported.end());
}

reconciler::LastProgress FakeCoordinators::Latest(const kube::ObjectKey& job) const {
  const auto found = last_progress.find(job);
  return found == last_progress.end() ? reconciler::LastProgress() : found->second;
}

FakeCluster::FakeCluster() : server(&clock, {}), admin_(&server, ClientOptions()) {
  using kube::FakeType;
  server.RegisterType(FakeType{reconciler::TrainingJobs(), true, "/spec/worker/replicas",
                               "/status/worker/replicas", false});
  server.RegisterType(FakeType{reconciler::Pods(), true, "", "", true});
  for (const kube::ResourceType* type :
       {&reconciler::Services(), &reconciler::ConfigMaps(), &reconciler::Secrets(),
        &reconciler::DisruptionBudgets(), &reconciler::NetworkPolicies()}) {
    server.RegisterType(FakeType{*type, false, "", "", false});
  }
  server.RegisterType(FakeType{EventType(), false, "", "", false});
  // Bookmarks also move watches of types without changes forward.
  server.SendBookmarks();
  transport_ = std::make_unique<Tap>(this, &writes_);
  client_ = std::make_unique<kube::HttpClient>(transport_.get(), ClientOptions());
  Restart();
}

void FakeCluster::Restart() {
  operator_dead = false;
  coordinators.peers.clear();
  coordinators.last_progress.clear();
  operator_.reset();
  events_ = std::make_unique<runtime::EventRecorder>(
      runtime::EventRecorder::Options{reconciler::kManagedBy, "test"}, &operator_clock_);
  operator_ = Another();
}

Operator::Options FakeCluster::OperatorOptions() const {
  Operator::Options options;
  options.reconciler.pods = pod_defaults;
  options.reconciler.control_address = [](const std::string& ip) { return ip + ":29500"; };
  options.creators = creators;
  options.namespaces = namespaces;
  options.gather_pod_news = gather_pod_news;
  options.controller.name = "test";
  options.controller.queue.max_backoff = absl::Seconds(30);
  options.reflector.random = [] { return 0.0; };
  return options;
}

std::unique_ptr<Operator> FakeCluster::Another() {
  return std::make_unique<Operator>(OperatorOptions(), client_.get(), client_.get(), &coordinators,
                                    events_.get(), &operator_clock_);
}

bool FakeCluster::Settle() {
  for (int round = 0; round < 300; ++round) {
    const int64_t version = server.version();
    operator_->SyncOnce();
    int reconciled = 0;
    while (!operator_dead && reconciled < 50 && operator_->ReconcileOne()) ++reconciled;
    reconciliations += reconciled;
    if (operator_dead) return true;
    if (kubelets) RunKubelets();
    server.CollectGarbage();
    events_->SendPending(client_.get()).IgnoreError();
    if (server.version() != version) continue;
    // Work that is requeued at once is done by now; the rest waits for the clock to move.
    if (reconciled == 0) return true;
    clock.Advance(absl::Milliseconds(10));
  }
  return false;
}

void FakeCluster::Pass(absl::Duration time) {
  clock.Advance(time);
  operator_->Tick();
  SLUICE_CHECK(Settle(), "the operator does not become idle");
}

Json FakeCluster::Job(const std::string& name, const Json& patch) {
  Json job = Json::parse(R"({
    "apiVersion": "sluice.dev/v1alpha1", "kind": "TrainingJob",
    "spec": {
      "model": {"type": "Builtin", "name": "mnist-net"},
      "data": {"format": "IDX", "source": {"path": "/data/mnist", "volume": {"claimName": "sets"}}},
      "optimizer": {"name": "SGD", "learningRate": 0.1},
      "training": {"steps": 100},
      "parameterServer": {"replicas": 1},
      "worker": {"replicas": 2},
      "checkpoint": {"storage": {"type": "PersistentVolumeClaim", "claimName": "ckpt"}}
    }})");
  job["metadata"] = {{"name", name}, {"namespace", kNamespace}};
  job.merge_patch(patch);
  return job;
}

void FakeCluster::Create(const Json& job) {
  const auto made = admin_.Create(reconciler::TrainingJobs(), kNamespace, job, {});
  SLUICE_CHECK(made.ok(), made.status().ToString().c_str());
}

void FakeCluster::PatchJob(const std::string& name, const Json& patch) {
  const auto made = admin_.Patch(reconciler::TrainingJobs(), {kNamespace, name},
                                 kube::PatchKind::kMerge, patch, {});
  SLUICE_CHECK(made.ok(), made.status().ToString().c_str());
}

Json FakeCluster::GetJob(const std::string& name) {
  auto job = admin_.Get(reconciler::TrainingJobs(), {kNamespace, name}, kube::Subresource::kNone);
  return job.ok() ? *std::move(job) : Json();
}

Json FakeCluster::Status(const std::string& name) {
  const Json job = GetJob(name);
  return job.contains("status") ? job["status"] : Json::object();
}

Json FakeCluster::FindCondition(const std::string& name, const std::string& type) {
  const Json status = Status(name);
  if (!status.contains("conditions")) return {};
  for (const Json& condition : status["conditions"]) {
    if (condition["type"] == type) return condition;
  }
  return {};
}

std::string FakeCluster::Condition(const std::string& name, const std::string& type) {
  const Json condition = FindCondition(name, type);
  if (condition.is_null()) return "";
  return absl::StrCat(kube::GetString(condition, {"status"}), "/",
                      kube::GetString(condition, {"reason"}));
}

std::string FakeCluster::ConditionMessage(const std::string& name, const std::string& type) {
  return kube::GetString(FindCondition(name, type), {"message"});
}

bool FakeCluster::Train(const std::string& name, const Json& patch) {
  Create(Job(name, patch));
  if (!Settle()) return false;
  Say(name, v1::JobProgress::TRAINING, 10);
  return Settle();
}

void FakeCluster::Say(const std::string& name, v1::JobProgress::Phase phase, uint64_t step,
                      const std::function<void(v1::JobProgress*)>& more) {
  auto progress = std::make_shared<v1::JobProgress>();
  progress->set_phase(phase);
  progress->set_step(step);
  progress->set_total_steps(100);
  progress->set_attempt(1);
  if (more != nullptr) more(progress.get());
  const kube::ObjectKey key = {kNamespace, name};
  const auto before = coordinators.last_progress.find(key);
  const bool news = before == coordinators.last_progress.end() ||
                    reconciler::Gist(*before->second.progress) != reconciler::Gist(*progress);
  coordinators.last_progress[key] = {UidOf(name + "-coordinator"), std::move(progress)};
  if (news) operator_->Enqueue(key);
}

std::vector<std::string> FakeCluster::PodNames() {
  std::vector<std::string> names;
  kube::ListOptions options;
  options.ns = kNamespace;
  const auto page = admin_.List(reconciler::Pods(), options);
  SLUICE_CHECK(page.ok(), page.status().ToString().c_str());
  for (const Json& pod : page->items) names.push_back(kube::KeyOf(pod).name);
  return names;
}

Json FakeCluster::Pod(const std::string& name) {
  auto pod = admin_.Get(reconciler::Pods(), {kNamespace, name}, kube::Subresource::kNone);
  return pod.ok() ? *std::move(pod) : Json();
}

void FakeCluster::MergeStatus(const std::string& pod, const Json& status) {
  kube::WriteOptions options;
  options.subresource = kube::Subresource::kStatus;
  const auto made = admin_.Patch(reconciler::Pods(), {kNamespace, pod}, kube::PatchKind::kMerge,
                                 {{"status", status}}, options);
  SLUICE_CHECK(made.ok(), made.status().ToString().c_str());
}

void FakeCluster::SetPodCondition(const std::string& pod, const std::string& type,
                                  const std::string& value, const std::string& reason) {
  Json conditions = Json::array();
  const Json object = Pod(pod);
  if (const Json* present = kube::Find(object, {"status", "conditions"}); present != nullptr) {
    for (const Json& condition : *present) {
      if (condition["type"] != type) conditions.push_back(condition);
    }
  }
  conditions.push_back({{"type", type},
                        {"status", value},
                        {"reason", reason},
                        {"message", reason},
                        {"lastTransitionTime", kube::EncodeTime(clock.Now())}});
  MergeStatus(pod, {{"conditions", conditions}});
}

void FakeCluster::StartPod(const Json& pod) {
  const std::string now = kube::EncodeTime(clock.Now());
  const std::string container =
      kube::GetString(pod, {"metadata", "labels", reconciler::kRoleLabel});
  Json conditions = Json::array();
  for (const char* type : {"PodScheduled", "ContainersReady", "Ready"}) {
    conditions.push_back({{"type", type}, {"status", "True"}, {"lastTransitionTime", now}});
  }
  MergeStatus(
      kube::KeyOf(pod).name,
      {{"phase", "Running"},
       {"podIP", absl::StrCat("10.0.0.", ++last_ip_)},
       {"conditions", std::move(conditions)},
       {"containerStatuses", Json::array({{{"name", container},
                                           {"ready", true},
                                           {"imageID", "sha256:1"},
                                           {"state", {{"running", {{"startedAt", now}}}}}}})}});
}

// If all containers of the pod have ended, sets its phase and returns true.
bool FakeCluster::FinishPod(const Json& pod) {
  const Json& statuses = kube::GetList(pod, {"status", "containerStatuses"});
  bool failed = false;
  for (const Json& status : statuses) {
    if (kube::Find(status, {"state", "terminated"}) == nullptr) return false;
    failed = failed || kube::GetInt(status, {"state", "terminated", "exitCode"}) != 0;
  }
  if (statuses.empty()) return false;
  MergeStatus(kube::KeyOf(pod).name, {{"phase", failed ? "Failed" : "Succeeded"}});
  return true;
}

bool FakeCluster::RunKubelets() {
  bool changed = false;
  kube::ListOptions list;
  list.ns = kNamespace;
  const auto pods = admin_.List(reconciler::Pods(), list);
  SLUICE_CHECK(pods.ok(), pods.status().ToString().c_str());
  for (const Json& pod : pods->items) {
    const std::string name = kube::KeyOf(pod).name;
    if (frozen != nullptr && frozen(name)) continue;
    if (kube::IsBeingDeleted(pod)) {
      kube::DeleteOptions options;
      options.grace_period_seconds = 0;
      (void)admin_.Delete(reconciler::Pods(), {kNamespace, name}, options);
      changed = true;
    } else if (kube::GetString(pod, {"status", "phase"}).empty() ||
               kube::GetString(pod, {"status", "phase"}) == "Pending") {
      StartPod(pod);
      changed = true;
    } else if (kube::GetString(pod, {"status", "phase"}) == "Running") {
      changed = FinishPod(pod) || changed;
    }
  }
  return changed;
}

void FakeCluster::EndPod(const std::string& name, int exit_code, const std::string& reason,
                         const std::string& message) {
  const Json pod = Pod(name);
  const std::string container =
      kube::GetString(pod, {"metadata", "labels", reconciler::kRoleLabel});
  std::string started = kube::EncodeTime(clock.Now());
  if (const Json* statuses = kube::Find(pod, {"status", "containerStatuses"});
      statuses != nullptr && statuses->is_array() && !statuses->empty()) {
    started = kube::GetString(statuses->front(), {"state", "running", "startedAt"});
  }
  const bool was_ready = absl::StrContains(pod.dump(), "\"ContainersReady\"");
  MergeStatus(name, {{"containerStatuses",
                      Json::array({{{"name", container},
                                    {"ready", false},
                                    {"state",
                                     {{"terminated",
                                       {{"exitCode", exit_code},
                                        {"reason", exit_code == 0 ? "Completed" : reason},
                                        {"message", message},
                                        {"startedAt", started},
                                        {"finishedAt", kube::EncodeTime(clock.Now())}}}}}}})}});
  if (was_ready) {
    SetPodCondition(name, "ContainersReady", "False", "PodFailed");
    SetPodCondition(name, "Ready", "False", "PodFailed");
  }
}

void FakeCluster::DeletePod(const std::string& name) {
  const auto made = admin_.Delete(reconciler::Pods(), {kNamespace, name}, {});
  SLUICE_CHECK(made.ok(), made.status().ToString().c_str());
}

std::vector<Json> FakeCluster::Events() {
  kube::ListOptions options;
  options.ns = kNamespace;
  auto page = admin_.List(EventType(), options);
  SLUICE_CHECK(page.ok(), page.status().ToString().c_str());
  return std::move(page->items);
}

std::vector<std::string> FakeCluster::EventReasons() {
  std::vector<Json> events = Events();
  std::stable_sort(events.begin(), events.end(), [](const Json& a, const Json& b) {
    return kube::GetString(a, {"eventTime"}) < kube::GetString(b, {"eventTime"});
  });
  std::vector<std::string> reasons;
  for (const Json& event : events) reasons.push_back(kube::GetString(event, {"reason"}));
  return reasons;
}

std::vector<std::string> FakeCluster::Writes() { return writes_; }

}  // namespace sluice
