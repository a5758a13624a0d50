// docs/metrics.md lists exactly the metrics of the programs.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "operator/operator_metrics.h"
#include "services/common/process/metrics.h"
#include "services/coordinator/coordinator_server.h"
#include "services/ps/shard_server.h"
#include "services/worker/worker_process.h"

namespace sluice {
namespace {

const char* TypeName(MetricDescriptor::Type type) {
  switch (type) {
    case MetricDescriptor::Type::kCounter:
      return "counter";
    case MetricDescriptor::Type::kGauge:
      return "gauge";
    case MetricDescriptor::Type::kHistogram:
      return "histogram";
  }
  return "";
}

std::string TableOf(const std::vector<MetricDescriptor>& metrics) {
  std::string table = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const MetricDescriptor& metric : metrics) {
    std::string labels;
    if (!metric.labels.empty())
      labels = absl::StrCat("`", absl::StrJoin(metric.labels, "`, `"), "` ");
    absl::StrAppend(&table, "| `sluice_", metric.name, "` | ", TypeName(metric.type), " | ", labels,
                    "| ", metric.help, " |\n");
  }
  return table;
}

// The text of the page between "<!-- table: NAME -->" and the next "<!-- end -->".
std::string TableInPage(const std::string& name) {
  std::ifstream file("docs/metrics.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  const std::string begin = absl::StrCat("<!-- table: ", name, " -->\n");
  const size_t from = page.find(begin);
  if (from == std::string::npos) return absl::StrCat("docs/metrics.md has no line ", begin);
  const size_t to = page.find("<!-- end -->", from);
  return page.substr(from + begin.size(), to - from - begin.size());
}

// On failure, the second text is what the page should contain.
TEST(MetricsPage, ListsTheCoordinatorsMetrics) {
  EXPECT_EQ(TableInPage("coordinator"), TableOf(coordinator::CoordinatorMetrics()));
}

TEST(MetricsPage, ListsTheShardsMetrics) {
  EXPECT_EQ(TableInPage("ps"), TableOf(ps::ShardMetrics()));
}

TEST(MetricsPage, ListsTheWorkersMetrics) {
  EXPECT_EQ(TableInPage("worker"), TableOf(worker::WorkerMetrics()));
}

TEST(MetricsPage, ListsTheOperatorsMetrics) {
  EXPECT_EQ(TableInPage("operator"), TableOf(OperatorMetrics()));
}

}  // namespace
}  // namespace sluice
