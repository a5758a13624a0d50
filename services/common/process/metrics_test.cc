#include "services/common/process/metrics.h"

#include <curl/curl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Type = MetricDescriptor::Type;

std::vector<MetricDescriptor> Table() {
  return {{"steps_total", Type::kCounter, "Steps closed.", {}, {}},
          {"queue_bytes", Type::kGauge, "Bytes that wait.", {"queue"}, {}},
          {"step_seconds", Type::kHistogram, "Time of a step.", {"phase"}, {0.1, 1}}};
}

size_t Collect(char* data, size_t size, size_t count, void* out) {
  static_cast<std::string*>(out)->append(data, size * count);
  return size * count;
}

std::pair<long, std::string> Get(int port, const std::string& path) {
  std::pair<long, std::string> answer{0, ""};
  CURL* curl = curl_easy_init();
  curl_easy_setopt(curl, CURLOPT_URL, absl::StrCat("http://127.0.0.1:", port, path).c_str());
  curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Collect);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer.second);
  EXPECT_EQ(curl_easy_perform(curl), CURLE_OK);
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.first);
  curl_easy_cleanup(curl);
  return answer;
}

TEST(MetricsTest, SerializesValuesWithLabels) {
  Metrics metrics(Table(), {{"training_job", "demo"}, {"role", "shard"}});
  metrics.counter("steps_total").Increment(3);
  metrics.gauge("queue_bytes", {"core"}).Set(17);
  metrics.histogram("step_seconds", {"push"}).Observe(0.5);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("# HELP sluice_steps_total Steps closed."));
  EXPECT_THAT(text, HasSubstr("sluice_steps_total{role=\"shard\",training_job=\"demo\"} 3"));
  EXPECT_THAT(text, HasSubstr("queue=\"core\"} 17"));
  EXPECT_THAT(text, HasSubstr("phase=\"push\",le=\"0.1\"} 0"));
  EXPECT_THAT(text, HasSubstr("phase=\"push\",le=\"1\"} 1"));
}

TEST(MetricsTest, SameLabelsReturnSameMetric) {
  Metrics metrics(Table(), {});
  EXPECT_EQ(&metrics.gauge("queue_bytes", {"a"}), &metrics.gauge("queue_bytes", {"a"}));
  EXPECT_NE(&metrics.gauge("queue_bytes", {"a"}), &metrics.gauge("queue_bytes", {"b"}));
}

TEST(MetricsTest, RemovesSeries) {
  Metrics metrics(Table(), {});
  metrics.gauge("queue_bytes", {"worker-3"}).Set(1);
  metrics.RemoveGauge("queue_bytes", {"worker-3"});
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("worker-3")));
}

TEST(MetricsTest, BucketsGrowByFactor) {
  EXPECT_EQ(ExponentialBuckets(1, 4, 3), (std::vector<double>{1, 4, 16}));
}

TEST(MetricsDeathTest, UnknownNameOrWrongLabelsAreFatal) {
  Metrics metrics(Table(), {});
  EXPECT_DEATH(metrics.counter("step_total"), "step_total is not in the table");
  EXPECT_DEATH(metrics.gauge("steps_total"), "steps_total is a counter");
  EXPECT_DEATH(metrics.gauge("queue_bytes"), "queue_bytes is a gauge with 1 labels");
  std::vector<MetricDescriptor> twice = Table();
  twice.push_back(twice[0]);
  EXPECT_DEATH(Metrics(twice, {}), "twice");
}

// Prometheus refuses a page with any of these, and prometheus-cpp writes it.
TEST(MetricsDeathTest, RowThatPrometheusWouldRefuseIsFatal) {
  const auto with = [](auto change) {
    std::vector<MetricDescriptor> table = Table();
    change(&table[2]);
    Metrics metrics(table, {{"role", "shard"}});
  };
  for (const char* help : {"Two\nlines.", "Two\r\nlines.", "C:\\new", "\xFF"}) {
    EXPECT_DEATH(with([&](MetricDescriptor* row) { row->help = help; }),
                 "sluice_step_seconds: its help text must be one line");
  }
  for (const char* label : {"", "a-b", "1st", "__name__", "le"}) {
    EXPECT_DEATH(with([&](MetricDescriptor* row) { row->labels = {label}; }), "not a label name");
  }
  EXPECT_DEATH(with([](MetricDescriptor* row) { row->labels = {"role"}; }), "'role' twice");
  EXPECT_DEATH(with([](MetricDescriptor* row) { row->labels = {"a", "a"}; }), "'a' twice");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& buckets :
       std::vector<std::vector<double>>{{1, 1}, {2, 1}, {1, nan}, {nan}, {1, infinity}}) {
    EXPECT_DEATH(with([&](MetricDescriptor* row) { row->buckets = buckets; }), "must be finite");
  }
}

TEST(MetricsTest, LabelValuesAreEscapedUtf8) {
  Metrics metrics(Table(), {{"training_job", "a\xFF"}});
  metrics.gauge("queue_bytes", {"a\n\"b\"\\ä\xC3"}).Set(1);
  EXPECT_THAT(metrics.Serialize(), HasSubstr(R"({training_job="a?",queue="a\n\"b\"\\ä?"} 1)"));
}

// Regression: a NaN was counted in the smallest bucket, and the sum was NaN from then on.
TEST(MetricsTest, HistogramIgnoresValuesThatAreNotFinite) {
  Metrics metrics(Table(), {});
  Histogram histogram = metrics.histogram("step_seconds", {"push"});
  histogram.Observe(std::numeric_limits<double>::quiet_NaN());
  histogram.Observe(std::numeric_limits<double>::infinity());
  histogram.Observe(-std::numeric_limits<double>::infinity());
  histogram.Observe(0.5);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("le=\"0.1\"} 0"));
  EXPECT_THAT(text, HasSubstr("step_seconds_sum{phase=\"push\"} 0.5"));
  EXPECT_THAT(text, HasSubstr("step_seconds_count{phase=\"push\"} 1"));
}

TEST(MetricsServerTest, ServesMetricsHealthAndReadiness) {
  Metrics metrics(Table(), {});
  metrics.counter("steps_total").Increment();
  absl::Status ready = absl::UnavailableError("no view yet");
  MetricsServer::Options options;
  options.ready = [&ready] { return ready; };
  absl::Status alive;
  options.alive = [&alive] { return alive; };
  auto server = MetricsServer::Start(options, &metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  EXPECT_EQ(Get(port, "/metrics"), std::make_pair(200L, metrics.Serialize()));
  EXPECT_EQ(Get(port, "/healthz"), std::make_pair(200L, std::string("ok\n")));
  EXPECT_EQ(Get(port, "/readyz"), std::make_pair(503L, std::string("no view yet\n")));
  ready = absl::OkStatus();
  EXPECT_EQ(Get(port, "/readyz").first, 200);
  alive = absl::UnavailableError("the core has not answered for 20 s");
  EXPECT_EQ(Get(port, "/healthz"),
            std::make_pair(503L, std::string("the core has not answered for 20 s\n")));
  EXPECT_EQ(Get(port, "/elsewhere").first, 404);
}

TEST(MetricsServerTest, ErrorNamesPortInUse) {
  Metrics metrics(Table(), {});
  auto first = MetricsServer::Start({}, &metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  MetricsServer::Options options;
  options.address = absl::StrCat("127.0.0.1:", (*first)->port());
  const auto second = MetricsServer::Start(options, &metrics);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(options.address));
}

}  // namespace
}  // namespace sluice
