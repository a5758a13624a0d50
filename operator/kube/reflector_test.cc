#include "operator/kube/reflector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"
#include "services/common/status_macros.h"

namespace sluice::kube {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

// A reader's state, built only from the events.
class World : public ReflectorSink {
 public:
  void Replace(std::vector<Json> objects) override {
    ++replaced;
    there.clear();
    for (const Json& object : objects) {
      there[KeyOf(object).name] = ResourceVersionOf(object);
      texts.push_back(object.dump());
    }
  }
  void Apply(WatchEvent event) override {
    texts.push_back(event.object.dump());
    if (event.type == WatchEvent::Type::kDeleted) {
      there.erase(KeyOf(event.object).name);
    } else {
      there[KeyOf(event.object).name] = ResourceVersionOf(event.object);
    }
  }
  std::map<std::string, std::string> there;
  int replaced = 0;
  std::vector<std::string> texts;  // of all objects that arrived
};

class ReflectorTest : public ::testing::Test {
 protected:
  void Start(FakeApiServer::Options server_options, Reflector::Options options) {
    server_ = std::make_unique<FakeApiServer>(&clock_, server_options);
    RegisterTestTypes(server_.get());
    HttpClient::Options client_options;
    client_options.sleep = [](absl::Duration) {};
    client_ = std::make_unique<HttpClient>(server_.get(), client_options);
    options.random = [] { return 0.5; };
    reflector_ = std::make_unique<Reflector>(client_.get(), ConfigMaps(), options, &world_);
  }

  void Create(const Json& object) {
    ASSERT_TRUE(client_->Create(ConfigMaps(), "ns", object, {}).ok());
  }
  void Touch(const std::string& name, const std::string& value) {
    ASSERT_TRUE(
        client_
            ->Patch(ConfigMaps(), {"ns", name}, PatchKind::kMerge, {{"data", {{"x", value}}}}, {})
            .ok());
  }
  void Delete(const std::string& name) {
    ASSERT_TRUE(client_->Delete(ConfigMaps(), {"ns", name}, {}).ok());
  }
  // The true state.
  std::map<std::string, std::string> Truth() {
    std::map<std::string, std::string> truth;
    const auto all = ListAll(client_.get(), ConfigMaps(), {}, 0);
    EXPECT_TRUE(all.ok()) << all.status();
    if (!all.ok()) return truth;
    for (const Json& object : all->items) {
      truth[KeyOf(object).name] = ResourceVersionOf(object);
    }
    return truth;
  }
  int Lists() const {
    int lists = 0;
    for (const std::string& request : server_->Requests()) {
      if (absl::StartsWith(request, "GET ") && !absl::StrContains(request, "watch=true")) ++lists;
    }
    return lists;
  }

  FakeClock clock_{absl::FromUnixSeconds(1700000000)};
  std::unique_ptr<FakeApiServer> server_;
  std::unique_ptr<HttpClient> client_;
  World world_;
  std::unique_ptr<Reflector> reflector_;
  Cancellation cancellation_;
};

TEST_F(ReflectorTest, AStreamingListDeliversAllObjectsWithoutAList) {
  Start({}, {});
  Create(Named("a"));
  Create(Named("b"));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_EQ(world_.there.size(), 2u);
  EXPECT_EQ(world_.replaced, 1);
  EXPECT_EQ(Lists(), 0);
  Delete("a");
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_EQ(world_.there, Truth());
  EXPECT_EQ(world_.replaced, 1);
}

// The most objects that parser and sink held at a time: a list of 10,000 pods must not be held
// unstripped.
TEST_F(ReflectorTest, StripsEachObjectBeforeTheNextOneArrives) {
  for (const bool streaming : {true, false}) {
    size_t stripped = 0;
    Reflector::Options options;
    options.streaming_lists = streaming;
    options.page_size = 2;
    options.strip = [&](Json* object) {
      ++stripped;
      object->erase("data");
    };
    Start({}, options);
    std::vector<size_t> stripped_at_page;
    server_->SetFaultInjector([&](const HttpRequest& request) {
      if (absl::StrContains(request.target, "continue=")) stripped_at_page.push_back(stripped);
      return std::nullopt;
    });
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      Create(Named(name));
      Touch(name, "bytes");
    }
    ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
    EXPECT_EQ(stripped, 5u) << streaming;
    if (!streaming) {
      EXPECT_THAT(stripped_at_page, ElementsAre(2u, 4u));
    }
    EXPECT_THAT(world_.texts, Each(Not(HasSubstr("bytes"))));
    Touch("a", "more bytes");
    ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
    EXPECT_THAT(world_.texts, Each(Not(HasSubstr("bytes"))));
  }
}

TEST_F(ReflectorTest, ListsIfTheServerRefusesStreamingLists) {
  FakeApiServer::Options options;
  options.streaming_lists = false;
  Start(options, {});
  Create(Named("a"));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_THAT(world_.there, IsEmpty());
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_THAT(world_.there, SizeIs(1));
  for (const std::string& request : server_->Requests()) {
    EXPECT_FALSE(absl::StrContains(request, "resourceVersion=0")) << request;
  }
}

TEST_F(ReflectorTest, ContinuesAnEndedWatchFromTheLastVersion) {
  Start({}, {});
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  for (int i = 0; i < 5; ++i) {
    Create(Named(absl::StrCat("m", i)));
    ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  }
  EXPECT_EQ(world_.replaced, 1);
  EXPECT_EQ(world_.there, Truth());
}

class ForgottenVersionTest : public ReflectorTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ForgottenVersionTest, ListsAgainWithoutLosingChanges) {
  FakeApiServer::Options options;
  options.gone_as_event = GetParam();
  Start(options, {});
  Create(Named("a"));
  Create(Named("b"));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  Delete("a");
  Touch("b", "new");
  Create(Named("c"));
  server_->Compact();
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());  // learns that its version is too old
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_EQ(world_.replaced, 2);
  EXPECT_EQ(world_.there, Truth());
}

INSTANTIATE_TEST_SUITE_P(AsEventAndAsStatus, ForgottenVersionTest, ::testing::Bool());

TEST_F(ReflectorTest, ABookmarkAdvancesTheVersionPastOtherChanges) {
  Reflector::Options mine;
  mine.label_selector = "mine=yes";
  FakeApiServer::Options options;
  options.history_limit = 5;
  Start(options, mine);
  Create(Labelled("a", "mine", "yes"));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  for (int i = 0; i < 4; ++i) Create(Named(absl::StrCat("other", i)));
  server_->SendBookmarks();
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  for (int i = 4; i < 8; ++i) Create(Named(absl::StrCat("other", i)));
  Create(Labelled("b", "mine", "yes"));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_EQ(world_.replaced, 1);
  EXPECT_THAT(world_.there, ElementsAre(Pair("a", ::testing::_), Pair("b", ::testing::_)));
}

TEST_F(ReflectorTest, DeletesAnObjectThatStopsMatching) {
  Reflector::Options mine;
  mine.label_selector = "mine=yes";
  Start({}, mine);
  Create(Labelled("a", "mine", "yes"));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_THAT(world_.there, SizeIs(1));
  ASSERT_TRUE(client_
                  ->Patch(ConfigMaps(), {"ns", "a"}, PatchKind::kMerge,
                          {{"metadata", {{"labels", {{"mine", "no"}}}}}}, {})
                  .ok());
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_THAT(world_.there, IsEmpty());
}

TEST_F(ReflectorTest, LosesNoChangeWhereverAWatchBreaks) {
  FakeApiServer::Options options;
  options.piece_bytes = 7;
  options.history_limit = 8;
  Start(options, {});
  int calls = 0;
  server_->SetFaultInjector([&](const HttpRequest& request) -> std::optional<FakeApiServer::Fault> {
    if (request.method != "GET" || ++calls % 3 != 0) return std::nullopt;
    FakeApiServer::Fault fault;
    fault.after_effect = calls % 2 == 0;
    fault.status = absl::DeadlineExceededError("no bytes for 150s");
    return fault;
  });
  for (int i = 0; i < 60; ++i) {
    Create(Named(absl::StrCat("m", i)));
    if (i % 4 == 3) Delete(absl::StrCat("m", i - 2));
    if (i % 5 == 0) Touch(absl::StrCat("m", i), "x");
    if (i % 3 == 0) reflector_->Round(&cancellation_).IgnoreError();
  }
  server_->SetFaultInjector(nullptr);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_EQ(world_.there, Truth());
}

// Streams one text.
class ScriptedTransport : public HttpTransport {
 public:
  explicit ScriptedTransport(std::string bytes) : bytes_(std::move(bytes)) {}
  absl::StatusOr<HttpResponse> Do(const HttpRequest&) override {
    return absl::UnavailableError("watches only");
  }
  absl::StatusOr<HttpResponse> Stream(const HttpRequest&, const BodySink& sink,
                                      Cancellation*) override {
    RETURN_IF_ERROR(sink(bytes_));
    HttpResponse response;
    response.code = 200;
    return response;
  }

 private:
  const std::string bytes_;
};

std::string Line(const std::string& type, const std::string& name, int version) {
  Json object = Named(name);
  object["metadata"]["resourceVersion"] = absl::StrCat(version);
  if (type == "BOOKMARK") object["metadata"]["annotations"]["k8s.io/initial-events-end"] = "true";
  return Json{{"type", type}, {"object", object}}.dump() + "\n";
}

TEST_F(ReflectorTest, IncludesChangesDuringAStreamingList) {
  ScriptedTransport transport(Line("ADDED", "a", 1) + Line("ADDED", "b", 2) +
                              Line("MODIFIED", "a", 5) + Line("DELETED", "b", 6) +
                              Line("BOOKMARK", "", 6) + Line("ADDED", "c", 7));
  HttpClient client(&transport, {});
  Reflector::Options options;
  options.random = [] { return 0.5; };
  Reflector reflector(&client, ConfigMaps(), options, &world_);
  ASSERT_TRUE(reflector.Round(&cancellation_).ok());
  EXPECT_THAT(world_.there, ElementsAre(Pair("a", "5"), Pair("c", "7")));
  EXPECT_EQ(world_.replaced, 1);
}

TEST_F(ReflectorTest, WaitsForAServerThatForgetsVersionsAtOnce) {
  Start({}, {});
  server_->SetFaultInjector([&](const HttpRequest& request) {
    std::optional<FakeApiServer::Fault> fault;
    if (absl::StrContains(request.target, "watch=true")) {
      fault.emplace();
      fault->response.code = 410;
    }
    return fault;
  });
  EXPECT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_FALSE(reflector_->Round(&cancellation_).ok());
}

TEST_F(ReflectorTest, DelaysGrowUntilAnEventArrives) {
  Start({}, {});
  EXPECT_EQ(reflector_->Delay(), absl::Milliseconds(375));
  EXPECT_EQ(reflector_->Delay(), absl::Milliseconds(750));
  for (int i = 0; i < 20; ++i) reflector_->Delay();
  EXPECT_EQ(reflector_->Delay(), absl::Milliseconds(22500));
  ASSERT_TRUE(reflector_->Round(&cancellation_).ok());
  EXPECT_EQ(reflector_->Delay(), absl::Milliseconds(375));
}

TEST_F(ReflectorTest, SendsNoRequestAfterCancellation) {
  Start({}, {});
  cancellation_.Cancel();
  EXPECT_TRUE(absl::IsCancelled(reflector_->Round(&cancellation_)));
  EXPECT_THAT(server_->Requests(), IsEmpty());
}

}  // namespace
}  // namespace sluice::kube
