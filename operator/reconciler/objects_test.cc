#include "operator/reconciler/objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "operator/reconciler/names.h"
#include "services/common/io/page_server.h"

namespace sluice::reconciler {
namespace {

using kube::GetString;
using kube::Json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

const PodDefaults kDefaults = {"server:1", "worker:1", "logfmt"};
const UpdateMode kMode = {v1::SYNCHRONOUS, 0};
constexpr policy::Replica kWorker = {v1::WORKER, 1};
constexpr policy::Replica kShard = {v1::SHARD, 0};
constexpr policy::Replica kCoordinator = {v1::COORDINATOR, 0};

ObservedJob Job(const Json& spec_patch = Json::object()) {
  Json job = Json::parse(R"({
    "metadata": {"name": "a", "namespace": "ns", "uid": "u-1",
                 "labels": {"kueue.x-k8s.io/queue-name": "q", "team": "t"}},
    "spec": {"tls": "Enabled", "model": {"type": "Builtin", "name": "mlp"}, "training": {"steps": 10},
             "data": {"format": "IDX",
                      "source": {"path": "/data/x", "volume": {"claimName": "sets"}}},
             "checkpoint": {"storage": {"type": "PersistentVolumeClaim", "claimName": "ckpt"}}}})");
  job["spec"].merge_patch(spec_patch);
  return ReadJob(job);
}

Json MakePod(const ObservedJob& job, const PodDefaults& defaults, const policy::Replica& replica) {
  return MakePod(job, defaults, ImagesOf(job, defaults), replica);
}

Json Container(const Json& pod) { return pod["spec"]["containers"][0]; }

std::vector<std::string> Arguments(const Json& pod) {
  return Container(pod)["args"].get<std::vector<std::string>>();
}

TEST(ObjectsTest, PodsRunTheProcessesOfTheirRole) {
  const Json worker = MakePod(Job(), kDefaults, kWorker);
  EXPECT_EQ(GetString(worker, {"metadata", "name"}), "a-worker-1");
  EXPECT_EQ(GetString(worker, {"spec", "restartPolicy"}), "Never");
  EXPECT_EQ(Container(worker)["command"], Json::array({"/usr/bin/sluice-worker"}));
  EXPECT_THAT(Arguments(worker),
              IsSupersetOf({"--job=ns/a/u-1", "--coordinator=a-coordinator.ns.svc:29500",
                            "--index=1", "--metrics-address=[::]:9090"}));
  EXPECT_EQ(Container(worker)["image"], "worker:1");
  EXPECT_EQ(Container(MakePod(Job(), kDefaults, kShard))["image"], "server:1");
  EXPECT_THAT(Arguments(MakePod(Job(), kDefaults, kShard)), Contains("--advertise=$(POD_IP)"));
  EXPECT_THAT(Arguments(MakePod(Job(), kDefaults, kCoordinator)),
              IsSupersetOf({"--job=/etc/sluice/job.json", "--storage=/var/lib/sluice/checkpoints",
                            "--termination-file=/dev/termination-log"}));
}

TEST(ObjectsTest, PodsUseTheGivenImages) {
  const PodImages images = {"server:0", "worker:0"};
  for (const char* image : {"", "newer"}) {
    const ObservedJob job = Job({{"image", image}});
    EXPECT_EQ(Container(MakePod(job, kDefaults, images, kShard))["image"], "server:0");
    EXPECT_EQ(Container(MakePod(job, kDefaults, images, kWorker))["image"], "worker:0");
  }
  EXPECT_EQ(ImagesOf(Job({{"image", "newer"}}), kDefaults).server, "newer");
}

// A pod's image may be of an older release than the operator. New settings of a release go into the
// job file, or into environment variables, which older programs ignore: docs/versions.md. So this
// list can only become shorter within an API version.
TEST(ObjectsTest, PodsUseOnlyFlagsThatEveryReleaseKnows) {
  const auto flags = [](const Json& pod) {
    std::vector<std::string> names;
    for (const std::string& argument : Arguments(pod)) {
      names.push_back(argument.substr(0, argument.find('=')));
    }
    return names;
  };
  EXPECT_THAT(flags(MakePod(Job(), kDefaults, kCoordinator)),
              ElementsAre("--job", "--listen", "--storage", "--termination-file", "--tls-directory",
                          "--metrics-address", "--log-format"));
  EXPECT_THAT(
      flags(MakePod(Job(), kDefaults, kShard)),
      ElementsAre("--job", "--coordinator", "--index", "--listen", "--advertise", "--threads",
                  "--grace", "--tls-directory", "--metrics-address", "--log-format"));
  EXPECT_THAT(flags(MakePod(Job(), kDefaults, kWorker)),
              ElementsAre("--job", "--coordinator", "--index", "--threads", "--grace",
                          "--tls-directory", "--metrics-address", "--log-format"));
}

TEST(ObjectsTest, PodsAreRestricted) {
  for (const policy::Replica& replica : {kCoordinator, kShard, kWorker}) {
    const Json pod = MakePod(Job(), kDefaults, replica);
    const Json context = Container(pod)["securityContext"];
    EXPECT_EQ(context["runAsNonRoot"], true);
    EXPECT_EQ(context["allowPrivilegeEscalation"], false);
    EXPECT_EQ(context["readOnlyRootFilesystem"], true);
    EXPECT_EQ(context["capabilities"]["drop"], Json::array({"ALL"}));
    EXPECT_EQ(context["seccompProfile"]["type"], "RuntimeDefault");
    EXPECT_EQ(pod["spec"]["automountServiceAccountToken"], false);
    EXPECT_EQ(pod["spec"]["securityContext"]["runAsUser"], 65532);
    PodDefaults platform = kDefaults;
    platform.run_as.reset();
    const Json theirs = MakePod(Job(), platform, replica)["spec"]["securityContext"];
    EXPECT_EQ(theirs["runAsNonRoot"], true);
    for (const char* field : {"runAsUser", "runAsGroup", "fsGroup"}) {
      EXPECT_FALSE(theirs.contains(field)) << field;
    }
  }
}

TEST(ObjectsTest, MountsVolumesOnlyWhereTheyAreNeeded) {
  const std::string worker = MakePod(Job(), kDefaults, kWorker).dump();
  EXPECT_THAT(worker, HasSubstr("\"claimName\":\"sets\""));
  EXPECT_THAT(worker, Not(HasSubstr("ckpt")));
  const std::string shard = MakePod(Job(), kDefaults, kShard).dump();
  EXPECT_THAT(shard, HasSubstr("\"claimName\":\"ckpt\""));
  EXPECT_THAT(shard, HasSubstr("\"subPath\":\"ns/a\""));
  EXPECT_THAT(shard, Not(HasSubstr("sets")));
}

TEST(ObjectsTest, MergesATemplateIntoThePod) {
  const Json pod = MakePod(Job(Json::parse(R"({"worker": {"template": {
      "metadata": {"labels": {"x": "y", "sluice.dev/role": "other"}},
      "spec": {"nodeSelector": {"disk": "ssd"}, "restartPolicy": "Always",
               "tolerations": [{"key": "spot", "operator": "Exists"}],
               "volumes": [{"name": "sets", "emptyDir": {}}],
               "containers": [{"name": "sidecar", "image": "s"},
                              {"name": "worker", "resources": {"limits": {"cpu": "1500m"}},
                               "env": [{"name": "A", "value": "b"}],
                               "volumeMounts": [{"name": "sets", "mountPath": "/sets"}]}]}}}})")),
                           kDefaults, kWorker);
  EXPECT_EQ(GetString(pod, {"metadata", "labels", "x"}), "y");
  EXPECT_EQ(GetString(pod, {"metadata", "labels", kRoleLabel}), "worker");
  EXPECT_EQ(GetString(pod, {"metadata", "labels", "kueue.x-k8s.io/queue-name"}), "q");
  EXPECT_EQ(GetString(pod, {"metadata", "labels", "team"}), "");
  EXPECT_EQ(pod["spec"]["restartPolicy"], "Never");
  EXPECT_EQ(pod["spec"]["nodeSelector"]["disk"], "ssd");
  EXPECT_EQ(pod["spec"]["tolerations"].size(), 3u);
  EXPECT_EQ(pod["spec"]["containers"].size(), 2u);
  EXPECT_EQ(Container(pod)["resources"]["limits"]["cpu"], "1500m");
  EXPECT_THAT(Arguments(pod), Contains("--threads=2"));
  EXPECT_EQ(Container(pod)["volumeMounts"].size(), 4u);
  EXPECT_EQ(Container(pod)["env"].size(), 2u);
}

TEST(ObjectsTest, ACustomCommandFindsTheJobInItsEnvironment) {
  const Json pod =
      MakePod(Job({{"worker", {{"command", {"python3", "train.py"}}}}}), kDefaults, kWorker);
  EXPECT_EQ(Container(pod)["command"], Json::array({"python3", "train.py"}));
  const std::string env = Container(pod)["env"].dump();
  for (const char* name : {"SLUICE_COORDINATOR", "SLUICE_JOB", "SLUICE_WORKER_INDEX"}) {
    EXPECT_THAT(env, HasSubstr(name));
  }
  EXPECT_FALSE(Container(pod).contains("readinessProbe"));
}

TEST(ObjectsTest, ACustomCommandIsToldTheKernelsThatTheJobFixes) {
  const auto env = [](const Json& training) {
    const Json pod =
        MakePod(Job({{"worker", {{"command", {"python3", "train.py"}}}}, {"training", training}}),
                kDefaults, kWorker);
    return Container(pod)["env"].dump();
  };
  EXPECT_THAT(env({{"steps", 10}, {"determinism", "BitExact"}}),
              AllOf(HasSubstr(R"({"name":"OPENBLAS_CORETYPE","value":"Haswell"})"),
                    HasSubstr(R"({"name":"ATEN_CPU_CAPABILITY","value":"avx2"})"),
                    HasSubstr(R"({"name":"OMP_NUM_THREADS","value":"1"})")));
  EXPECT_THAT(env({{"steps", 10}, {"kernels", "x86-64-v4"}}),
              HasSubstr(R"({"name":"OPENBLAS_CORETYPE","value":"SkylakeX"})"));
  EXPECT_THAT(env({{"steps", 10}}), testing::Not(HasSubstr("OPENBLAS_CORETYPE")));
}

TEST(ObjectsTest, ACustomCommandHasAMetricsPortOnlyIfItsTemplateDoes) {
  const auto ports = [](const Json& worker, const policy::Replica& replica) {
    return Container(MakePod(Job({{"worker", worker}}), kDefaults, replica))["ports"].dump();
  };
  const Json command = {{"command", {"python3", "train.py"}}};
  EXPECT_EQ(ports(command, kWorker), "[]");
  EXPECT_THAT(ports(command, kShard), HasSubstr("\"metrics\""));
  EXPECT_THAT(ports(Json::object(), kWorker), HasSubstr("\"metrics\""));
  Json serves = command;
  serves["template"] = Json::parse(R"({"spec": {"containers": [
      {"name": "worker", "ports": [{"name": "metrics", "containerPort": 8000}]}]}})");
  EXPECT_THAT(ports(serves, kWorker), HasSubstr("\"containerPort\":8000"));
}

TEST(ObjectsTest, WorkersThatDownloadGetACacheDirectoryUnlessTheySetOne) {
  const std::string address = absl::StrCat("http://h/words#sha256=", std::string(64, 'a'));
  const Json data = {{"data", {{"format", "Text"}, {"source", {{"path", address}}}}}};
  EXPECT_THAT(Container(MakePod(Job(data), kDefaults, kWorker))["env"].dump(),
              HasSubstr(R"({"name":"SLUICE_CACHE","value":"/tmp/sluice-cache"})"));
  EXPECT_EQ(Container(MakePod(Job(data), kDefaults, kShard))["env"].size(), 1u);
  EXPECT_EQ(Container(MakePod(Job(), kDefaults, kWorker))["env"].size(), 1u);
  Json own = data;
  own["worker"] = Json::parse(R"({"template": {"spec": {"containers": [
      {"name": "worker", "env": [{"name": "SLUICE_CACHE", "value": "/big"}]}]}}})");
  const std::string env = Container(MakePod(Job(own), kDefaults, kWorker))["env"].dump();
  EXPECT_THAT(env, HasSubstr("/big"));
  EXPECT_THAT(env, ::testing::Not(HasSubstr("/tmp/sluice-cache")));
}

TEST(ObjectsTest, ProcessesReceiveThePathsOfTheirCertificates) {
  for (const policy::Replica& replica : {kCoordinator, kShard, kWorker}) {
    const Json pod = MakePod(Job(), kDefaults, replica);
    EXPECT_THAT(Arguments(pod), Contains("--tls-directory=/etc/sluice-tls"));
    EXPECT_THAT(pod.dump(),
                HasSubstr("\"secretName\":\"a-tls-" + std::string(RoleName(replica.role)) + "\""));
    EXPECT_THAT(pod.dump(), Not(HasSubstr("a-tls-ca")));
    EXPECT_THAT(MakePod(Job({{"tls", "Disabled"}}), kDefaults, replica).dump(),
                Not(HasSubstr("tls")));
  }
  const Json custom =
      MakePod(Job({{"worker", {{"command", {"python3", "train.py"}}}}}), kDefaults, kWorker);
  EXPECT_THAT(Container(custom)["env"].dump(), HasSubstr("SLUICE_TLS_DIRECTORY"));
}

TEST(ObjectsTest, ProbesKillFrozenButNotBusyProcesses) {
  for (const policy::Replica& replica : {kCoordinator, kShard, kWorker}) {
    const Json usual = Container(MakePod(Job(), kDefaults, replica));
    for (const char* name : {"startupProbe", "livenessProbe"}) {
      const Json& probe = usual[name];
      EXPECT_EQ(probe["httpGet"]["path"],
                absl::StrCat("/healthz?period=", probe["periodSeconds"].get<int>()));
      EXPECT_EQ(probe["terminationGracePeriodSeconds"], 5)
          << "a frozen process does not handle SIGTERM, however long its grace period";
    }
    EXPECT_EQ(usual["startupProbe"]["periodSeconds"], 5);
    EXPECT_EQ(usual["startupProbe"]["failureThreshold"], 12) << "60 s";
    EXPECT_EQ(usual["livenessProbe"]["periodSeconds"], 10);
    EXPECT_EQ(usual["livenessProbe"]["failureThreshold"], 3) << "30 s";
    const Json& readiness = usual["readinessProbe"];
    EXPECT_EQ(readiness["httpGet"]["path"],
              absl::StrCat("/readyz?period=", readiness["periodSeconds"].get<int>()));
    EXPECT_GT(readiness["timeoutSeconds"], PageServer::kReadyWaitSeconds)
        << "the process may answer that late";
    const Json patient = Container(
        MakePod(Job({{"timeouts", {{"heartbeatTimeoutSeconds", 12.5}, {"startSeconds", 301}}}}),
                kDefaults, replica));
    EXPECT_EQ(patient["startupProbe"]["failureThreshold"], 61);
    EXPECT_EQ(patient["livenessProbe"]["periodSeconds"], 25);
  }
  EXPECT_FALSE(Container(MakePod(Job({{"worker", {{"command", {"python3"}}}}}), kDefaults, kWorker))
                   .contains("livenessProbe"));
}

TEST(ObjectsTest, AShardHasTheGracePeriodOfACoordinator) {
  const ObservedJob job = Job({{"timeouts", {{"suspendCheckpointSeconds", 100}}}});
  for (const policy::Replica& replica : {kCoordinator, kShard}) {
    EXPECT_EQ(MakePod(job, kDefaults, replica)["spec"]["terminationGracePeriodSeconds"], 110);
  }
  EXPECT_THAT(Arguments(MakePod(job, kDefaults, kShard)), Contains("--grace=105"));
}

TEST(ObjectsTest, ThePodsHashDependsOnlyOnItsSpec) {
  const std::string hash = TemplateHash(MakePod(Job(), kDefaults, kWorker));
  EXPECT_EQ(hash, TemplateHash(MakePod(Job({{"worker", {{"replicas", 9}}}}), kDefaults, kWorker)));
  EXPECT_NE(hash, TemplateHash(MakePod(Job({{"image", "other"}}), kDefaults, kWorker)));
}

TEST(ObjectsTest, OwnedObjectsAreDeterministic) {
  const auto first = MakeObjects(Job(), 2, kMode);
  const auto again = MakeObjects(Job(), 2, kMode);
  ASSERT_EQ(first.size(), 4u);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].object, again[i].object);
    EXPECT_EQ(kube::ControllerUidOf(first[i].object), "u-1");
  }
  EXPECT_EQ(MakeObjects(Job({{"networkPolicy", "Disabled"}}), 2, kMode).size(), 3u);
  const Json budget = MakeDisruptionBudget(Job(), 2).object;
  EXPECT_EQ(budget, MakeDisruptionBudget(Job(), 2).object);
  EXPECT_EQ(kube::ControllerUidOf(budget), "u-1");
}

TEST(ObjectsTest, TheCoordinatorReadsTheSizesAndTheModeOfItsActivation) {
  const ObservedJob job = Job(
      {{"parameterServer", {{"replicas", 3}}},
       {"training", {{"mode", "BoundedStaleness"}, {"boundedStaleness", {{"maxStaleness", 4}}}}}});
  const auto job_file = [&](const UpdateMode& mode) {
    const Json map = MakeObjects(job, 2, mode)[2].object;
    return Json::parse(map["data"]["job.json"].get<std::string>())["spec"];
  };
  EXPECT_EQ(job_file(kMode)["parameterServer"]["replicas"], 2);
  EXPECT_EQ(job_file(kMode)["training"]["mode"], "Synchronous");
  EXPECT_FALSE(job_file(kMode)["training"].contains("boundedStaleness"));
  const Json bounded = job_file(ModeOf(job.job.spec.training()))["training"];
  EXPECT_EQ(bounded["mode"], "BoundedStaleness");
  EXPECT_EQ(bounded["boundedStaleness"]["maxStaleness"], 4);
}

TEST(ObjectsTest, ADrainEvictsOneServerAtATimeAndAnyWorker) {
  const Json budget = MakeDisruptionBudget(Job(), 2).object["spec"];
  EXPECT_EQ(budget["minAvailable"], 2) << "of three: two shards and the coordinator";
  EXPECT_EQ(budget["unhealthyPodEvictionPolicy"], "AlwaysAllow");
  EXPECT_EQ(
      budget["selector"]["matchExpressions"],
      Json::array(
          {{{"key", "sluice.dev/role"}, {"operator", "In"}, {"values", {"coordinator", "ps"}}}}));
}

TEST(ObjectsTest, OnlyMetricsAreOpenToAllClients) {
  const Json rules = MakeObjects(Job(), 2, kMode)[3].object["spec"]["ingress"];
  ASSERT_EQ(rules.size(), 3u);
  for (const Json& rule : rules) {
    const bool any_client = !rule.contains("from") || rule["from"].empty();
    EXPECT_EQ(any_client, rule.contains("ports") && rule["ports"][0]["port"] == 9090)
        << rule.dump();
  }
  EXPECT_EQ(
      rules[0]["from"],
      Json::array({{{"podSelector", {{"matchLabels", {{"sluice.dev/training-job", "a"}}}}}}}));
}

TEST(ObjectsTest, WorkersCannotWriteToTheData) {
  const Json container = Container(MakePod(Job(), kDefaults, kWorker));
  int found = 0;
  for (const Json& mount : container["volumeMounts"]) {
    if (mount["name"] != "sluice-data") continue;
    EXPECT_EQ(mount.value("readOnly", false), true);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(ObjectsTest, NoServicesOfTwoJobsHaveTheSameName) {
  EXPECT_EQ(HeadlessServiceName("mnist"), "mnist");
  EXPECT_EQ(CoordinatorAddress({"ns", "mnist"}), "mnist-coordinator.ns.svc:29500");
  EXPECT_EQ(HeadlessServiceName("3d"), "ps--3d");
  EXPECT_EQ(CoordinatorAddress({"ns", "3d"}), "coordinator--3d.ns.svc:29500");

  std::set<std::string> jobs;
  for (const std::string& base :
       {std::string("7b"), std::string("a"), std::string(50, '8'), std::string(50, 'z')}) {
    for (const char* prefix : {"", "j", "ps--", "coordinator--", "coordinator-", "ps-"}) {
      for (const char* suffix : {"", "-coordinator", "-coordinator-coordinator", "-ps"}) {
        std::string job = absl::StrCat(prefix, base, suffix);
        if (job.size() <= 50) jobs.insert(std::move(job));
      }
    }
  }
  std::map<std::string, std::string> owners;
  for (const std::string& job : jobs) {
    for (const std::string& name : {HeadlessServiceName(job), CoordinatorServiceName(job)}) {
      EXPECT_LE(name.size(), 63u) << name;
      EXPECT_TRUE(absl::ascii_islower(name[0])) << name;
      const auto [owner, is_new] = owners.emplace(name, job);
      EXPECT_TRUE(is_new) << name << " is a Service of " << owner->second << " and of " << job;
    }
  }
  EXPECT_GT(owners.size(), 60u);
}

TEST(ObjectsTest, WorkersThatBecomeReadyChangeNoService) {
  const Json worker = MakePod(Job(), kDefaults, kWorker)["metadata"]["labels"];
  const Json shard = MakePod(Job(), kDefaults, kShard)["metadata"]["labels"];
  int services = 0;
  int of_shards = 0;
  for (const OwnedObject& owned : MakeObjects(Job(), 1, {})) {
    if (owned.type != &Services()) continue;
    ++services;
    const Json& selector = owned.object["spec"]["selector"];
    EXPECT_FALSE(Covers(worker, selector)) << selector;
    if (Covers(shard, selector)) ++of_shards;
  }
  EXPECT_EQ(services, 2);
  EXPECT_EQ(of_shards, 1);
}

TEST(ObjectsTest, FieldsThatTheServerFillsInAreNotADifference) {
  const Json wanted = {{"a", 1}, {"list", Json::array({{{"x", 1}}})}, {"none", Json::object()}};
  EXPECT_TRUE(Covers({{"a", 1}, {"b", 2}, {"list", Json::array({{{"x", 1}, {"y", 2}}})}}, wanted));
  EXPECT_FALSE(Covers({{"a", 2}, {"list", Json::array({{{"x", 1}}})}}, wanted));
  EXPECT_FALSE(Covers({{"a", 1}, {"list", Json::array()}}, wanted));
  EXPECT_FALSE(Covers(Json(), wanted));
}

}  // namespace
}  // namespace sluice::reconciler
