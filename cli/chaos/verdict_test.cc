#include "cli/chaos/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/strings/str_join.h"

namespace sluice::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RunReport ReportOf(double loss, absl::Duration training) {
  RunReport run;
  run.result.outcome.kind = policy::OutcomeKind::kSucceeded;
  run.result.progress.mutable_last_evaluation()->set_loss(loss);
  run.began = absl::FromUnixSeconds(1000);
  run.pace.steps = 300;
  run.pace.training = training;
  run.pace.attempts = 1;
  return run;
}

FaultRecord Killed() {
  FaultRecord fault;
  fault.plan.targets = {{v1::SHARD, 1}};
  fault.pids = {4711};
  fault.at = absl::FromUnixSeconds(1000) + absl::Milliseconds(12300);
  fault.step = 120;
  fault.recovered = absl::Milliseconds(2600);
  fault.longest_stall = absl::Milliseconds(2700);
  fault.recomputed_samples = 1234;
  return fault;
}

Findings Survived() {
  Findings findings;
  findings.job = "example";
  findings.seed = 7;
  findings.repeat = "sluice chaos job.yaml --seed 7";
  findings.logs = "logs";
  findings.run = ReportOf(0.5, absl::Seconds(30));
  findings.run.faults = {Killed()};
  return findings;
}

std::string Report(const Findings& findings) {
  return absl::StrJoin(ReportLines(findings, Judge(findings)), "\n");
}

TEST(VerdictTest, SurvivedFaultsPass) {
  const Verdict verdict = Judge(Survived());
  EXPECT_TRUE(verdict.passed);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_EQ(verdict.exit_code(), 0);
}

TEST(VerdictTest, FailedJobFails) {
  Findings findings = Survived();
  findings.run.result.outcome.kind = policy::OutcomeKind::kFailed;
  findings.run.result.outcome.reason = "ps-1 died";
  EXPECT_THAT(Judge(findings).problems, ElementsAre("the job failed: ps-1 died"));
  EXPECT_EQ(Judge(findings).exit_code(), 1);
}

TEST(VerdictTest, StoppedHangFailsAndIsNoInterrupt) {
  Findings findings = Survived();
  findings.run.result.outcome.kind = policy::OutcomeKind::kSuspended;
  findings.run.problem = "the job hangs";
  const Verdict verdict = Judge(findings);
  EXPECT_THAT(verdict.problems, ElementsAre("the job hangs"));
  EXPECT_EQ(verdict.exit_code(), 1);
}

TEST(VerdictTest, InterruptedRunHasNoVerdict) {
  Findings findings = Survived();
  findings.run.result.outcome.kind = policy::OutcomeKind::kSuspended;
  const Verdict verdict = Judge(findings);
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.exit_code(), 130);
  EXPECT_THAT(Report(findings), HasSubstr("Interrupted: no verdict"));
  EXPECT_EQ(ReportJson(findings, verdict)["verdict"], "Interrupted");
}

// A run without faults proves nothing.
TEST(VerdictTest, RunWithoutFaultsFails) {
  Findings findings = Survived();
  findings.run.faults.clear();
  EXPECT_THAT(Judge(findings).problems,
              ElementsAre(HasSubstr("no fault was injected: the job ended after 30.0 s")));
}

TEST(VerdictTest, BaselineThatFailsIsTheWholeReport) {
  Findings findings = Survived();
  findings.run = RunReport();
  findings.baseline = ReportOf(0.5, absl::Seconds(20));
  findings.baseline->result.outcome.kind = policy::OutcomeKind::kFailed;
  findings.baseline->result.outcome.reason = "worker-0: no data";
  const Verdict verdict = Judge(findings);
  EXPECT_THAT(verdict.problems, ElementsAre("without faults, the job failed: worker-0: no data"));
  EXPECT_EQ(verdict.exit_code(), 1);
  EXPECT_THAT(Report(findings), Not(HasSubstr("steps/s")));
  EXPECT_FALSE(ReportJson(findings, verdict).contains("run"));
  EXPECT_EQ(ReportJson(findings, verdict)["baseline"]["outcome"], "Failed");

  findings.baseline->result.outcome.kind = policy::OutcomeKind::kSuspended;
  EXPECT_EQ(Judge(findings).exit_code(), 130);
}

TEST(VerdictTest, OtherBytesThanTheBaselinesFail) {
  Findings findings = Survived();
  findings.baseline = ReportOf(0.5, absl::Seconds(20));
  findings.comparison = Comparison();
  findings.comparison->tensors = 4;
  EXPECT_TRUE(Judge(findings).passed);
  EXPECT_THAT(Report(findings), HasSubstr("all bytes of 4 tensors"));
  findings.comparison->difference = "tensor weight differs";
  EXPECT_THAT(Judge(findings).problems, ElementsAre("tensor weight differs"));
  EXPECT_THAT(Report(findings), HasSubstr("Failed: tensor weight differs"));
  EXPECT_THAT(Report(findings), Not(HasSubstr("all bytes")));
}

TEST(VerdictTest, ToleranceLimitsTheFinalLoss) {
  Findings findings = Survived();
  findings.baseline = ReportOf(0.4, absl::Seconds(20));
  EXPECT_TRUE(Judge(findings).passed);  // any loss passes
  findings.tolerance = 26;
  EXPECT_TRUE(Judge(findings).passed);
  findings.tolerance = 24;
  EXPECT_THAT(Judge(findings).problems,
              ElementsAre("the final loss 0.5000 is more than 24 % above the baseline's 0.4000"));
  findings.run.result.progress.mutable_last_evaluation()->set_loss(0.1);
  EXPECT_TRUE(Judge(findings).passed);  // a lower loss is no fault
}

TEST(VerdictTest, NegativeLossIsComparedTheSameWay) {
  Findings findings = Survived();
  findings.baseline = ReportOf(-0.4, absl::Seconds(20));
  findings.tolerance = 10;
  findings.run.result.progress.mutable_last_evaluation()->set_loss(-0.39);
  EXPECT_TRUE(Judge(findings).passed);
  findings.run.result.progress.mutable_last_evaluation()->set_loss(-0.3);
  EXPECT_FALSE(Judge(findings).passed);
}

TEST(VerdictTest, LossThatIsNoNumberFails) {
  Findings findings = Survived();
  findings.baseline = ReportOf(0.4, absl::Seconds(20));
  findings.tolerance = 1000;
  findings.run.result.progress.mutable_last_evaluation()->set_loss(std::nan(""));
  EXPECT_FALSE(Judge(findings).passed);
}

TEST(VerdictTest, ReportHasTableAndSpeeds) {
  Findings findings = Survived();
  findings.baseline = ReportOf(0.4, absl::Seconds(20));
  findings.run.unexplained = {"worker-0: exit code 3"};
  const std::string report = Report(findings);
  EXPECT_THAT(report, HasSubstr("Faults of seed 7\n"));
  EXPECT_THAT(report, HasSubstr("  1  12.3 s  kill ps-1      120      2.6 s          -         -"
                                "          2.7 s  1,234 samples\n"));
  EXPECT_THAT(report, HasSubstr("steps/s      10 with faults, 15 without (67 %)"));
  EXPECT_THAT(report, HasSubstr("worker-0: exit code 3"));
  EXPECT_THAT(report, HasSubstr("repeat       sluice chaos job.yaml --seed 7"));
  EXPECT_THAT(report, HasSubstr("Passed: example survived 1 fault"));
}

TEST(VerdictTest, JsonHasTheSameNumbers) {
  Findings findings = Survived();
  findings.baseline = ReportOf(0.4, absl::Seconds(20));
  findings.comparison = Comparison();
  const nlohmann::json json = ReportJson(findings, Judge(findings));
  EXPECT_EQ(json["verdict"], "Passed");
  EXPECT_EQ(json["exitCode"], 0);
  EXPECT_EQ(json["seed"], 7);
  EXPECT_EQ(json["parametersEqual"], true);
  EXPECT_EQ(json["run"]["stepsPerSecond"], 10);
  EXPECT_EQ(json["baseline"]["finalLoss"], 0.4);
  ASSERT_EQ(json["faults"].size(), 1u);
  const nlohmann::json fault = json["faults"][0];
  EXPECT_EQ(fault["fault"], "kill ps-1");
  EXPECT_EQ(fault["targets"][0]["pid"], 4711);
  EXPECT_DOUBLE_EQ(fault["seconds"], 12.3);
  EXPECT_DOUBLE_EQ(fault["recoveredSeconds"], 2.6);
  EXPECT_FALSE(fault.contains("caughtUpSeconds"));
}

}  // namespace
}  // namespace sluice::chaos
