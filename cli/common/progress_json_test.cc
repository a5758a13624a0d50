#include "cli/common/progress_json.h"

#include <cmath>

#include "gtest/gtest.h"

namespace sluice::cli {
namespace {

TEST(ProgressJson, HasNullForMetricsThatAreNoNumbers) {
  v1::Evaluation evaluation;
  EXPECT_FALSE(EvaluationJson(evaluation).contains("metrics"));
  const auto add = [&](const char* name, double value) {
    v1::Metric& metric = *evaluation.add_metrics();
    metric.set_name(name);
    metric.set_value(value);
  };
  add("auc", 0.5);
  add("f1", std::nan(""));
  add("ratio", INFINITY);
  EXPECT_EQ(EvaluationJson(evaluation)["metrics"].dump(), R"({"auc":0.5,"f1":null,"ratio":null})");
}

}  // namespace
}  // namespace sluice::cli
