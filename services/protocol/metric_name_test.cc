#include "services/protocol/metric_name.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(MetricName, IsALabelOfPrometheus) {
  for (const char* good : {"auc", "F1", "val_auc_2", "x"}) {
    EXPECT_TRUE(CheckMetricName(good).ok()) << good;
  }
  EXPECT_TRUE(CheckMetricName(std::string(63, 'a')).ok());
  for (const std::string& bad :
       {std::string(), std::string("1st"), std::string("_auc"), std::string("val/auc"),
        std::string("a b"), std::string("ä"), std::string("\xff"), std::string(64, 'a')}) {
    EXPECT_THAT(std::string(CheckMetricName(bad).message()), HasSubstr("1 to 63 letters")) << bad;
  }
}

TEST(MetricName, IsNotBuiltIn) {
  for (const char* name : {"loss", "accuracy", "perplexity"}) {
    EXPECT_THAT(std::string(CheckMetricName(name).message()), HasSubstr("another name"));
  }
}

TEST(MetricName, OfJobIsOneThatItsEvaluationsHave) {
  v1::Ready ready;
  ready.add_metrics("auc");
  ready.add_metrics("f1");
  v1::JobSpec job;
  EXPECT_TRUE(CheckMetricsOfJob(job, ready).ok()) << "no field names a metric";
  job.mutable_training()->mutable_target()->set_metric("accuracy");
  job.mutable_training()->mutable_stopping()->set_metric("auc");
  EXPECT_TRUE(CheckMetricsOfJob(job, ready).ok());

  job.mutable_checkpoint()->mutable_keep_best()->set_metric("auroc");
  EXPECT_THAT(
      std::string(CheckMetricsOfJob(job, ready).message()),
      HasSubstr("checkpoint.keepBest.metric is auroc, and the program's evaluations have no "
                "such metric: they have loss, accuracy, perplexity, auc, f1."));
  EXPECT_FALSE(CheckMetricsOfJob(job, v1::Ready()).ok());
}

}  // namespace
}  // namespace sluice
