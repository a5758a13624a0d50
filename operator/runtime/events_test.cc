#include "operator/runtime/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"

namespace sluice::runtime {
namespace {

using kube::Json;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EventsTest : public ::testing::Test {
 protected:
  EventsTest() {
    kube::RegisterTestTypes(&server_);
    widget_ = *client_.Create(kube::Widgets(), "ns", kube::Named("w"), {});
  }
  static kube::HttpClient::Options ClientOptions() {
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    return options;
  }
  std::vector<Json> Events() { return kube::ListAll(&client_, kube::EventType(), {}, 0)->items; }
  void Send() { ASSERT_TRUE(recorder_.SendPending(&client_).ok()); }

  FakeClock clock_{absl::FromUnixMicros(1700000000123456)};
  kube::FakeApiServer server_{&clock_, {}};
  kube::HttpClient client_{&server_, ClientOptions()};
  EventRecorder recorder_{{"example.com/controller", "pod-1"}, &clock_};
  Json widget_;
  const EventRecord replaced_{EventRecord::Type::kWarning, "WorkerReplaced", "ReplaceWorker",
                              "worker 3 was killed", ""};
};

TEST_F(EventsTest, AnEventHasReasonObjectAndTime) {
  recorder_.Record(widget_, replaced_);
  Send();
  ASSERT_THAT(Events(), SizeIs(1));
  const Json event = Events()[0];
  EXPECT_EQ(kube::GetString(event, {"eventTime"}), "2023-11-14T22:13:20.123456Z");
  EXPECT_EQ(kube::GetString(event, {"regarding", "uid"}), kube::UidOf(widget_));
  EXPECT_EQ(kube::GetString(event, {"regarding", "kind"}), "Widget");
  EXPECT_EQ(kube::GetString(event, {"reason"}), "WorkerReplaced");
  EXPECT_EQ(kube::GetString(event, {"action"}), "ReplaceWorker");
  EXPECT_EQ(kube::GetString(event, {"type"}), "Warning");
  EXPECT_EQ(kube::GetString(event, {"note"}), "worker 3 was killed");
  EXPECT_EQ(kube::GetString(event, {"reportingController"}), "example.com/controller");
  EXPECT_EQ(kube::KeyOf(event).ns, "ns");
  EXPECT_EQ(kube::Find(event, {"series"}), nullptr);
}

TEST_F(EventsTest, RepetitionsAreOneEventWithACount) {
  recorder_.Record(widget_, replaced_);
  Send();
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Seconds(1));
    recorder_.Record(widget_, replaced_);
  }
  Send();
  ASSERT_THAT(Events(), SizeIs(1));
  EXPECT_EQ(kube::GetInt(Events()[0], {"series", "count"}), 11);
  EXPECT_EQ(kube::GetString(Events()[0], {"series", "lastObservedTime"}),
            "2023-11-14T22:13:30.123456Z");
}

TEST_F(EventsTest, AnotherNoteAboutTheObjectItselfIsAnotherEvent) {
  EventRecord suspended = {EventRecord::Type::kNormal, "Suspended", "Suspend", "no checkpoint", ""};
  recorder_.Record(widget_, suspended);
  suspended.note = "a checkpoint is saved";
  recorder_.Record(widget_, suspended);
  EventRecord replaced = {EventRecord::Type::kNormal, "Killed", "Replace", "first", "pod-0"};
  recorder_.Record(widget_, replaced);
  replaced.note = "second";
  recorder_.Record(widget_, replaced);
  Send();
  std::map<std::string, int64_t> counts;
  for (const Json& event : Events()) {
    counts[kube::GetString(event, {"note"})] = kube::GetInt(event, {"series", "count"});
  }
  EXPECT_EQ(counts, (std::map<std::string, int64_t>{
                        {"no checkpoint", 0}, {"a checkpoint is saved", 0}, {"first", 2}}));
}

TEST_F(EventsTest, ASeriesIsWrittenAtMostOnceInItsPeriodAndFlushedAtTheEnd) {
  recorder_.Record(widget_, replaced_);
  recorder_.Record(widget_, replaced_);
  Send();
  const size_t writes = server_.Writes().size();
  recorder_.Record(widget_, replaced_);
  Send();
  EXPECT_THAT(server_.Writes(), SizeIs(writes));
  ASSERT_TRUE(recorder_.Flush(&client_).ok());
  EXPECT_EQ(kube::GetInt(Events()[0], {"series", "count"}), 3);
}

TEST_F(EventsTest, ARepetitionAfterALongPauseIsANewEvent) {
  recorder_.Record(widget_, replaced_);
  Send();
  clock_.Advance(absl::Minutes(7));
  recorder_.Record(widget_, replaced_);
  Send();
  EXPECT_THAT(Events(), SizeIs(2));
}

TEST_F(EventsTest, LimitsTheEventsOfEachObject) {
  const Json other = *client_.Create(kube::Widgets(), "ns", kube::Named("other"), {});
  for (int i = 0; i < 100; ++i) {
    recorder_.Record(widget_, {EventRecord::Type::kNormal, absl::StrCat("R", i), "A", "", ""});
  }
  recorder_.Record(other, replaced_);
  Send();
  EXPECT_THAT(Events(), SizeIs(26));
  EXPECT_EQ(recorder_.dropped(), 75);
}

TEST_F(EventsTest, EventsAboutTwoPodsAreSeparate) {
  EventRecord record = replaced_;
  for (const char* pod : {"w-worker-1", "w-worker-2", "w-worker-1"}) {
    record.pod = pod;
    recorder_.Record(widget_, record);
  }
  Send();
  ASSERT_THAT(Events(), SizeIs(2));
  EXPECT_EQ(kube::GetString(Events()[0], {"related", "name"}), "w-worker-1");
  EXPECT_EQ(kube::GetInt(Events()[0], {"series", "count"}), 2);
  EXPECT_EQ(kube::GetString(Events()[1], {"related", "name"}), "w-worker-2");
}

TEST_F(EventsTest, EventsAboutManyPodsLeaveRoomForTheObjectsOwn) {
  for (int i = 0; i < 100; ++i) {
    EventRecord record = replaced_;
    record.pod = absl::StrCat("w-worker-", i);
    recorder_.Record(widget_, record);
  }
  recorder_.Record(widget_, {EventRecord::Type::kWarning, "Failed", "Fail", "", ""});
  Send();
  EXPECT_THAT(Events(), SizeIs(16));
  EXPECT_EQ(kube::GetString(Events().back(), {"reason"}), "Failed");
}

TEST_F(EventsTest, LosesNoEventWhileTheServerIsUnavailable) {
  server_.SetFaultInjector([](const kube::HttpRequest&) {
    kube::FakeApiServer::Fault fault;
    fault.status = absl::UnavailableError("away");
    return std::optional<kube::FakeApiServer::Fault>(fault);
  });
  recorder_.Record(widget_, replaced_);
  EXPECT_FALSE(recorder_.SendPending(&client_).ok());
  server_.SetFaultInjector(nullptr);
  Send();
  EXPECT_THAT(Events(), SizeIs(1));
}

TEST_F(EventsTest, ALostAnswerCreatesNoSecondEvent) {
  bool lost = false;
  server_.SetFaultInjector(
      [&](const kube::HttpRequest& request) -> std::optional<kube::FakeApiServer::Fault> {
        if (request.method != "POST" || std::exchange(lost, true)) return std::nullopt;
        kube::FakeApiServer::Fault fault;
        fault.after_effect = true;
        fault.status = absl::DeadlineExceededError("lost");
        return fault;
      });
  recorder_.Record(widget_, replaced_);
  EXPECT_FALSE(recorder_.SendPending(&client_).ok());
  Send();
  EXPECT_THAT(Events(), SizeIs(1));
}

TEST_F(EventsTest, DropsARefusedEventAndSendsTheRest) {
  bool refused = false;
  server_.SetFaultInjector(
      [&](const kube::HttpRequest& request) -> std::optional<kube::FakeApiServer::Fault> {
        if (request.method != "POST" || std::exchange(refused, true)) return std::nullopt;
        kube::FakeApiServer::Fault fault;
        fault.response.code = 403;
        return fault;
      });
  recorder_.Record(widget_, replaced_);
  clock_.Advance(absl::Seconds(1));
  recorder_.Record(widget_, {EventRecord::Type::kNormal, "Other", "A", ""});
  Send();
  EXPECT_THAT(Events(), SizeIs(1));
  EXPECT_EQ(recorder_.dropped(), 1);
}

TEST_F(EventsTest, TruncatesALongNoteBetweenCharacters) {
  std::string note;
  while (note.size() < 2000) note += "ö";
  recorder_.Record(widget_, {EventRecord::Type::kNormal, "R", "A", note});
  Send();
  const std::string sent = kube::GetString(Events()[0], {"note"});
  EXPECT_LE(sent.size(), 1024u);
  EXPECT_GT(sent.size(), 1000u);
  EXPECT_TRUE(Json(sent).dump().size() > 0);  // throws on text that is not UTF-8
}

}  // namespace
}  // namespace sluice::runtime
