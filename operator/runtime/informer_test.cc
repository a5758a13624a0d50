#include "operator/runtime/informer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"
#include "operator/kube/reflector.h"

namespace sluice::runtime {
namespace {

using kube::Json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class RecordingHandler : public InformerHandler {
 public:
  void OnAdd(const ObjectPtr& object) override { Note("+", *object); }
  void OnUpdate(const ObjectPtr& before, const ObjectPtr& after) override {
    Note(before == after ? "=" : "~", *after);
  }
  void OnDelete(const ObjectPtr& object) override { Note("-", *object); }
  std::vector<std::string> Drain() { return std::exchange(changes, {}); }
  std::vector<std::string> changes;

 private:
  void Note(const char* what, const Json& object) {
    changes.push_back(what + kube::KeyOf(object).name);
  }
};

class InformerTest : public ::testing::Test {
 protected:
  InformerTest() {
    kube::RegisterTestTypes(&server_);
    informer_.AddHandler(&handler_);
  }
  static kube::HttpClient::Options ClientOptions() {
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    return options;
  }
  static kube::Reflector::Options ReflectorOptions() {
    kube::Reflector::Options options;
    options.random = [] { return 0.0; };
    options.strip = StripManagedFields;
    return options;
  }
  static Informer::Options InformerOptions() {
    Informer::Options options;
    options.indexes["controller"] = IndexByController();
    options.indexes["app"] = [](const Json& object) -> std::vector<std::string> {
      return {kube::GetString(object, {"metadata", "labels", "app"})};
    };
    options.resync = absl::Minutes(10);
    return options;
  }
  void Create(const Json& object) {
    ASSERT_TRUE(client_.Create(kube::ConfigMaps(), "ns", object, {}).ok());
  }
  void Delete(const std::string& name) {
    ASSERT_TRUE(client_.Delete(kube::ConfigMaps(), {"ns", name}, {}).ok());
  }
  void Merge(const std::string& name, const Json& patch) {
    ASSERT_TRUE(
        client_.Patch(kube::ConfigMaps(), {"ns", name}, kube::PatchKind::kMerge, patch, {}).ok());
  }
  void Round() { reflector_.Round(&cancellation_).IgnoreError(); }

  FakeClock clock_{absl::FromUnixSeconds(1700000000)};
  kube::FakeApiServer server_{&clock_, {}};
  kube::HttpClient client_{&server_, ClientOptions()};
  RecordingHandler handler_;
  Informer informer_{InformerOptions()};
  kube::Reflector reflector_{&client_, kube::ConfigMaps(), ReflectorOptions(), &informer_};
  kube::Cancellation cancellation_;
};

TEST_F(InformerTest, NotifiesHandlersOfEveryChangeAfterUpdatingTheCache) {
  Create(kube::Named("a"));
  EXPECT_FALSE(informer_.HasSynced());
  Round();
  EXPECT_TRUE(informer_.HasSynced());
  EXPECT_THAT(handler_.Drain(), ElementsAre("+a"));
  Merge("a", {{"data", {{"x", "1"}}}});
  Create(kube::Named("b"));
  Delete("a");
  Round();
  EXPECT_THAT(handler_.Drain(), ElementsAre("~a", "+b", "-a"));
  EXPECT_EQ(informer_.Get({"ns", "a"}), nullptr);
  EXPECT_NE(informer_.Get({"ns", "b"}), nullptr);
  EXPECT_THAT(informer_.List("ns"), SizeIs(1));
  EXPECT_THAT(informer_.List("other"), IsEmpty());
}

TEST_F(InformerTest, ReportsChangesDuringAMissingWatchAfterwards) {
  for (const char* name : {"kept", "changed", "gone", "renewed"}) Create(kube::Named(name));
  Round();
  handler_.Drain();
  Merge("changed", {{"data", {{"x", "1"}}}});
  Delete("gone");
  Delete("renewed");
  Create(kube::Named("renewed"));
  Create(kube::Named("new"));
  server_.Compact();
  Round();
  Round();
  EXPECT_THAT(handler_.Drain(),
              ::testing::UnorderedElementsAre("~changed", "-gone", "-renewed", "+renewed", "+new"));
  EXPECT_EQ(informer_.size(), 4u);
}

TEST_F(InformerTest, IndexesFollowTheObjects) {
  Create(kube::Labelled("a", "app", "web"));
  Create(kube::Labelled("b", "app", "web"));
  Json owned = kube::Named("c");
  owned["metadata"]["ownerReferences"] = {
      {{"apiVersion", "v1"}, {"kind", "X"}, {"name", "x"}, {"uid", "u1"}, {"controller", true}}};
  Create(owned);
  Round();
  EXPECT_THAT(informer_.ByIndex("app", "web"), SizeIs(2));
  EXPECT_THAT(informer_.ByIndex("controller", "u1"), SizeIs(1));
  Merge("a", {{"metadata", {{"labels", {{"app", "db"}}}}}});
  Delete("b");
  Round();
  EXPECT_THAT(informer_.ByIndex("app", "web"), IsEmpty());
  EXPECT_THAT(informer_.ByIndex("app", "db"), SizeIs(1));
  EXPECT_THAT(informer_.ByIndex("none", "x"), IsEmpty());
}

TEST_F(InformerTest, StripsUnusedFields) {
  Json object = kube::Named("a");
  object["metadata"]["managedFields"] = {{{"manager", "x"}}};
  object["metadata"]["annotations"] = {{"kubectl.kubernetes.io/last-applied-configuration", "{}"},
                                       {"keep", "yes"}};
  Create(object);
  Round();
  const ObjectPtr cached = informer_.Get({"ns", "a"});
  EXPECT_EQ(kube::Find(*cached, {"metadata", "managedFields"}), nullptr);
  EXPECT_EQ((*cached)["metadata"]["annotations"], (Json{{"keep", "yes"}}));
}

TEST_F(InformerTest, AResyncReportsAllObjectsWhenItIsDue) {
  Create(kube::Named("a"));
  Create(kube::Named("b"));
  Round();
  handler_.Drain();
  informer_.MaybeResync(clock_.Now());
  clock_.Advance(absl::Minutes(9));
  informer_.MaybeResync(clock_.Now());
  EXPECT_THAT(handler_.Drain(), IsEmpty());
  clock_.Advance(absl::Minutes(1));
  informer_.MaybeResync(clock_.Now());
  informer_.MaybeResync(clock_.Now());
  EXPECT_THAT(handler_.Drain(), ElementsAre("=a", "=b"));
}

TEST_F(InformerTest, AListWithoutChangesNotifiesNoHandler) {
  Create(kube::Named("a"));
  Round();
  handler_.Drain();
  server_.Compact();
  Create(kube::Named("b"));
  server_.Compact();
  Round();
  Round();
  EXPECT_THAT(handler_.Drain(), ElementsAre("+b"));
}

}  // namespace
}  // namespace sluice::runtime
