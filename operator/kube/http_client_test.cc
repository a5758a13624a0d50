#include "operator/kube/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/match.h"
#include "operator/kube/api_error.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/testing.h"

namespace sluice::kube {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class Gate : public WriteGate {
 public:
  absl::Status Check() override { return status; }
  absl::Status status;
};

class HttpClientTest : public ::testing::Test {
 protected:
  HttpClientTest() { RegisterTestTypes(&server_); }

  HttpClient::Options Options() {
    HttpClient::Options options;
    options.sleep = [this](absl::Duration delay) { slept_.push_back(delay); };
    options.write_gate = &gate_;
    return options;
  }

  // The next `times` calls with that method fail with this.
  void Fail(const std::string& method, int times, FakeApiServer::Fault fault) {
    auto left = std::make_shared<int>(times);
    server_.SetFaultInjector(
        [=](const HttpRequest& request) -> std::optional<FakeApiServer::Fault> {
          if (request.method != method || (*left)-- <= 0) return std::nullopt;
          return fault;
        });
  }

  static FakeApiServer::Fault Answer(int code, const std::string& retry_after) {
    FakeApiServer::Fault fault;
    fault.response.code = code;
    if (!retry_after.empty()) fault.response.headers["retry-after"] = retry_after;
    return fault;
  }

  static FakeApiServer::Fault LostAnswer() {
    FakeApiServer::Fault fault;
    fault.after_effect = true;
    fault.status = absl::DeadlineExceededError("no answer");
    return fault;
  }

  FakeClock clock_{absl::FromUnixSeconds(1700000000)};
  FakeApiServer server_{&clock_, {}};
  Gate gate_;
  std::vector<absl::Duration> slept_;
  HttpClient client_{&server_, Options()};
  const std::function<bool(const Json&)> ours_ = [](const Json& object) {
    return GetString(object, {"data", "owner"}) == "me";
  };
};

TEST_F(HttpClientTest, CreatesReadsUpdatesAndDeletesAnObject) {
  Json map = Named("a");
  map["data"]["key"] = "value";
  const auto created = client_.Create(ConfigMaps(), "ns", map, {});
  ASSERT_TRUE(created.ok()) << created.status();
  auto read = client_.Get(ConfigMaps(), {"ns", "a"}, Subresource::kNone);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, *created);
  (*read)["data"]["key"] = "other";
  const auto updated = client_.Update(ConfigMaps(), {"ns", "a"}, *read, {});
  ASSERT_TRUE(updated.ok());
  EXPECT_NE(ResourceVersionOf(*updated), ResourceVersionOf(*created));
  ASSERT_TRUE(client_.Delete(ConfigMaps(), {"ns", "a"}, {}).ok());
  EXPECT_TRUE(
      absl::IsNotFound(client_.Get(ConfigMaps(), {"ns", "a"}, Subresource::kNone).status()));
}

TEST_F(HttpClientTest, AnErrorNamesTheCallTheObjectAndTheServersReason) {
  const absl::Status status =
      client_.Get(ConfigMaps(), {"ns", "gone"}, Subresource::kNone).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("get configmaps ns/gone: "));
  ASSERT_TRUE(ApiErrorOf(status).has_value());
  EXPECT_EQ(ApiErrorOf(status)->code, 404);
  EXPECT_EQ(ApiErrorOf(status)->reason, "NotFound");
}

TEST_F(HttpClientTest, AnUpdateOfAnOldVersionIsAConflict) {
  auto old = client_.Create(ConfigMaps(), "ns", Named("a"), {});
  Json newer = *old;
  newer["data"]["x"] = "1";
  ASSERT_TRUE(client_.Update(ConfigMaps(), {"ns", "a"}, newer, {}).ok());
  (*old)["data"]["x"] = "2";
  EXPECT_TRUE(IsConflict(client_.Update(ConfigMaps(), {"ns", "a"}, *old, {}).status()));
}

TEST_F(HttpClientTest, ListsInPagesAndFillsInTheKindOfItems) {
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(client_.Create(ConfigMaps(), "ns", Named("m" + std::to_string(i)), {}).ok());
  }
  ListOptions options;
  options.ns = "ns";
  options.limit = 3;
  const auto page = client_.List(ConfigMaps(), options);
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(page->items, SizeIs(3));
  EXPECT_FALSE(page->continue_token.empty());
  const auto all = ListAll(&client_, ConfigMaps(), options, 1);
  ASSERT_TRUE(all.ok());
  EXPECT_THAT(all->items, SizeIs(7));
  EXPECT_EQ(GetString(all->items[6], {"kind"}), "ConfigMap");
}

TEST_F(HttpClientTest, RestartsAListWhosePagesExpire) {
  for (int i = 0; i < 7; ++i) {
    ASSERT_TRUE(client_.Create(ConfigMaps(), "ns", Named("m" + std::to_string(i)), {}).ok());
  }
  bool compacted = false;
  server_.SetFaultInjector([&](const HttpRequest& request) -> std::optional<FakeApiServer::Fault> {
    if (absl::StrContains(request.target, "continue=") && !std::exchange(compacted, true)) {
      server_.Compact();
    }
    return std::nullopt;
  });
  ListOptions options;
  options.limit = 3;
  EXPECT_TRUE(IsExpired(ListAll(&client_, ConfigMaps(), options, 0).status()));
  compacted = false;
  const auto all = ListAll(&client_, ConfigMaps(), options, 1);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_THAT(all->items, SizeIs(7));
}

TEST_F(HttpClientTest, RetriesAReadAfterTheServersDelay) {
  ASSERT_TRUE(client_.Create(ConfigMaps(), "ns", Named("a"), {}).ok());
  Fail("GET", 2, Answer(503, "2"));
  EXPECT_TRUE(client_.Get(ConfigMaps(), {"ns", "a"}, Subresource::kNone).ok());
  EXPECT_THAT(slept_, ElementsAre(absl::Seconds(2), absl::Seconds(2)));
}

TEST_F(HttpClientTest, DoesNotRepeatACreationWithUnknownOutcome) {
  Fail("POST", 1, LostAnswer());
  EXPECT_TRUE(IsOutcomeUnknown(client_.Create(ConfigMaps(), "ns", Named("a"), {}).status()));
  EXPECT_THAT(server_.Writes(), SizeIs(1));
}

TEST_F(HttpClientTest, FindsTheObjectOfACreationWhoseAnswerWasLost) {
  Json object = Named("a");
  object["data"]["owner"] = "me";
  Fail("POST", 1, LostAnswer());
  const auto made = CreateOrFind(&client_, ConfigMaps(), "ns", object, {}, ours_, 3);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_FALSE(UidOf(*made).empty());
  EXPECT_THAT(server_.Writes(), SizeIs(1));
}

TEST_F(HttpClientTest, RepeatsACreationThatNeverReachedTheServer) {
  Json object = Named("a");
  object["data"]["owner"] = "me";
  FakeApiServer::Fault cut;
  cut.status = absl::UnavailableError("connection reset");
  Fail("POST", 1, cut);
  EXPECT_TRUE(CreateOrFind(&client_, ConfigMaps(), "ns", object, {}, ours_, 3).ok());
  EXPECT_THAT(server_.Writes(), SizeIs(2));
}

TEST_F(HttpClientTest, DoesNotAdoptAForeignObjectOfThatName) {
  ASSERT_TRUE(client_.Create(ConfigMaps(), "ns", Named("a"), {}).ok());
  Json object = Named("a");
  object["data"]["owner"] = "me";
  const auto made = CreateOrFind(&client_, ConfigMaps(), "ns", object, {}, ours_, 3);
  EXPECT_TRUE(absl::IsAlreadyExists(made.status())) << made.status();
}

TEST_F(HttpClientTest, AClosedGateBlocksEachTryOfAWriteButNoReads) {
  ASSERT_TRUE(client_.Create(Widgets(), "ns", Named("a"), {}).ok());
  const size_t before = server_.Writes().size();
  gate_.status = absl::FailedPreconditionError("not the leader");
  EXPECT_TRUE(client_.Get(Widgets(), {"ns", "a"}, Subresource::kNone).ok());
  EXPECT_EQ(client_.Create(Widgets(), "ns", Named("b"), {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(client_.Update(Widgets(), {"ns", "a"}, Named("a"), {}).ok());
  EXPECT_FALSE(client_.Patch(Widgets(), {"ns", "a"}, PatchKind::kMerge, Json::object(), {}).ok());
  EXPECT_FALSE(client_.Delete(Widgets(), {"ns", "a"}, {}).ok());
  EXPECT_THAT(server_.Writes(), SizeIs(before));

  // The gate closes while a try waits for its retry.
  gate_.status = absl::OkStatus();
  HttpClient::Options options = Options();
  options.sleep = [this](absl::Duration) {
    gate_.status = absl::FailedPreconditionError("not the leader");
  };
  HttpClient client(&server_, options);
  Fail("PUT", 1, Answer(503, ""));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(client.Update(Widgets(), {"ns", "a"}, Named("a"), {}).status()));
  EXPECT_THAT(server_.Writes(), SizeIs(before + 1));
}

TEST_F(HttpClientTest, RejectsAnAnswerThatIsNotAnObject) {
  FakeApiServer::Fault garbage;
  garbage.response.code = 200;
  for (const char* body : {"", "<html>", "[1]", "null", R"({"items":3})", "{}"}) {
    garbage.response.body = body;
    Fail("GET", 1, garbage);
    EXPECT_FALSE(client_.List(ConfigMaps(), {}).ok()) << body;
  }
}

TEST_F(HttpClientTest, RejectsAnAnswerThatIsNestedTooDeeply) {
  FakeApiServer::Fault nested;
  nested.response.code = 200;
  nested.response.body =
      "{\"items\":" + std::string(300'000, '[') + std::string(300'000, ']') + "}";
  Fail("GET", 1, nested);
  EXPECT_THAT(client_.List(ConfigMaps(), {}).status().message(), HasSubstr("nested"));
}

TEST_F(HttpClientTest, QuotesABinaryRefusalAsText) {
  FakeApiServer::Fault proxy;
  proxy.response.code = 403;
  proxy.response.body = "acc\xE8s refus\xE9";
  Fail("GET", 1, proxy);
  EXPECT_THAT(client_.List(ConfigMaps(), {}).status().message(), HasSubstr("acc?s refus"));
}

TEST_F(HttpClientTest, NamesCannotChangeThePath) {
  EXPECT_TRUE(absl::IsNotFound(
      client_.Get(ConfigMaps(), {"ns", "../../pods/a?x=y"}, Subresource::kNone).status()));
  EXPECT_THAT(server_.Requests(),
              ElementsAre("GET /api/v1/namespaces/ns/configmaps/..%2F..%2Fpods%2Fa%3Fx%3Dy"));
}

}  // namespace
}  // namespace sluice::kube
