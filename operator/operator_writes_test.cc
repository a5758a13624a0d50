// Which requests the operator makes, and how often.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "operator/testing/operator_fixture.h"
#include "services/manifest/field_table.h"

namespace sluice {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Progress = v1::JobProgress;

using OperatorWritesTest = OperatorFixture;

TEST_F(OperatorWritesTest, WritesNothingWhenNothingChanges) {
  Train();
  cluster_.Pass(absl::Minutes(1));
  cluster_.ForgetWrites();
  for (int i = 0; i < 10; ++i) cluster_.Pass(absl::Minutes(11));
  EXPECT_THAT(cluster_.Writes(), IsEmpty());
  cluster_.Restart();
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.Writes(), IsEmpty()) << "a new operator finds nothing to change";
}

TEST_F(OperatorWritesTest, WritesProgressEveryFifteenSeconds) {
  Train();
  cluster_.ForgetWrites();
  for (int i = 1; i <= 60; ++i) {
    cluster_.Say("a", Progress::TRAINING, 10 + i);
    cluster_.MergeStatus("a-ps-0",
                         {{"message", absl::StrCat(i)}});  // each change causes a reconciliation
    cluster_.Pass(absl::Seconds(1));
  }
  EXPECT_LE(cluster_.Writes().size(), 4u);
  EXPECT_GE(cluster_.Writes().size(), 3u);
  EXPECT_GE(GetInt(cluster_.Status("a"), {"training", "step"}), 55);
}

TEST_F(OperatorWritesTest, DeletesANetworkPolicyThatIsNoLongerWanted) {
  Train();
  const kube::ResourceType policies{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy",
                                    true};
  const auto there = [&] {
    return Admin().Get(policies, {"ns", "a"}, kube::Subresource::kNone).ok();
  };
  ASSERT_TRUE(there());
  cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Disabled"}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE(there());
  cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Enabled"}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(there());
}

TEST_F(OperatorWritesTest, KeepsAForeignNetworkPolicy) {
  const kube::ResourceType policies{"networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy",
                                    true};
  ASSERT_TRUE(Admin()
                  .Create(policies, "ns", {{"metadata", {{"name", "a"}, {"namespace", "ns"}}}}, {})
                  .ok());
  Train({{"spec", {{"networkPolicy", "Disabled"}}}});
  EXPECT_TRUE(Admin().Get(policies, {"ns", "a"}, kube::Subresource::kNone).ok());
  EXPECT_EQ(cluster_.Condition("a", "Running"), "True/Training");
}

TEST_F(OperatorWritesTest, CombinesStatusWritesWhilePodsBecomeReady) {
  std::set<std::string> ready;
  cluster_.frozen = [&](const std::string& pod) { return ready.count(pod) == 0; };
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"worker", {{"replicas", 20}}}}}}));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.ForgetWrites();
  for (const std::string& pod : cluster_.PodNames()) {
    ready.insert(pod);
    cluster_.Pass(absl::Milliseconds(50));
  }
  EXPECT_LE(cluster_.Writes().size(), 6u);
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}), 20);
}

TEST_F(OperatorWritesTest, WritesTheStatusOfALongStartLessAndLessOften) {
  std::set<std::string> ready;
  cluster_.frozen = [&](const std::string& pod) { return ready.count(pod) == 0; };
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"worker", {{"replicas", 120}}}}}}));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.ForgetWrites();
  size_t half = 0;
  for (const std::string& pod : cluster_.PodNames()) {
    ready.insert(pod);
    cluster_.Pass(absl::Seconds(3));
    if (ready.size() == 60) half = cluster_.Writes().size();
  }
  // After 5, 10, 20, … seconds at first, then every minute.
  EXPECT_LE(half, 8u);
  EXPECT_GE(half, 5u);
  EXPECT_LE(cluster_.Writes().size(), half + 4);
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}), 120) << "at once";
}

TEST_F(OperatorWritesTest, EachDeletionOfAPodNamesItsUid) {
  int deletions = 0;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    if (request.method == "DELETE") {
      const std::string name = request.target.substr(request.target.rfind('/') + 1);
      const Json body = Json::parse(request.body, nullptr, /*allow_exceptions=*/false);
      EXPECT_EQ(GetString(body, {"preconditions", "uid"}),
                cluster_.UidOf(name.substr(0, name.find('?'))));
      ++deletions;
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  Train();
  cluster_.EndPod("a-worker-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 1}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_GE(deletions, 2);
}

TEST_F(OperatorWritesTest, RestoresDeletedAndEditedObjects) {
  Train();
  kube::HttpClient admin = Admin();
  const kube::ResourceType services{"", "v1", "services", "Service", true};
  const kube::ResourceType maps{"", "v1", "configmaps", "ConfigMap", true};
  ASSERT_TRUE(admin.Delete(services, {"ns", "a-coordinator"}, {}).ok());
  ASSERT_TRUE(
      admin.Patch(maps, {"ns", "a"}, kube::PatchKind::kMerge, {{"data", {{"job.json", "{}"}}}}, {})
          .ok());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(admin.Get(services, {"ns", "a-coordinator"}, kube::Subresource::kNone).ok());
  const auto map = admin.Get(maps, {"ns", "a"}, kube::Subresource::kNone);
  EXPECT_THAT(map->dump(), HasSubstr("mnist-net"));
}

TEST_F(OperatorWritesTest, RecreatesObjectsDeletedBeforeTheyWereSeen) {
  kube::HttpClient admin = Admin();
  const kube::ResourceType services{"", "v1", "services", "Service", true};
  int made = 0;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    // Right after the last write of the first reconciliation.
    if (absl::StrContains(request.target, "/pods") && ++made == 4) {
      EXPECT_TRUE(admin.Delete(services, {"ns", "a"}, {}).ok());
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(11));
  EXPECT_TRUE(admin.Get(services, {"ns", "a"}, kube::Subresource::kNone).ok());
}

TEST_F(OperatorWritesTest, AFormerLeaderThatWakesUpChangesNothing) {
  Train();
  cluster_.clock.Advance(absl::Seconds(40));
  const std::unique_ptr<Operator> frozen = cluster_.Another();
  cluster_.EndPod("a-worker-1", 137);
  frozen->SyncOnce();  // it sees the death, and freezes
  ASSERT_TRUE(cluster_.Settle());
  const std::string replacement = cluster_.UidOf("a-worker-1");
  const int64_t version = cluster_.server.version();
  while (frozen->ReconcileOne()) {
  }
  EXPECT_EQ(cluster_.server.version(), version) << "its status is refused, and it goes no further";
  EXPECT_EQ(cluster_.UidOf("a-worker-1"), replacement);
  EXPECT_EQ(Restarts("total"), 1);
}

std::set<std::string> VerbsOfTheList() {
  std::set<std::string> verbs;
  for (const YAML::Node& rule : YAML::LoadFile("operator/rbac.yaml")["jobs"]) {
    for (const YAML::Node& resource : rule["resources"]) {
      for (const YAML::Node& verb : rule["verbs"]) {
        verbs.insert(absl::StrCat(resource.as<std::string>(), " ", verb.as<std::string>()));
      }
    }
  }
  return verbs;
}

TEST_F(OperatorWritesTest, TheRbacRulesMatchTheRequests) {
  std::set<std::string> lost;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    // A creation whose answer is lost is looked up.
    if (request.method == "POST" && lost.insert(request.target).second) {
      fault.emplace();
      fault->after_effect = true;
      fault->status = absl::UnavailableError("cut");
    }
    return fault;
  };
  Train({{"spec", {{"ttlSecondsAfterFinished", 10}}}});
  for (const kube::ResourceType* type :
       {&reconciler::Services(), &reconciler::ConfigMaps(), &reconciler::DisruptionBudgets(),
        &reconciler::NetworkPolicies()}) {  // edits are reverted
    const Json edit = {{"metadata", {{"labels", {{"app.kubernetes.io/instance", "x"}}}}}};
    ASSERT_TRUE(Admin().Patch(*type, {"ns", "a"}, kube::PatchKind::kMerge, edit, {}).ok());
  }
  cluster_.EndPod("a-worker-0", 137);
  ASSERT_TRUE(cluster_.Settle());
  for (int i = 0; i < 5; ++i) {  // an event that repeats is patched
    cluster_.DeletePod("a-worker-1");
    cluster_.Pass(absl::Seconds(30));
  }
  cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Disabled"}}}});
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Hours(24 * 25));  // certificates are renewed
  cluster_.Say("a", Progress::SUCCEEDED, 100);
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Minutes(1));
  std::set<std::string> listed = VerbsOfTheList();
  // The API server requires this one because of owner references that block deletion.
  EXPECT_EQ(listed.erase("trainingjobs/finalizers update"), 1u);
  // Needed for the first list on servers without streaming lists.
  for (const char* resource : {"trainingjobs", "pods", "services", "configmaps", "secrets",
                               "poddisruptionbudgets", "networkpolicies"}) {
    cluster_.verbs.insert(absl::StrCat(resource, " list"));
  }
  EXPECT_EQ(cluster_.verbs, listed);
}

// Every written field must be in the schema: API servers drop other fields.
void ExpectKnown(const api::SchemaNode& schema, const Json& value, const std::string& path) {
  if (value.is_array()) {
    ASSERT_NE(schema.item, nullptr) << path;
    for (const Json& item : value) ExpectKnown(*schema.item, item, path + "[]");
  }
  if (!value.is_object() || (schema.field != nullptr && schema.field->open)) return;
  for (auto it = value.begin(); it != value.end(); ++it) {
    const api::SchemaNode* child = schema.Child(it.key());
    if (child == nullptr) child = schema.item;
    ASSERT_NE(child, nullptr) << path << "." << it.key() << " is not in the schema";
    ExpectKnown(*child, it.value(), path + "." + it.key());
  }
}

TEST_F(OperatorWritesTest, EveryFieldOfTheStatusIsInTheSchema) {
  Train();
  cluster_.EndPod("a-worker-0", 137);
  cluster_.Say("a", Progress::TRAINING, 20, [](Progress* progress) {
    progress->mutable_last_evaluation()->set_loss(0.5);
    progress->set_has_loss(true);
    progress->set_loss(0.25);
    progress->set_restored(true);
    progress->mutable_checkpoint()->mutable_last()->set_step(5);
    progress->mutable_checkpoint()->set_directory("/x");
    progress->mutable_checkpoint()->set_bytes(1);
    progress->mutable_view()->mutable_id()->set_attempt(1);
  });
  cluster_.Pass(absl::Seconds(16));
  cluster_.Say("a", Progress::SUCCEEDED, 100);
  ASSERT_TRUE(cluster_.Settle());
  ExpectKnown(*api::StatusSchema().Child("status"), cluster_.Status("a"), "status");
}

}  // namespace
}  // namespace sluice
