#include "operator/kube/fake/fake_api_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operator/kube/api_error.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"

namespace sluice::kube {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class FakeApiServerTest : public ::testing::Test {
 protected:
  FakeApiServerTest() { RegisterTestTypes(&server_); }

  static HttpClient::Options Options() {
    HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    return options;
  }
  Json Get(const ResourceType& type, const std::string& name) {
    const auto object = client_.Get(type, {"ns", name}, Subresource::kNone);
    return object.ok() ? *object : Json();
  }
  Json Create(const ResourceType& type, const Json& object) {
    const auto created = client_.Create(type, "ns", object, {});
    EXPECT_TRUE(created.ok()) << created.status();
    return created.ok() ? *created : Json();
  }
  absl::StatusOr<Json> Apply(const std::string& name, Json body, const std::string& manager,
                             bool force) {
    WriteOptions options;
    options.field_manager = manager;
    options.force = force;
    return client_.Patch(Widgets(), {"ns", name}, PatchKind::kApply, body, options);
  }
  static Json Owned(const std::string& name, const Json& owner) {
    Json object = Named(name);
    object["metadata"]["ownerReferences"] = {{{"apiVersion", "example.com/v1"},
                                              {"kind", "Widget"},
                                              {"name", KeyOf(owner).name},
                                              {"uid", UidOf(owner)},
                                              {"controller", true},
                                              {"blockOwnerDeletion", true}}};
    return object;
  }

  FakeClock clock_{absl::FromUnixSeconds(1700000000)};
  FakeApiServer server_{&clock_, {}};
  HttpClient client_{&server_, Options()};
};

TEST_F(FakeApiServerTest, GenerationCountsOnlyChangesOfTheSpec) {
  Json widget = Named("a");
  widget["spec"]["replicas"] = 1;
  widget["status"]["phase"] = "ignored";
  widget = Create(Widgets(), widget);
  EXPECT_EQ(GetInt(widget, {"metadata", "generation"}), 1);
  EXPECT_EQ(Find(widget, {"status"}), nullptr);

  WriteOptions status;
  status.subresource = Subresource::kStatus;
  Json change = widget;
  change["status"]["phase"] = "Running";
  change["spec"]["replicas"] = 9;
  const auto with_status = client_.Update(Widgets(), {"ns", "a"}, change, status);
  ASSERT_TRUE(with_status.ok());
  EXPECT_EQ(GetInt(*with_status, {"metadata", "generation"}), 1);
  EXPECT_EQ(GetInt(*with_status, {"spec", "replicas"}), 1);
  EXPECT_EQ(GetString(*with_status, {"status", "phase"}), "Running");

  change = *with_status;
  change["spec"]["replicas"] = 2;
  change["status"]["phase"] = "Lost";
  const auto with_spec = client_.Update(Widgets(), {"ns", "a"}, change, {});
  ASSERT_TRUE(with_spec.ok());
  EXPECT_EQ(GetInt(*with_spec, {"metadata", "generation"}), 2);
  EXPECT_EQ(GetString(*with_spec, {"status", "phase"}), "Running");
}

TEST_F(FakeApiServerTest, AWriteWithoutChangeMakesNoVersion) {
  const Json widget = Create(Widgets(), Named("a"));
  const auto updated = client_.Update(Widgets(), {"ns", "a"}, widget, {});
  ASSERT_TRUE(updated.ok());
  EXPECT_EQ(ResourceVersionOf(*updated), ResourceVersionOf(widget));
  EXPECT_TRUE(Apply("b", {{"spec", {{"x", 1}}}}, "me", false).ok());
  const int64_t version = server_.version();
  EXPECT_TRUE(Apply("b", {{"spec", {{"x", 1}}}}, "me", false).ok());
  EXPECT_EQ(server_.version(), version);
}

TEST_F(FakeApiServerTest, AFinalizerKeepsADeletedObjectUntilItIsRemoved) {
  Json widget = Named("a");
  widget["metadata"]["finalizers"] = {"example.com/keep"};
  Create(Widgets(), widget);
  ASSERT_TRUE(client_.Delete(Widgets(), {"ns", "a"}, {}).ok());
  Json waiting = Get(Widgets(), "a");
  EXPECT_TRUE(IsBeingDeleted(waiting));
  waiting["metadata"]["finalizers"] = Json::array();
  ASSERT_TRUE(client_.Update(Widgets(), {"ns", "a"}, waiting, {}).ok());
  EXPECT_TRUE(Get(Widgets(), "a").is_null());
}

TEST_F(FakeApiServerTest, APodIsOnlyMarkedUntilItIsDeletedWithoutGrace) {
  Create(Pods(), Named("p"));
  ASSERT_TRUE(client_.Delete(Pods(), {"ns", "p"}, {}).ok());
  EXPECT_TRUE(IsBeingDeleted(Get(Pods(), "p")));
  EXPECT_EQ(GetInt(Get(Pods(), "p"), {"metadata", "deletionGracePeriodSeconds"}), 30);
  DeleteOptions now;
  now.grace_period_seconds = 0;
  ASSERT_TRUE(client_.Delete(Pods(), {"ns", "p"}, now).ok());
  EXPECT_TRUE(Get(Pods(), "p").is_null());
}

TEST_F(FakeApiServerTest, ADeletionWithAPreconditionKeepsAnotherObjectOfThatName) {
  const Json first = Create(Pods(), Named("p"));
  DeleteOptions options;
  options.grace_period_seconds = 0;
  options.uid = UidOf(first);
  ASSERT_TRUE(client_.Delete(Pods(), {"ns", "p"}, options).ok());
  Create(Pods(), Named("p"));
  EXPECT_TRUE(IsConflict(client_.Delete(Pods(), {"ns", "p"}, options).status()));
  EXPECT_FALSE(Get(Pods(), "p").is_null());
  options.uid.clear();
  options.resource_version = ResourceVersionOf(first);
  EXPECT_TRUE(IsConflict(client_.Delete(Pods(), {"ns", "p"}, options).status()));
}

TEST_F(FakeApiServerTest, CollectsObjectsWithoutOwners) {
  const Json owner = Create(Widgets(), Named("owner"));
  Create(ConfigMaps(), Owned("map", owner));
  Create(ConfigMaps(), Named("free"));
  EXPECT_EQ(server_.CollectGarbage(), 0);
  ASSERT_TRUE(client_.Delete(Widgets(), {"ns", "owner"}, {}).ok());
  EXPECT_EQ(server_.CollectGarbage(), 1);
  EXPECT_TRUE(Get(ConfigMaps(), "map").is_null());
  EXPECT_FALSE(Get(ConfigMaps(), "free").is_null());
}

TEST_F(FakeApiServerTest, AForegroundDeletionWaitsForItsDependents) {
  const Json owner = Create(Widgets(), Named("owner"));
  Create(Pods(), Owned("pod", owner));
  DeleteOptions options;
  options.propagation = Propagation::kForeground;
  ASSERT_TRUE(client_.Delete(Widgets(), {"ns", "owner"}, options).ok());
  server_.CollectGarbage();
  EXPECT_TRUE(IsBeingDeleted(Get(Pods(), "pod")));
  EXPECT_TRUE(IsBeingDeleted(Get(Widgets(), "owner")));
  DeleteOptions now;
  now.grace_period_seconds = 0;
  ASSERT_TRUE(client_.Delete(Pods(), {"ns", "pod"}, now).ok());
  server_.CollectGarbage();
  EXPECT_TRUE(Get(Widgets(), "owner").is_null());
}

TEST_F(FakeApiServerTest, AnOrphaningDeletionKeepsTheDependents) {
  const Json owner = Create(Widgets(), Named("owner"));
  Create(ConfigMaps(), Owned("map", owner));
  DeleteOptions options;
  options.propagation = Propagation::kOrphan;
  ASSERT_TRUE(client_.Delete(Widgets(), {"ns", "owner"}, options).ok());
  server_.CollectGarbage();
  EXPECT_THAT(Get(ConfigMaps(), "map")["metadata"]["ownerReferences"], IsEmpty());
}

TEST_F(FakeApiServerTest, ApplySetsFieldsAndRemovesThoseNoLongerApplied) {
  ASSERT_TRUE(Apply("a", {{"spec", {{"x", 1}, {"y", 2}}}}, "me", false).ok());
  ASSERT_TRUE(Apply("a", {{"spec", {{"z", 3}}}}, "other", false).ok());
  const auto applied = Apply("a", {{"spec", {{"x", 5}}}}, "me", false);
  ASSERT_TRUE(applied.ok());
  EXPECT_EQ((*applied)["spec"], (Json{{"x", 5}, {"z", 3}}));
}

TEST_F(FakeApiServerTest, ApplyRejectsAFieldOfAnotherManagerUnlessForced) {
  ASSERT_TRUE(Apply("a", {{"spec", {{"x", 1}}}}, "me", false).ok());
  EXPECT_TRUE(IsConflict(Apply("a", {{"spec", {{"x", 2}}}}, "other", false).status()));
  EXPECT_EQ(GetInt(Get(Widgets(), "a"), {"spec", "x"}), 1);
  ASSERT_TRUE(Apply("a", {{"spec", {{"x", 2}}}}, "other", true).ok());
  EXPECT_TRUE(IsConflict(Apply("a", {{"spec", {{"x", 1}}}}, "me", false).status()));
}

TEST_F(FakeApiServerTest, ApplyRecreatesADeletedObjectUnlessAUidIsGiven) {
  ASSERT_TRUE(Apply("a", {{"spec", {{"x", 1}}}}, "me", false).ok());
  const std::string uid = UidOf(Get(Widgets(), "a"));
  ASSERT_TRUE(client_.Delete(Widgets(), {"ns", "a"}, {}).ok());
  const Json with_uid = {{"metadata", {{"uid", uid}}}, {"spec", {{"x", 2}}}};
  EXPECT_TRUE(IsConflict(Apply("a", with_uid, "me", false).status()));
  EXPECT_TRUE(Get(Widgets(), "a").is_null());
  EXPECT_TRUE(Apply("a", {{"spec", {{"x", 2}}}}, "me", false).ok());
  EXPECT_NE(UidOf(Get(Widgets(), "a")), uid);
}

TEST_F(FakeApiServerTest, RejectsAJsonPatchThatDoesNotApply) {
  Create(Widgets(), Named("a"));
  const Json remove = {{{"op", "remove"}, {"path", "/spec/none"}}};
  EXPECT_TRUE(absl::IsInvalidArgument(
      client_.Patch(Widgets(), {"ns", "a"}, PatchKind::kJson, remove, {}).status()));
  const Json add = {{{"op", "add"}, {"path", "/spec"}, {"value", {{"x", 1}}}}};
  EXPECT_TRUE(client_.Patch(Widgets(), {"ns", "a"}, PatchKind::kJson, add, {}).ok());
  EXPECT_EQ(GetInt(Get(Widgets(), "a"), {"spec", "x"}), 1);
}

TEST_F(FakeApiServerTest, ScaleReadsAndWritesTheReplicas) {
  Json widget = Named("a");
  widget["spec"]["replicas"] = 2;
  Create(Widgets(), widget);
  auto scale = client_.Get(Widgets(), {"ns", "a"}, Subresource::kScale);
  ASSERT_TRUE(scale.ok());
  EXPECT_EQ(GetInt(*scale, {"spec", "replicas"}), 2);
  (*scale)["spec"]["replicas"] = 5;
  WriteOptions options;
  options.subresource = Subresource::kScale;
  ASSERT_TRUE(client_.Update(Widgets(), {"ns", "a"}, *scale, options).ok());
  EXPECT_EQ(GetInt(Get(Widgets(), "a"), {"spec", "replicas"}), 5);
  EXPECT_EQ(GetInt(Get(Widgets(), "a"), {"metadata", "generation"}), 2);
  EXPECT_TRUE(absl::IsNotFound(client_.Get(Pods(), {"ns", "a"}, Subresource::kScale).status()));
}

TEST_F(FakeApiServerTest, ADryRunStoresNothing) {
  WriteOptions dry;
  dry.dry_run = true;
  ASSERT_TRUE(client_.Create(Widgets(), "ns", Named("a"), dry).ok());
  EXPECT_TRUE(Get(Widgets(), "a").is_null());
}

TEST_F(FakeApiServerTest, GeneratedNamesDiffer) {
  const Json generated = {{"metadata", {{"generateName", "x-"}}}};
  EXPECT_NE(KeyOf(Create(ConfigMaps(), generated)).name,
            KeyOf(Create(ConfigMaps(), generated)).name);
}

TEST_F(FakeApiServerTest, RecordsWritesButNotReads) {
  Create(ConfigMaps(), Named("a"));
  Get(ConfigMaps(), "a");
  EXPECT_THAT(server_.Writes(), SizeIs(1));
  EXPECT_THAT(server_.Requests(), SizeIs(2));
}

}  // namespace
}  // namespace sluice::kube
