#include "operator/operator_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

using kube::Json;
using ::testing::HasSubstr;

constexpr char kLost[] = "2026-01-01T00:00:00Z";

class OperatorMeterTest : public ::testing::Test {
 protected:
  // A status in which these conditions have been true since kLost.
  static Json Status(const std::vector<std::string>& conditions,
                     const std::vector<Json>& failures = {}) {
    Json status = {{"conditions", Json::array()}, {"lastFailures", failures}};
    for (const std::string& type : conditions) {
      status["conditions"].push_back(
          {{"type", type}, {"status", "True"}, {"lastTransitionTime", kLost}});
    }
    return status;
  }
  static Json Failure(const std::string& role, const std::string& time = kLost) {
    return {{"role", role}, {"reason", "Killed"}, {"time", time}};
  }
  std::string Line(const std::string& series) {
    const std::string text = metrics_.Serialize();
    const size_t begin = text.find("\n" + series + " ");
    if (begin == std::string::npos) return "";
    return text.substr(begin + 1, text.find('\n', begin + 1) - begin - 1);
  }

  const kube::ObjectKey job_{"ns", "a"};
  FakeClock clock_{kube::DecodeTime("2026-01-01T00:00:12Z")};
  Metrics metrics_{OperatorMetrics(), {}};
  OperatorMeter meter_{&metrics_, &clock_};
};

TEST_F(OperatorMeterTest, LabelsARecoveryWithTheLostRole) {
  meter_.OnStatus(job_,
                  Status({"Degraded"}, {Failure("ps"), Failure("worker", "2025-12-31T23:00:00Z")}),
                  Status({}));
  EXPECT_EQ(Line("sluice_operator_recovery_seconds_count{role=\"ps\"}"),
            "sluice_operator_recovery_seconds_count{role=\"ps\"} 1");
  EXPECT_EQ(Line("sluice_operator_recovery_seconds_sum{role=\"ps\"}"),
            "sluice_operator_recovery_seconds_sum{role=\"ps\"} 12");
  EXPECT_EQ(Line("sluice_operator_recovery_seconds_count{role=\"worker\"}"),
            "sluice_operator_recovery_seconds_count{role=\"worker\"} 0")
      << "that process was lost earlier and is not part of this recovery";
}

TEST_F(OperatorMeterTest, SeriesOfAllRolesExistFromTheStart) {
  for (const char* role : {"coordinator", "ps", "worker"}) {
    EXPECT_THAT(metrics_.Serialize(),
                HasSubstr(std::string("recovery_seconds_count{role=\"") + role + "\"} 0"));
  }
}

TEST_F(OperatorMeterTest, CountsNoRecoveryWithoutALossOrBeforeItsEnd) {
  meter_.OnStatus(job_, Status({"Degraded"}), Status({}));  // because of a quota, for example
  meter_.OnStatus(job_, Status({"Degraded"}, {Failure("ps")}),
                  Status({"Degraded"}, {Failure("ps")}));
  meter_.OnStatus(job_, Status({"Degraded"}, {Failure("ps")}), Status({"Failed"}));
  EXPECT_EQ(Line("sluice_operator_recovery_seconds_count{role=\"ps\"}"),
            "sluice_operator_recovery_seconds_count{role=\"ps\"} 0");
}

TEST_F(OperatorMeterTest, MeasuresScalingFromTheChangeToTheLastProcess) {
  meter_.OnStatus(job_, Status({"Scaling"}), Status({}));
  EXPECT_EQ(Line("sluice_operator_scale_seconds_sum"), "sluice_operator_scale_seconds_sum 12");
}

TEST_F(OperatorMeterTest, CountsAnExitOnce) {
  meter_.OnStatus(job_, Status({}), Status({"Succeeded"}));
  meter_.OnStatus(job_, Status({"Succeeded"}), Status({"Succeeded"}));
  EXPECT_EQ(Line("sluice_operator_jobs_finished_total{outcome=\"Succeeded\"}"),
            "sluice_operator_jobs_finished_total{outcome=\"Succeeded\"} 1");
}

TEST_F(OperatorMeterTest, CountsOnlyNewExitsOfPods) {
  meter_.OnStatus(job_, Status({}), Status({}, {Failure("worker")}));
  meter_.OnStatus(job_, Status({}, {Failure("worker")}),
                  Status({}, {Failure("worker", "2026-01-01T00:00:05Z"), Failure("worker")}));
  EXPECT_EQ(Line("sluice_operator_pod_failures_total{reason=\"Killed\",role=\"worker\"}"),
            "sluice_operator_pod_failures_total{reason=\"Killed\",role=\"worker\"} 2");
}

TEST_F(OperatorMeterTest, ShowsProblemsOfJobsWhileTheyLast) {
  runtime::Informer jobs({});
  Json job = {{"metadata", {{"name", "a"}, {"namespace", "ns"}, {"uid", "1"}}},
              {"status", Status({"Degraded"})}};
  job["status"]["conditions"][0]["reason"] = "ImagePullFailed";
  const std::string degraded =
      "sluice_operator_job_problem{condition=\"Degraded\",job_namespace=\"ns\",reason="
      "\"ImagePullFailed\",training_job=\"a\"}";
  jobs.Replace({job});
  meter_.Update(jobs, 0, 0, true, 0, 0);
  EXPECT_EQ(Line(degraded), degraded + " 1");
  job["status"] = Status({});
  jobs.Replace({job});
  meter_.Update(jobs, 0, 0, true, 0, 0);
  EXPECT_EQ(Line(degraded), "");
}

TEST_F(OperatorMeterTest, ShowsAFailureForAWhileAfterTheJobIsDeleted) {
  Json failed = Status({"Failed"});
  failed["conditions"][0]["reason"] = "TrainingFailed";
  meter_.OnStatus(job_, Status({}), failed);
  const runtime::Informer none({});
  meter_.Update(none, 0, 0, true, 0, 0);
  const std::string series =
      "sluice_operator_job_problem{condition=\"Failed\",job_namespace=\"ns\",reason="
      "\"TrainingFailed\",training_job=\"a\"}";
  EXPECT_EQ(Line(series), series + " 1");
  clock_.Advance(absl::Minutes(31));
  meter_.Update(none, 0, 0, true, 0, 0);
  EXPECT_EQ(Line(series), "");
}

TEST_F(OperatorMeterTest, ShowsTheEarliestExpiryOfAJobsCertificatesWhileItNeedsThem) {
  const std::string series =
      "sluice_operator_job_certificate_expiry_timestamp_seconds{job_namespace=\"ns\",training_job="
      "\"a\"}";
  meter_.OnCertificates(job_, absl::FromUnixSeconds(1700000000));
  EXPECT_EQ(Line(series), series + " 1700000000");
  meter_.OnCertificates(job_, absl::InfiniteFuture());
  EXPECT_EQ(Line(series), "");
}

}  // namespace
}  // namespace sluice
