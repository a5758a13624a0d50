#include "operator/kube/watch.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"
#include "services/common/arithmetic/splitmix64.h"

namespace sluice::kube {
namespace {

struct Collector {
  std::vector<WatchEvent> events;
  WatchParser parser{[this](WatchEvent event) {
    events.push_back(std::move(event));
    return absl::OkStatus();
  }};
};

std::string Line(const std::string& type, const std::string& name) {
  return Json{{"type", type}, {"object", {{"metadata", {{"name", name}}}}}}.dump() + "\n";
}

TEST(WatchParserTest, ParsesTheSameEventsHoweverTheBytesAreSplit) {
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    bytes += Line(i % 3 == 0 ? "ADDED" : "MODIFIED", absl::StrCat("ö\\n\"", i));
  }
  bytes += "\r\n\n" + Line("DELETED", "last");
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Collector collector;
    for (size_t at = 0, n = 0; at < bytes.size(); ++n) {
      const size_t size = 1 + SplitMix64At(seed, n) % (seed < 5 ? 2 : 400);
      ASSERT_TRUE(collector.parser.Feed(absl::string_view(bytes).substr(at, size)).ok());
      at += size;
    }
    ASSERT_TRUE(collector.parser.Finish().ok());
    ASSERT_EQ(collector.events.size(), 51u) << "seed " << seed;
    for (int i = 0; i < 50; ++i) {
      EXPECT_EQ(KeyOf(collector.events[i].object).name, absl::StrCat("ö\\n\"", i));
    }
    EXPECT_EQ(collector.events.back().type, WatchEvent::Type::kDeleted);
  }
}

TEST(WatchParserTest, ReturnsTheStatusInAnErrorEvent) {
  Collector collector;
  const absl::Status status = collector.parser.Feed(
      R"({"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}})"
      "\n");
  EXPECT_TRUE(IsExpired(status)) << status;
  EXPECT_EQ(ApiErrorOf(status)->reason, "Expired");
  EXPECT_EQ(ApiErrorOf(status)->message, "too old");
}

TEST(WatchParserTest, RejectsTextThatIsNotAnEvent) {
  for (const char* text : {"nonsense\n", "{}\n", "[1]\n",
                           R"({"type":"ADDED","object":3})"
                           "\n",
                           R"({"type":"WHAT","object":{}})"
                           "\n"}) {
    Collector collector;
    EXPECT_TRUE(absl::IsDataLoss(collector.parser.Feed(text))) << text;
    EXPECT_TRUE(collector.events.empty());
  }
}

TEST(WatchParserTest, RejectsAnEventThatIsNestedTooDeeply) {
  WatchParser parser([](const WatchEvent& event) {
    const Json copy = event.object;  // as a cache keeps it
    return absl::OkStatus();
  });
  const std::string nested = std::string(300'000, '[') + std::string(300'000, ']');
  const absl::Status status =
      parser.Feed("{\"type\":\"ADDED\",\"object\":{\"spec\":" + nested + "}}\n");
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

TEST(WatchParserTest, RejectsAnOverlongLineBeforeItsEnd) {
  WatchParser parser([](WatchEvent) { return absl::OkStatus(); }, 100);
  EXPECT_TRUE(parser.Feed(std::string(60, ' ')).ok());
  EXPECT_TRUE(absl::IsDataLoss(parser.Feed(std::string(60, ' '))));
}

TEST(WatchParserTest, ReportsAStreamThatEndsInsideAnEvent) {
  Collector collector;
  ASSERT_TRUE(collector.parser.Feed(Line("ADDED", "whole") + R"({"type":"ADD)").ok());
  EXPECT_EQ(collector.events.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(collector.parser.Finish()));
}

TEST(WatchParserTest, ABookmarkCanEndTheInitialEvents) {
  Collector collector;
  ASSERT_TRUE(collector.parser
                  .Feed(R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}})"
                        "\n"
                        R"({"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8",)"
                        R"("annotations":{"k8s.io/initial-events-end":"true"}}}})"
                        "\n")
                  .ok());
  EXPECT_FALSE(EndsInitialEvents(collector.events[0]));
  EXPECT_TRUE(EndsInitialEvents(collector.events[1]));
}

TEST(WatchParserTest, StopsAtAnErrorOfTheSink) {
  int calls = 0;
  WatchParser parser([&calls](WatchEvent) {
    ++calls;
    return absl::CancelledError("enough");
  });
  EXPECT_TRUE(absl::IsCancelled(parser.Feed(Line("ADDED", "a") + Line("ADDED", "b"))));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace sluice::kube
