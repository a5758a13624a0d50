// How the operator treats foreign objects, and edits of its own objects.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "operator/testing/operator_fixture.h"

namespace sluice {
namespace {

using kube::GetString;
using kube::Json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

kube::HttpClient::Options AdminOptions() {
  kube::HttpClient::Options options;
  options.sleep = [](absl::Duration) {};
  return options;
}

kube::FakeApiServer::Fault Answer(int code, const std::string& reason, const std::string& message) {
  kube::FakeApiServer::Fault fault;
  fault.response.code = code;
  fault.response.body =
      Json({{"kind", "Status"}, {"code", code}, {"reason", reason}, {"message", message}}).dump();
  return fault;
}

class OperatorObjectsTest : public OperatorFixture {
 protected:
  Json Get(const kube::ResourceType& type, const std::string& name) {
    return admin_.Get(type, {"ns", name}, kube::Subresource::kNone).value_or(Json());
  }
  void Merge(const kube::ResourceType& type, const std::string& name, const Json& patch) {
    ASSERT_TRUE(admin_.Patch(type, {"ns", name}, kube::PatchKind::kMerge, patch, {}).ok());
  }
  void Delete(const kube::ResourceType& type, const std::string& name) {
    ASSERT_TRUE(admin_.Delete(type, {"ns", name}, {}).ok());
  }
  std::string Message(const std::string& type) { return cluster_.ConditionMessage("a", type); }

  kube::HttpClient admin_{&cluster_.server, AdminOptions()};
};

// ---- foreign objects

struct Name {
  std::string test;
  const kube::ResourceType* type;
  std::string name;
  Json body;
  friend void PrintTo(const Name& name, std::ostream* to) { *to << name.test; }
};

class TakenNameTest : public OperatorObjectsTest, public ::testing::WithParamInterface<Name> {
 protected:
  // A foreign object from before the job.
  Json MakeTheirs() {
    Json theirs = GetParam().body;
    theirs["metadata"] = {{"name", GetParam().name},
                          {"labels", {{"app.kubernetes.io/managed-by", "Helm"}}},
                          {"annotations", {{"meta.helm.sh/release-name", "web"}}}};
    cluster_.frozen = [](const std::string& pod) { return pod == GetParam().name; };
    return admin_.Create(*GetParam().type, "ns", theirs, {}).value();
  }
  Json Found() { return Get(*GetParam().type, GetParam().name); }
};

TEST_P(TakenNameTest, KeepsTheForeignObjectReportsItAndContinuesWhenTheNameIsFree) {
  const Json theirs = MakeTheirs();
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Minutes(1));
  EXPECT_EQ(Found(), theirs);
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/NameTaken");
  EXPECT_THAT(
      Message("Degraded"),
      HasSubstr(absl::StrCat("the ", GetParam().type->kind, " ns/", GetParam().name,
                             " already exists and is managed by Helm, release web; it is left "
                             "as it is: delete it, or give the job another name")));
  EXPECT_THAT(cluster_.EventReasons(), Contains("NameTaken"));
  Delete(*GetParam().type, GetParam().name);
  cluster_.frozen = nullptr;
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(31));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(kube::ControllerUidOf(Found()), kube::UidOf(cluster_.GetJob("a")));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

TEST_P(TakenNameTest, KeepsTheForeignObjectAfterTheJobIsDeleted) {
  const Json theirs = MakeTheirs();
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  Delete(reconciler::TrainingJobs(), "a");
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Minutes(11));
  EXPECT_EQ(Found(), theirs);
}

TEST_P(TakenNameTest, KeepsAForeignObjectWithTheJobsLabel) {
  MakeTheirs();
  Merge(*GetParam().type, GetParam().name,
        {{"metadata", {{"labels", {{reconciler::kJobLabel, "a"}}}}}});
  const Json theirs = Found();
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(Found(), theirs);
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/NameTaken");
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, TakenNameTest,
    ::testing::Values(
        Name{"ConfigMap", &reconciler::ConfigMaps(), "a", {{"data", {{"job.json", "theirs"}}}}},
        Name{"Service",
             &reconciler::Services(),
             "a",
             {{"spec", {{"clusterIP", "10.96.0.9"}, {"selector", {{"app", "web"}}}}}}},
        Name{"CoordinatorsService",
             &reconciler::Services(),
             "a-coordinator",
             {{"spec", {{"selector", {{"app", "web"}}}}}}},
        Name{"DisruptionBudget",
             &reconciler::DisruptionBudgets(),
             "a",
             {{"spec", {{"maxUnavailable", 1}}}}},
        Name{"NetworkPolicy",
             &reconciler::NetworkPolicies(),
             "a",
             {{"spec", {{"podSelector", {{"matchLabels", {{"app", "web"}}}}}}}}},
        Name{"Secret", &reconciler::Secrets(), "a-tls-ps", {{"data", {{"password", "eA=="}}}}},
        Name{"Pod", &reconciler::Pods(), "a-ps-0", {{"spec", {{"nodeName", "n"}}}}}),
    [](const auto& info) { return info.param.test; });

// ---- own objects

struct Own {
  const kube::ResourceType* type;
  const char* name;
  Json edit;
};

std::vector<Own> EditsOfAllKinds() {
  return {{&reconciler::ConfigMaps(), "a", {{"data", {{"job.json", "{}"}}}}},
          {&reconciler::Services(), "a", {{"spec", {{"clusterIP", "10.96.0.9"}}}}},
          {&reconciler::Services(),
           "a-coordinator",
           {{"spec", {{"selector", {{reconciler::kRoleLabel, "worker"}}}}}}},
          {&reconciler::DisruptionBudgets(), "a", {{"spec", {{"minAvailable", 0}}}}},
          {&reconciler::NetworkPolicies(), "a", {{"spec", {{"ingress", nullptr}}}}}};
}

TEST_F(OperatorObjectsTest, EachRepairHasAPrecondition) {
  Train();
  int repairs = 0;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    if (request.method == "PATCH") {
      const Json body = Json::parse(request.body);
      for (const Own& own : EditsOfAllKinds()) {
        if (kube::KeyOf(body).name != own.name || body["kind"] != own.type->kind) continue;
        const Json live = Get(*own.type, own.name);
        EXPECT_EQ(kube::UidOf(body), kube::UidOf(live));
        EXPECT_EQ(kube::ResourceVersionOf(body), kube::ResourceVersionOf(live));
        ++repairs;
      }
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  std::vector<Json> before;
  for (const Own& own : EditsOfAllKinds()) {
    before.push_back(Get(*own.type, own.name));
    Merge(*own.type, own.name, own.edit);
  }
  cluster_.ForgetWrites();
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(repairs, 5);
  EXPECT_EQ(cluster_.Writes().size(), 5u);
  for (size_t i = 0; i < before.size(); ++i) {
    const Own own = EditsOfAllKinds()[i];
    Json after = Get(*own.type, own.name);
    for (const char* field : {"resourceVersion", "generation"}) {
      after["metadata"][field] = before[i]["metadata"][field];
    }
    EXPECT_EQ(kube::UidOf(after), kube::UidOf(before[i]));
    if (own.edit.contains("data")) {
      EXPECT_EQ(after["data"], before[i]["data"]);
    } else {
      for (const auto& [field, value] : before[i]["spec"].items()) {
        EXPECT_TRUE(after["spec"][field].is_object() || after["spec"][field] == value)
            << own.type->kind << " " << field;
      }
    }
  }
}

TEST_F(OperatorObjectsTest, RemovesAPortThatAnotherClientAddedOnce) {
  Train();
  Json ports = Get(reconciler::Services(), "a")["spec"]["ports"];
  const Json before = ports;
  ports.push_back({{"name", "x"}, {"port", 8080}});
  Merge(reconciler::Services(), "a", {{"spec", {{"ports", ports}}}});
  cluster_.ForgetWrites();
  for (int i = 0; i < 12; ++i) cluster_.Pass(absl::Seconds(10));
  EXPECT_EQ(Get(reconciler::Services(), "a")["spec"]["ports"], before);
  EXPECT_EQ(cluster_.Writes().size(), 1u);
}

// Simulates a mutating webhook, or another operator that disagrees.
TEST_F(OperatorObjectsTest, WritesAnObjectThatIsChangedBackLessAndLessOften) {
  Train();
  cluster_.ForgetWrites();
  for (int i = 0; i < 6 * 60; ++i) {
    Merge(reconciler::Services(), "a", {{"spec", {{"clusterIP", "10.96.0.9"}}}});
    cluster_.Pass(absl::Seconds(10));
  }
  EXPECT_GE(cluster_.Writes().size(), 5u);
  EXPECT_LE(cluster_.Writes().size(), 12u) << "in an hour";
}

TEST_F(OperatorObjectsTest, ReplacesADeadWorkerEvenIfAnAccessoryIsRefused) {
  Train();
  cluster_.on_write = [](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (!absl::StrContains(request.target, "/networkpolicies")) return fault;
    fault = Answer(403, "Forbidden", "denied");
    return fault;
  };
  Delete(reconciler::NetworkPolicies(), "a");
  const std::string before = cluster_.UidOf("a-worker-0");
  cluster_.EndPod("a-worker-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(30));
  EXPECT_NE(cluster_.UidOf("a-worker-0"), before);
  EXPECT_NE(cluster_.Condition("a", "Degraded"), "False/NotDegraded")
      << "and the refusal is reported";
}

TEST_F(OperatorObjectsTest, RestoresALostLabel) {
  Train();
  for (const Own& own : EditsOfAllKinds()) {
    const Json before = Get(*own.type, own.name);
    Merge(*own.type, own.name, {{"metadata", {{"labels", {{reconciler::kJobLabel, nullptr}}}}}});
    cluster_.Pass(absl::Minutes(2));
    EXPECT_EQ(Get(*own.type, own.name)["metadata"]["labels"], before["metadata"]["labels"]);
    EXPECT_EQ(kube::UidOf(Get(*own.type, own.name)), kube::UidOf(before));
  }
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

TEST_F(OperatorObjectsTest, AFormerLeaderThatFrozeBeforeARepairWritesNothing) {
  Train();
  Merge(reconciler::ConfigMaps(), "a", {{"data", {{"job.json", "{}"}}}});
  const std::unique_ptr<Operator> frozen = cluster_.Another();
  frozen->SyncOnce();  // it sees the edit, and freezes
  ASSERT_TRUE(cluster_.Settle());
  const Json repaired = Get(reconciler::ConfigMaps(), "a");
  ASSERT_NE(GetString(repaired, {"data", "job.json"}), "{}");
  cluster_.ForgetWrites();
  frozen->Enqueue({"ns", "a"});
  for (int i = 0; i < 3; ++i) frozen->ReconcileOne();
  EXPECT_THAT(cluster_.Writes(), Contains(HasSubstr("/configmaps/a"))) << "it tries";
  EXPECT_EQ(Get(reconciler::ConfigMaps(), "a"), repaired);
}

TEST_F(OperatorObjectsTest, ALateRepairDoesNotOverwriteAnObjectThatAnotherClientCreatedAgain) {
  Train();
  Merge(reconciler::ConfigMaps(), "a", {{"data", {{"job.json", "{}"}}}});
  const std::unique_ptr<Operator> frozen = cluster_.Another();
  frozen->SyncOnce();
  Delete(reconciler::TrainingJobs(), "a");
  ASSERT_TRUE(cluster_.Settle());
  ASSERT_TRUE(Get(reconciler::ConfigMaps(), "a").is_null());
  ASSERT_TRUE(
      admin_.Create(reconciler::ConfigMaps(), "ns", {{"metadata", {{"name", "a"}}}}, {}).ok());
  const Json theirs = Get(reconciler::ConfigMaps(), "a");
  frozen->Enqueue({"ns", "a"});
  for (int i = 0; i < 3; ++i) frozen->ReconcileOne();
  EXPECT_EQ(Get(reconciler::ConfigMaps(), "a"), theirs);
}

// ---- namespaces

TEST(OperatorNamespacesTest, ARefusedNamespaceDoesNotStopTheOthers) {
  FakeCluster cluster;
  cluster.namespaces = {"ns", "gone"};
  cluster.server.SetFaultInjector([](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (!absl::StrContains(request.target, "/namespaces/gone/")) return fault;
    fault = Answer(403, "Forbidden", "no");
    return fault;
  });
  cluster.Restart();
  cluster.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster.Settle());
  EXPECT_TRUE(cluster.HasSynced());
  EXPECT_THAT(cluster.RefusedNamespaces(), ElementsAre("gone"));
  EXPECT_EQ(cluster.PodNames().size(), 4u);
  cluster.server.SetFaultInjector(nullptr);
  cluster.Pass(absl::Minutes(1));
  EXPECT_THAT(cluster.RefusedNamespaces(), IsEmpty());
}

// Without its pods, a suspending job looks like one whose coordinator is gone.
TEST(OperatorNamespacesTest, IgnoresJobsWhosePodsAreNotListedYet) {
  FakeCluster cluster;
  cluster.namespaces = {"ns"};
  cluster.Restart();
  ASSERT_TRUE(cluster.Train("a"));
  cluster.server.SetFaultInjector([](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (request.method != "GET" || !absl::StrContains(request.target, "/pods?")) return fault;
    fault = Answer(403, "Forbidden", "no");
    return fault;
  });
  cluster.PatchJob("a", {{"spec", {{"suspend", true}}}});
  cluster.Restart();
  cluster.ForgetWrites();
  cluster.kubelets = false;
  ASSERT_TRUE(cluster.Settle());
  EXPECT_TRUE(cluster.HasSynced());
  EXPECT_THAT(cluster.Writes(), IsEmpty());
}

// ---- a server that fails

struct Failure {
  std::string test;
  int code;
  std::string message;
  std::string reason;
  friend void PrintTo(const Failure& failure, std::ostream* to) { *to << failure.test; }
};

class LastingFailureTest : public OperatorObjectsTest,
                           public ::testing::WithParamInterface<Failure> {
 protected:
  void FailPods() {
    cluster_.on_write = [this](const kube::HttpRequest& request) {
      std::optional<kube::FakeApiServer::Fault> fault;
      if (fails_ && request.method == "POST" && absl::StrContains(request.target, "/pods")) {
        fault = Answer(GetParam().code, "", GetParam().message);
      }
      return fault;
    };
  }
  bool fails_ = true;
};

TEST_P(LastingFailureTest, IsReportedWhileItLasts) {
  FailPods();
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded") << "it may pass";
  for (int i = 0; i < 6; ++i) cluster_.Pass(absl::Seconds(10));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), absl::StrCat("True/", GetParam().reason));
  EXPECT_THAT(Message("Degraded"), HasSubstr(GetParam().message));
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre(GetParam().reason));
  fails_ = false;
  cluster_.Pass(absl::Seconds(31));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

TEST_P(LastingFailureTest, IsNotReportedIfItIsShort) {
  FailPods();
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(5));
  fails_ = false;
  cluster_.Pass(absl::Seconds(31));
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_THAT(cluster_.EventReasons(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Causes, LastingFailureTest,
    ::testing::Values(
        Failure{"DeadWebhook", 500,
                "Internal error occurred: failed calling webhook \"gate.example.com\": connection "
                "refused",
                "WebhookUnavailable"},
        Failure{"Unauthorized", 401, "Unauthorized", "APIServerUnavailable"},
        Failure{"NotFound", 404, "the server could not find the requested resource",
                "APIServerUnavailable"},
        Failure{"TooManyRequests", 429, "too many requests", "APIServerUnavailable"}),
    [](const auto& info) { return info.param.test; });

TEST_F(OperatorObjectsTest, AShortServerFailureHidesNoOtherProblem) {
  int code = 403;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (code != 0 && request.method == "POST" && absl::StrContains(request.target, "/pods")) {
      fault = Answer(code, "", "pods \"a-ps-0\" is forbidden: exceeded quota: q");
      if (code != 403) fault = Answer(code, "", "etcdserver: request timed out");
    }
    return fault;
  };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(31));
  ASSERT_EQ(cluster_.Condition("a", "Degraded"), "True/QuotaExceeded");
  code = 500;
  cluster_.Pass(absl::Seconds(31));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/QuotaExceeded");
  code = 0;
  cluster_.Pass(absl::Seconds(31));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

TEST_F(OperatorObjectsTest, AlternatingRefusalsHaveABackoff) {
  int tries = 0;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (request.method != "POST" || !absl::StrContains(request.target, "/pods")) return fault;
    fault = ++tries % 2 == 0 ? Answer(403, "", "exceeded quota: q")
                             : Answer(422, "Invalid", "Pod \"a-ps-0\" is invalid: spec");
    return fault;
  };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(11));
  cluster_.ForgetWrites();
  for (int i = 0; i < 60; ++i) cluster_.Pass(absl::Seconds(1));
  EXPECT_LE(cluster_.Writes().size(), 100u) << "in a minute";
  EXPECT_THAT(cluster_.Condition("a", "Degraded"), HasSubstr("True/"));
}

TEST_F(OperatorObjectsTest, ReportsAPodWithoutLabelsAndAdoptsItWhenTheyAreRestored) {
  Train();
  const std::string uid = cluster_.UidOf("a-worker-0");
  Merge(reconciler::Pods(), "a-worker-0",
        {{"metadata", {{"labels", {{reconciler::kJobLabel, nullptr}}}}}});
  cluster_.Pass(absl::Seconds(30));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/NameTaken");
  EXPECT_THAT(Message("Degraded"),
              HasSubstr("labels are missing or changed (sluice.dev/training-job"));
  cluster_.ForgetWrites();
  for (int i = 0; i < 10; ++i) cluster_.Pass(absl::Seconds(30));
  for (const std::string& write : cluster_.Writes()) {
    EXPECT_THAT(write, HasSubstr("POST")) << "the status rests";
  }
  EXPECT_LE(cluster_.Writes().size(), 11u);
  Merge(reconciler::Pods(), "a-worker-0",
        {{"metadata", {{"labels", {{reconciler::kJobLabel, "a"}}}}}});
  cluster_.Pass(absl::Seconds(30));
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  EXPECT_EQ(cluster_.UidOf("a-worker-0"), uid);
}

TEST_F(OperatorObjectsTest, ReportsARefusedTemplateUntilItIsCorrected) {
  cluster_.on_write = [](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (request.method == "POST" && absl::StrContains(request.target, "/pods") &&
        absl::StrContains(request.body, "wrong:1")) {
      fault = Answer(422, "Invalid", "Pod \"a-ps-0\" is invalid: spec.containers[0].image");
    }
    return fault;
  };
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"image", "wrong:1"}}}}));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/InvalidTemplate");
  EXPECT_THAT(Message("Degraded"), HasSubstr("spec.containers[0].image"));
  EXPECT_THAT(cluster_.EventReasons(), ElementsAre("InvalidTemplate"));
  cluster_.PatchJob("a", {{"spec", {{"image", "right:1"}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(cluster_.PodNames().size(), 4u);
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
}

}  // namespace
}  // namespace sluice
