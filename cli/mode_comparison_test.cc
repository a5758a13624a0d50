#include "cli/mode_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/mode_plot.h"

namespace sluice::cli {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Job(const Json& training, uint32_t workers) {
  return {{"spec",
           {{"training", training},
            {"worker", {{"replicas", workers}}},
            {"data", {{"evaluation", {{"intervalSteps", 10}}}}}}}};
}

TEST(ManifestForModeTest, ModesTrainOnEqualSamplesAndBatchesPerWorker) {
  const Json job = Job({{"mode", "Synchronous"}, {"globalBatchSize", 256}, {"steps", 100}}, 2);
  const Json same = ManifestForMode(job, "Synchronous", {});
  EXPECT_EQ(same["spec"]["training"]["globalBatchSize"], 256);
  EXPECT_EQ(same["spec"]["training"]["steps"], 100);
  const Json other = ManifestForMode(job, "Asynchronous", {});
  EXPECT_EQ(other["spec"]["training"]["mode"], "Asynchronous");
  EXPECT_EQ(other["spec"]["training"]["globalBatchSize"], 128);
  EXPECT_EQ(other["spec"]["training"]["steps"], 200);
  EXPECT_EQ(other["spec"]["data"]["evaluation"]["intervalSteps"], 20);
}

TEST(ManifestForModeTest, AsynchronousBatchIsPerWorker) {
  const Json job = Job({{"mode", "Asynchronous"}, {"globalBatchSize", 32}, {"epochs", 2}}, 4);
  const Json manifest = ManifestForMode(job, "Synchronous", {});
  EXPECT_EQ(manifest["spec"]["training"]["globalBatchSize"], 128);
  EXPECT_EQ(manifest["spec"]["training"]["epochs"], 2);
  EXPECT_FALSE(manifest["spec"]["training"].contains("steps"));
}

TEST(ManifestForModeTest, ShortenedRunHasTheRequestedSamples) {
  const Json job = Job({{"mode", "Synchronous"}, {"globalBatchSize", 64}, {"epochs", 5}}, 2);
  ModeOptions options;
  options.samples = 1000;
  const Json training = ManifestForMode(job, "Asynchronous", options)["spec"]["training"];
  EXPECT_EQ(training["steps"], 32);  // 32 steps of 32 samples
  EXPECT_FALSE(training.contains("epochs"));
}

TEST(ManifestForModeTest, RemovesFieldsOfOtherModes) {
  const Json job = Job({{"mode", "Synchronous"},
                        {"globalBatchSize", 64},
                        {"microbatchSize", 4},
                        {"determinism", "BitExact"},
                        {"stragglers", {{"policy", "Drop"}}},
                        {"steps", 1}},
                       2);
  const Json bounded = ManifestForMode(job, "BoundedStaleness", {})["spec"]["training"];
  EXPECT_EQ(bounded["boundedStaleness"]["maxStaleness"], 4);
  EXPECT_FALSE(bounded.contains("stragglers"));
  EXPECT_FALSE(bounded.contains("determinism"));
  EXPECT_FALSE(bounded.contains("microbatchSize"));  // it was the default of 64
  const Json own = Job(
      {{"mode", "BoundedStaleness"}, {"boundedStaleness", {{"maxStaleness", 1}}}, {"steps", 1}}, 2);
  EXPECT_EQ(ManifestForMode(own, "BoundedStaleness",
                            {})["spec"]["training"]["boundedStaleness"]["maxStaleness"],
            1);
  EXPECT_FALSE(
      ManifestForMode(own, "Asynchronous", {})["spec"]["training"].contains("boundedStaleness"));
}

constexpr char kRun[] = R"(
{"type":"process","name":"worker-0","state":"started","time":"2026-01-01T00:00:00+00:00"}
{"type":"event","kind":"view","message":"begins","time":"2026-01-01T00:00:10+00:00"}
{"type":"event","kind":"evaluation","evaluation":{"accuracy":50,"loss":2,"step":10},"time":"2026-01-01T00:00:12+00:00"}
{"type":"event","kind":"view","message":"begins again","time":"2026-01-01T00:00:13+00:00"}
not json
{"type":"event","kind":"evaluation","evaluation":{"accuracy":80,"loss":1,"step":20},"time":"2026-01-01T00:00:14.5+00:00"}
{"type":"summary","outcome":"Succeeded","step":20,"samples":640,"trainingSeconds":4,"evaluation":{"accuracy":80,"loss":1},"staleness":{"mean":1.25,"median":1,"percentile95":2,"largest":7}}
)";

TEST(ParseModeRunTest, TimeBeginsWithTheFirstView) {
  const auto run = ParseModeRun("Asynchronous", kRun);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->metric, "accuracy");
  ASSERT_EQ(run->points.size(), 2u);
  EXPECT_THAT(run->points[0].seconds, DoubleNear(2, 1e-9));
  EXPECT_THAT(run->points[1].seconds, DoubleNear(4.5, 1e-9));
  EXPECT_EQ(run->points[0].samples, 320);
  EXPECT_EQ(run->samples_per_second(), 160);
  EXPECT_EQ(run->staleness->largest, 7u);
  EXPECT_EQ(run->staleness->mean, 1.25);
  EXPECT_EQ(run->last, 80);
  EXPECT_THAT(*SecondsTo(*run, 60), DoubleNear(4.5, 1e-9));
  EXPECT_FALSE(SecondsTo(*run, 81).has_value());
}

TEST(ParseModeRunTest, FailedRunIsAnErrorWithItsReason) {
  const absl::Status failed =
      ParseModeRun("Synchronous", R"({"type":"summary","outcome":"Failed","reason":"no data"})")
          .status();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("Synchronous: no data"));
  EXPECT_FALSE(ParseModeRun("Synchronous", "").ok());
}

ModeRun Trained(const std::string& metric, double last) {
  ModeRun run;
  run.mode = "Synchronous";
  run.metric = metric;
  run.steps = 3;
  run.samples = 30;
  run.seconds = 2;
  run.points = {{1, 1, 10, last / 2}, {2, 3, 30, last}};
  run.last = last;
  return run;
}

TEST(CommonTargetTest, IsTheWorstFinalValue) {
  EXPECT_EQ(CommonTarget({Trained("accuracy", 90), Trained("accuracy", 85)}), 85);
  EXPECT_EQ(CommonTarget({Trained("perplexity", 90), Trained("perplexity", 85)}), 90);
  ModeRun unseen = Trained("loss", 1);
  unseen.points.clear();
  EXPECT_FALSE(CommonTarget({Trained("loss", 1), unseen}).has_value());
}

TEST(ComparisonTest, HasOneLinePerMode) {
  const std::vector<std::string> lines = ComparisonLines({Trained("accuracy", 90)}, 90);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0], HasSubstr("time to accuracy 90.0"));
  EXPECT_THAT(lines[1], HasSubstr("Synchronous"));
  EXPECT_THAT(lines[1], HasSubstr("2.0 s"));
  EXPECT_THAT(lines[1], HasSubstr("15"));
}

TEST(ComparisonTest, ShowsMeanAndQuantilesOfStaleness) {
  ModeRun run = Trained("accuracy", 90);
  run.staleness = ModeRun::Staleness{1.256, 1, 2, 7};
  const std::vector<std::string> lines = ComparisonLines({run}, 90);
  EXPECT_THAT(lines[0], HasSubstr("staleness (mean, median, 95 %, largest)"));
  EXPECT_THAT(lines[1], HasSubstr("1.26, 1, 2, 7"));
  EXPECT_EQ(Json::parse(ComparisonJson({run}, 90))["modes"][0]["staleness"]["mean"], 1.256);
}

TEST(ComparisonTest, JsonHasTheTableAndEveryEvaluation) {
  const Json json = Json::parse(ComparisonJson({Trained("loss", 4)}, 4));
  EXPECT_EQ(json["target"], 4);
  EXPECT_EQ(json["modes"][0]["samplesPerSecond"], 15);
  EXPECT_EQ(json["modes"][0]["secondsToTarget"], 1);
  EXPECT_EQ(json["modes"][0]["evaluations"].size(), 2u);
  EXPECT_TRUE(Json::parse(ComparisonJson({}, std::nullopt))["target"].is_null());
}

TEST(AxisMarksTest, AreRoundAndCoverTheValues) {
  EXPECT_THAT(AxisMarks(0, 100, 6), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(AxisMarks(0, 3.1, 6), ElementsAre(0, 1, 2, 3, 4));
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{
           {0, 0}, {5, 5}, {-3, 7e9}, {0.11, 0.12}, {97.1, 98.4}, {1e-9, 2e-9}}) {
    const std::vector<double> marks = AxisMarks(low, high, 6);
    ASSERT_GE(marks.size(), 2u);
    EXPECT_LE(marks.size(), 8u);
    EXPECT_LE(marks.front(), low + 1e-12);
    EXPECT_GE(marks.back(), high - 1e-12);
  }
}

TEST(PlotModesTest, HasOneLinePerModeAndPanel) {
  const std::string svg = PlotModes({Trained("accuracy", 90), Trained("accuracy", 80)});
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 4u);
  EXPECT_THAT(svg, HasSubstr("accuracy, %, by seconds of training"));
  EXPECT_THAT(PlotModes({}), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace sluice::cli
