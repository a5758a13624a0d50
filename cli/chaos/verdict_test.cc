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

Facts Survived() {
  Facts facts;
  facts.job = "example";
  facts.seed = 7;
  facts.repeat = "sluice chaos job.yaml --seed 7";
  facts.logs = "logs";
  facts.run = ReportOf(0.5, absl::Seconds(30));
  facts.run.faults = {Killed()};
  return facts;
}

std::string Report(const Facts& facts) {
  return absl::StrJoin(ReportLines(facts, Judge(facts)), "\n");
}

TEST(VerdictTest, SurvivedFaultsPass) {
  const Verdict verdict = Judge(Survived());
  EXPECT_TRUE(verdict.passed);
  EXPECT_THAT(verdict.problems, IsEmpty());
  EXPECT_EQ(verdict.exit_code(), 0);
}

TEST(VerdictTest, FailedJobFails) {
  Facts facts = Survived();
  facts.run.result.outcome.kind = policy::OutcomeKind::kFailed;
  facts.run.result.outcome.reason = "ps-1 died";
  EXPECT_THAT(Judge(facts).problems, ElementsAre("the job failed: ps-1 died"));
  EXPECT_EQ(Judge(facts).exit_code(), 1);
}

TEST(VerdictTest, StoppedHangFailsAndIsNoInterrupt) {
  Facts facts = Survived();
  facts.run.result.outcome.kind = policy::OutcomeKind::kSuspended;
  facts.run.problem = "the job hangs";
  const Verdict verdict = Judge(facts);
  EXPECT_THAT(verdict.problems, ElementsAre("the job hangs"));
  EXPECT_EQ(verdict.exit_code(), 1);
}

TEST(VerdictTest, InterruptedRunHasNoVerdict) {
  Facts facts = Survived();
  facts.run.result.outcome.kind = policy::OutcomeKind::kSuspended;
  const Verdict verdict = Judge(facts);
  EXPECT_FALSE(verdict.passed);
  EXPECT_EQ(verdict.exit_code(), 130);
  EXPECT_THAT(Report(facts), HasSubstr("Interrupted: no verdict"));
  EXPECT_EQ(ReportJson(facts, verdict)["verdict"], "Interrupted");
}

// A run without faults proves nothing.
TEST(VerdictTest, RunWithoutFaultsFails) {
  Facts facts = Survived();
  facts.run.faults.clear();
  EXPECT_THAT(Judge(facts).problems,
              ElementsAre(HasSubstr("no fault was injected: the job ended after 30.0 s")));
}

TEST(VerdictTest, BaselineThatFailsIsTheWholeReport) {
  Facts facts = Survived();
  facts.run = RunReport();
  facts.baseline = ReportOf(0.5, absl::Seconds(20));
  facts.baseline->result.outcome.kind = policy::OutcomeKind::kFailed;
  facts.baseline->result.outcome.reason = "worker-0: no data";
  const Verdict verdict = Judge(facts);
  EXPECT_THAT(verdict.problems, ElementsAre("without faults, the job failed: worker-0: no data"));
  EXPECT_EQ(verdict.exit_code(), 1);
  EXPECT_THAT(Report(facts), Not(HasSubstr("steps/s")));
  EXPECT_FALSE(ReportJson(facts, verdict).contains("run"));
  EXPECT_EQ(ReportJson(facts, verdict)["baseline"]["outcome"], "Failed");

  facts.baseline->result.outcome.kind = policy::OutcomeKind::kSuspended;
  EXPECT_EQ(Judge(facts).exit_code(), 130);
}

TEST(VerdictTest, OtherBytesThanTheBaselinesFail) {
  Facts facts = Survived();
  facts.baseline = ReportOf(0.5, absl::Seconds(20));
  facts.comparison = Comparison();
  facts.comparison->tensors = 4;
  EXPECT_TRUE(Judge(facts).passed);
  EXPECT_THAT(Report(facts), HasSubstr("all bytes of 4 tensors"));
  facts.comparison->difference = "tensor weight differs";
  EXPECT_THAT(Judge(facts).problems, ElementsAre("tensor weight differs"));
  EXPECT_THAT(Report(facts), HasSubstr("Failed: tensor weight differs"));
  EXPECT_THAT(Report(facts), Not(HasSubstr("all bytes")));
}

TEST(VerdictTest, ToleranceLimitsTheFinalLoss) {
  Facts facts = Survived();
  facts.baseline = ReportOf(0.4, absl::Seconds(20));
  EXPECT_TRUE(Judge(facts).passed);  // any loss passes
  facts.tolerance = 26;
  EXPECT_TRUE(Judge(facts).passed);
  facts.tolerance = 24;
  EXPECT_THAT(Judge(facts).problems,
              ElementsAre("the final loss 0.5000 is more than 24 % above the baseline's 0.4000"));
  facts.run.result.progress.mutable_last_evaluation()->set_loss(0.1);
  EXPECT_TRUE(Judge(facts).passed);  // a lower loss is no fault
}

TEST(VerdictTest, NegativeLossIsComparedTheSameWay) {
  Facts facts = Survived();
  facts.baseline = ReportOf(-0.4, absl::Seconds(20));
  facts.tolerance = 10;
  facts.run.result.progress.mutable_last_evaluation()->set_loss(-0.39);
  EXPECT_TRUE(Judge(facts).passed);
  facts.run.result.progress.mutable_last_evaluation()->set_loss(-0.3);
  EXPECT_FALSE(Judge(facts).passed);
}

TEST(VerdictTest, LossThatIsNoNumberFails) {
  Facts facts = Survived();
  facts.baseline = ReportOf(0.4, absl::Seconds(20));
  facts.tolerance = 1000;
  facts.run.result.progress.mutable_last_evaluation()->set_loss(std::nan(""));
  EXPECT_FALSE(Judge(facts).passed);
}

TEST(VerdictTest, ReportHasTableAndSpeeds) {
  Facts facts = Survived();
  facts.baseline = ReportOf(0.4, absl::Seconds(20));
  facts.run.unexplained = {"worker-0: exit code 3"};
  const std::string report = Report(facts);
  EXPECT_THAT(report, HasSubstr("Faults of seed 7\n"));
  EXPECT_THAT(report, HasSubstr("  1  12.3 s  kill ps-1      120      2.6 s          -         -"
                                "          2.7 s  1,234 samples\n"));
  EXPECT_THAT(report, HasSubstr("steps/s      10 with faults, 15 without (67 %)"));
  EXPECT_THAT(report, HasSubstr("worker-0: exit code 3"));
  EXPECT_THAT(report, HasSubstr("repeat       sluice chaos job.yaml --seed 7"));
  EXPECT_THAT(report, HasSubstr("Passed: example survived 1 fault"));
}

TEST(VerdictTest, JsonHasTheSameNumbers) {
  Facts facts = Survived();
  facts.baseline = ReportOf(0.4, absl::Seconds(20));
  facts.comparison = Comparison();
  const nlohmann::json json = ReportJson(facts, Judge(facts));
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
