#include <algorithm>
#include <csignal>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "absl/time/time.h"
#include "cli/common/run_display.h"
#include "gtest/gtest.h"

namespace sluice::cli {
namespace {

class FixedClock final : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

class TextDisplayTest : public ::testing::Test {
 protected:
  TextDisplayTest() {
    environment.out = &out;
    environment.err = &err;
    environment.clock = &clock;
    display = MakeTextDisplay(environment, {});
  }
  void End(v1::Role role, int code, int signal = 0) {
    policy::Exit exit;
    exit.code = code;
    exit.signal = signal;
    display->OnProcessEnded({{role, 0}, 1, ""}, exit);
  }
  void ShowEvent(const char* message) {
    v1::JobProgress progress;
    v1::Event& event = *progress.add_events();
    event.set_kind(v1::Event::INFO);
    event.set_message(message);
    display->OnProgress(progress, "");
  }

  FixedClock clock;
  std::ostringstream out, err;
  Environment environment;
  std::unique_ptr<RunDisplay> display;
};

TEST_F(TextDisplayTest, FailingJobShowsOnlyItsCause) {
  ShowEvent("training continues");
  End(v1::WORKER, 13);
  End(v1::SHARD, 1);
  display->OnTick({});
  display->OnOutcome(policy::OutcomeKind::kFailed);
  ShowEvent("suspended before training began");
  End(v1::SHARD, 1);
  End(v1::COORDINATOR, 0, SIGTERM);
  EXPECT_EQ(out.str(), "training continues\n");
  // A crash is always reported.
  End(v1::WORKER, 0, SIGSEGV);
  EXPECT_NE(out.str().find("worker-0 ended: killed by signal 11"), std::string::npos) << out.str();
}

TEST_F(TextDisplayTest, EndOfAProcessIsShownIfTheJobGoesOn) {
  End(v1::WORKER, 13);
  display->OnTick({});
  EXPECT_EQ(out.str(), "");
  clock.now += absl::Seconds(1);
  display->OnTick({});
  EXPECT_EQ(out.str(), "worker-0 ended: exit code 13\n");

  End(v1::SHARD, 1);
  display->OnOutcome(policy::OutcomeKind::kSucceeded);
  EXPECT_EQ(out.str(), "worker-0 ended: exit code 13\nps-0 ended: exit code 1\n");
}

TEST_F(TextDisplayTest, ShowsAFailureOnceWithItsRemedy) {
  End(v1::WORKER, 0, SIGKILL);
  v1::JobProgress progress;
  v1::Event& event = *progress.add_events();
  event.set_kind(v1::Event::WARNING);
  event.set_message("worker-0: killed by signal 9 (Killed)");
  display->OnProgress(progress, "");
  EXPECT_EQ(out.str(), "worker-0 ended: killed by signal 9 (Killed)\n");
  const std::string reason = "ps-0: step 1: fc2.bias[0:10]: the gradient is not finite";
  progress.set_phase(v1::JobProgress::FAILED);
  progress.set_reason(reason);
  event.set_message(reason);
  out.str("");
  display->OnProgress(progress, "");
  EXPECT_EQ(out.str(), "");
  SummaryFacts facts;
  facts.name = "job";
  facts.result.outcome.kind = policy::OutcomeKind::kFailed;
  facts.result.outcome.reason = reason;
  facts.result.outcome.blamed = policy::Replica{v1::SHARD, 0};
  display->Finish(facts, 1,
                  {"time=1 level=info msg=\"Control stream closed\" role=ps",
                   "time=1 level=error msg=\"the gradient is not finite\" role=ps"});
  EXPECT_EQ(err.str(),
            "sluice: job job failed: ps-0: step 1: fc2.bias[0:10]: the gradient is not finite\n"
            "Lower the learning rate, set optimizer.clipNorm, look for a division by zero or a "
            "logarithm of 0 in the loss, or let such steps be skipped with training.nonFinite: "
            "Skip.\n");
}

// A job of a few seconds shows its pace, too.
TEST_F(TextDisplayTest, PrintsProgressWhenThePaceIsKnownAndEveryTenSecondsAfterwards) {
  v1::JobProgress progress;
  progress.set_phase(v1::JobProgress::TRAINING);
  const auto lines_at = [&](int64_t seconds) {
    clock.now = absl::FromUnixSeconds(seconds);
    progress.set_step(progress.step() + 1);
    display->OnProgress(progress, "");
    out.str("");
    display->OnTick({});
    const std::string text = out.str();
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines_at(1), 0);
  progress.set_samples_per_second(100);
  EXPECT_EQ(lines_at(2), 1);
  EXPECT_EQ(lines_at(3), 0);
  EXPECT_EQ(lines_at(11), 0);
  EXPECT_EQ(lines_at(12), 1);
}

// The terminal has wrapped the lines, so they take more rows.
TEST_F(TextDisplayTest, ErasesTheWholeViewInANarrowedTerminal) {
  int columns = 81;
  environment.live = true;
  environment.columns = [&] { return columns; };
  display = MakeTextDisplay(environment, {});
  std::map<policy::Replica, ProcessState> processes;
  processes[{v1::WORKER, 0}].text = std::string(100, 'x');  // cut to 80
  display->OnTick(processes);                               // a header line and this line
  out.str("");
  columns = 30;
  display->Note("narrow");
  EXPECT_EQ(out.str(), "\x1b[4A\r\x1b[Jnarrow\n");
}

TEST_F(TextDisplayTest, StoppedJobShowsTheCoordinatorsMessage) {
  display->OnOutcome(policy::OutcomeKind::kSuspended);
  ShowEvent("suspended before training began");
  End(v1::SHARD, 1);
  EXPECT_EQ(out.str(), "suspended before training began\n");
}

TEST_F(TextDisplayTest, HintsOnceAtProgramThatKeepsLeavingItsLoop) {
  for (int i = 0; i < 2; ++i) End(v1::WORKER, 0);
  EXPECT_EQ(out.str(), "");
  for (int i = 0; i < 5; ++i) End(v1::WORKER, 0);
  const std::string hint = "worker-0 has exited with code 0 3 times";
  EXPECT_EQ(out.str().find(hint), 0u) << out.str();
  EXPECT_EQ(out.str().rfind(hint), 0u) << out.str();
}

}  // namespace
}  // namespace sluice::cli
