#include "cli/cluster/job_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/cluster/job_text.h"
#include "operator/kube/api_error.h"

namespace sluice::cli {
namespace {

using kube::Json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kUid[] = "job-uid";

// Records the calls of a display as lines.
class FakeDisplay final : public RunDisplay {
 public:
  void OnProcessStarted(const ProcessInstance& instance) override {
    shown.push_back(absl::StrCat("started ", instance.pod));
  }
  void OnProcessEnded(const ProcessInstance& instance, const policy::Exit& exit) override {
    shown.push_back(absl::StrCat("ended ", instance.pod, ": ", policy::ExitText(exit)));
  }
  void OnProgress(const v1::JobProgress& now, const std::string& words) override {
    progress = now;
    state = words;
    for (const v1::Event& event : now.events()) shown.push_back(event.message());
  }
  void OnLogLine(absl::string_view, absl::string_view) override {}
  void OnTick(const std::map<policy::Replica, ProcessState>& now) override { processes = now; }
  void Note(absl::string_view text) override { shown.push_back(absl::StrCat("note: ", text)); }
  void Stopping() override {}
  void Detached(const std::vector<std::string>&) override {}
  void Finish(const SummaryFacts&, int, const std::vector<std::string>&) override {}

  std::vector<std::string> shown;
  v1::JobProgress progress;
  std::string state;
  std::map<policy::Replica, ProcessState> processes;
};

Json Condition(const std::string& type, const std::string& reason, const std::string& message) {
  return {{"type", type}, {"status", "True"}, {"reason", reason}, {"message", message}};
}

Json Job(const std::string& summary, uint64_t step, std::vector<Json> conditions = {}) {
  conditions.push_back(Condition("Accepted", "Valid", ""));
  return {{"metadata", {{"name", "mnist"}, {"namespace", "team"}, {"uid", kUid}}},
          {"status",
           {{"summary", summary},
            {"attempt", 2},
            {"training", {{"step", step}, {"totalSteps", 1000}, {"samples", step * 64}}},
            {"conditions", std::move(conditions)}}}};
}

Json Pod(const std::string& process, const std::string& role, const std::string& uid,
         const Json& state) {
  const size_t dash = process.rfind('-');
  return {{"metadata",
           {{"name", "mnist-" + process},
            {"namespace", "team"},
            {"uid", uid},
            {"labels",
             {{"sluice.dev/role", role},
              {"sluice.dev/index", dash == std::string::npos ? "" : process.substr(dash + 1)}}},
            {"ownerReferences", {{{"uid", kUid}, {"controller", true}}}}}},
          {"spec", {{"nodeName", "node-a"}}},
          {"status", {{"containerStatuses", {{{"name", role}, {"state", state}}}}}}};
}

Json Running() { return {{"running", {{"startedAt", "2026-01-01T00:00:00Z"}}}}; }
Json Killed() {
  return {{"terminated",
           {{"exitCode", 137}, {"reason", "OOMKilled"}, {"finishedAt", "2026-01-01T00:01:00Z"}}}};
}

Json Event(const std::string& uid, const std::string& type, const std::string& reason,
           const std::string& message) {
  return {{"metadata", {{"uid", uid}}},
          {"involvedObject", {{"uid", kUid}}},
          {"type", type},
          {"reason", reason},
          {"message", message}};
}

class JobFollowerTest : public ::testing::Test {
 protected:
  explicit JobFollowerTest(bool is_new = true) {
    JobFollower::Options options;
    options.uid = kUid;
    options.is_new = is_new;
    options.begin = now_;
    follower_.emplace(options, &display_);
  }

  void TakeJob(Json job) {
    JobNews news;
    news.job_listed = true;
    news.job = std::move(job);
    follower_->Take(std::move(news), now_);
  }
  void TakePods(std::vector<Json> pods) {
    JobNews news;
    news.pods = std::move(pods);
    follower_->Take(std::move(news), now_);
  }
  void TakeEvents(std::vector<Json> before, std::vector<Json> events) {
    JobNews news;
    news.old_events = std::move(before);
    news.events = std::move(events);
    follower_->Take(std::move(news), now_);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  FakeDisplay display_;
  std::optional<JobFollower> follower_;
};

class FollowerOfAnOldJobTest : public JobFollowerTest {
 protected:
  FollowerOfAnOldJobTest() : JobFollowerTest(false) {}
};

TEST_F(JobFollowerTest, StatusBecomesProgress) {
  TakeJob(Job("Training", 250));
  EXPECT_EQ(display_.progress.phase(), v1::JobProgress::TRAINING);
  EXPECT_EQ(display_.progress.step(), 250u);
  EXPECT_EQ(display_.progress.attempt(), 2u);
  EXPECT_EQ(display_.progress.total_samples(), 64000u);
  EXPECT_EQ(display_.state, "");
  EXPECT_FALSE(follower_->outcome().has_value());
}

TEST_F(JobFollowerTest, StateShowsWhatPodsWaitFor) {
  TakeJob(Job("Unschedulable", 0, {Condition("Degraded", "Unschedulable", "mnist-ps-0: no node")}));
  EXPECT_EQ(display_.state, "waiting: Unschedulable (mnist-ps-0: no node)");
}

TEST_F(JobFollowerTest, ShowsEachEvaluationOnce) {
  Json job = Job("Training", 250);
  job["status"]["training"]["evaluation"] = {
      {"step", 200}, {"epoch", 1}, {"loss", 0.5}, {"samples", 100}, {"accuracy", 97.5}};
  TakeJob(job);
  TakeJob(job);
  job["status"]["training"]["evaluation"]["step"] = 300;
  TakeJob(job);
  EXPECT_THAT(display_.shown,
              ElementsAre("Step 200 (epoch 1.00): accuracy 97.50 %, loss 0.5000 on 100 samples",
                          "Step 300 (epoch 1.00): accuracy 97.50 %, loss 0.5000 on 100 samples"));
}

TEST_F(JobFollowerTest, ShowsEachEventOnce) {
  TakeJob(Job("Starting", 0));
  TakeEvents({Event("1", "Normal", "Training", "training continues from step 0")}, {});
  TakeEvents({}, {Event("1", "Normal", "Training", "training continues from step 0"),
                  Event("2", "Warning", "WorkerFailed", "mnist-worker-0: OOMKilled")});
  Json of_another = Event("3", "Normal", "Training", "of an earlier job of this name");
  of_another["involvedObject"]["uid"] = "other";
  TakeEvents({}, {of_another});
  EXPECT_THAT(display_.shown, ElementsAre("training continues from step 0",
                                          "WorkerFailed: mnist-worker-0: OOMKilled"));
}

TEST_F(JobFollowerTest, EventBeforeTheJobIsShownWithIt) {
  TakeEvents({}, {Event("1", "Normal", "Training", "training continues from step 0")});
  EXPECT_THAT(display_.shown, IsEmpty());
  TakeJob(Job("Starting", 0));
  EXPECT_THAT(display_.shown, ElementsAre("training continues from step 0"));
}

TEST_F(JobFollowerTest, ShowsPodsAsProcessesWithStates) {
  TakeJob(Job("Training", 1));
  TakePods({Pod("worker-0", "worker", "a", Running()), Pod("ps-0", "ps", "b", Running())});
  EXPECT_EQ((display_.processes[{v1::WORKER, 0}].text), "starting on node-a");
  TakePods({Pod("worker-0", "worker", "a", Killed()), Pod("ps-0", "ps", "b", Running())});
  EXPECT_THAT((display_.processes[{v1::WORKER, 0}].text), HasSubstr("OOMKilled"));
  TakePods({Pod("worker-0", "worker", "c", Running()), Pod("ps-0", "ps", "b", Running())});
  EXPECT_THAT(display_.shown,
              ElementsAre("started mnist-ps-0", "started mnist-worker-0",
                          "ended mnist-worker-0: OOMKilled, killed by signal 9 (Killed)",
                          "started mnist-worker-0"));
}

TEST_F(JobFollowerTest, IgnoresPodsOfEarlierJobOfTheSameName) {
  TakeJob(Job("Starting", 0));
  Json pod = Pod("worker-0", "worker", "a", Running());
  pod["metadata"]["ownerReferences"][0]["uid"] = "other";
  TakePods({pod});
  EXPECT_THAT(display_.processes, IsEmpty());
}

TEST_F(JobFollowerTest, SucceededJobHasEnded) {
  TakeJob(Job("Succeeded", 1000, {Condition("Succeeded", "Completed", "")}));
  ASSERT_TRUE(follower_->outcome().has_value());
  EXPECT_EQ(follower_->outcome()->kind, policy::OutcomeKind::kSucceeded);
}

TEST_F(JobFollowerTest, FailureHasReasonAndBlamedProcess) {
  Json job = Job("Failed", 10, {Condition("Failed", "NeverReady", "worker-1 never became ready")});
  job["status"]["lastFailures"] = {{{"pod", "mnist-worker-0"}}};
  TakeJob(job);
  ASSERT_TRUE(follower_->outcome().has_value());
  EXPECT_EQ(follower_->outcome()->kind, policy::OutcomeKind::kFailed);
  EXPECT_EQ(follower_->outcome()->code, "NeverReady");
  EXPECT_EQ(follower_->outcome()->reason, "worker-1 never became ready");
  EXPECT_EQ(policy::ReplicaName(*follower_->outcome()->blamed), "worker-1");
}

TEST_F(JobFollowerTest, FailureBlamesTheProcessThatItsMessageNames) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"ps-0: learning rate is not finite", "ps-0"},
      {"201 workers died within 10m; the last, worker-3: exit code 1", "worker-3"},
      {"the job was active for longer than its activeDeadlineSeconds", ""},
  };
  for (const auto& [message, blamed] : cases) {
    Json job = Job("Failed", 10, {Condition("Failed", "Reason", message)});
    job["status"]["lastFailures"] = {{{"pod", "mnist-worker-0"}}};
    const std::optional<policy::Outcome> outcome = OutcomeOf(job);
    ASSERT_TRUE(outcome.has_value());
    EXPECT_EQ(outcome->blamed.has_value() ? policy::ReplicaName(*outcome->blamed) : "", blamed);
  }
}

TEST_F(JobFollowerTest, SuspendedJobHasEndedOnceNothingRuns) {
  Json job = Job("Suspending", 10);
  job["spec"]["suspend"] = true;
  TakeJob(job);
  EXPECT_FALSE(follower_->outcome().has_value());
  EXPECT_EQ(display_.state, "checkpointing and suspending");
  job["status"]["conditions"].push_back(Condition("Suspended", "Suspended", ""));
  TakeJob(job);
  ASSERT_TRUE(follower_->outcome().has_value());
  EXPECT_EQ(follower_->outcome()->kind, policy::OutcomeKind::kSuspended);
}

TEST_F(JobFollowerTest, OldSuspendedConditionDoesNotEndResumedJob) {
  TakeJob(Job("Suspended", 10, {Condition("Suspended", "Suspended", "")}));
  EXPECT_FALSE(follower_->outcome().has_value());
}

TEST_F(JobFollowerTest, DeletionOrReplacementEndsTheJob) {
  TakeJob(Job("Training", 10));
  TakeJob(Json());
  ASSERT_TRUE(follower_->outcome().has_value());
  EXPECT_EQ(follower_->outcome()->reason, "it was deleted");
  JobFollower::Options options;
  options.uid = "another";
  follower_.emplace(options, &display_);
  TakeJob(Job("Training", 10));
  EXPECT_THAT(follower_->outcome()->reason, HasSubstr("a new job has the same name"));
}

TEST_F(JobFollowerTest, WarnsOnceAboutMissingOperator) {
  Json job = Job("", 0);
  job.erase("status");
  TakeJob(job);
  EXPECT_EQ(display_.state, "waiting for the operator");
  EXPECT_THAT(display_.shown, IsEmpty());
  now_ += absl::Seconds(16);
  TakeJob(job);
  TakeJob(job);
  EXPECT_THAT(display_.shown, ElementsAre(HasSubstr("no operator has accepted the job")));
}

TEST_F(JobFollowerTest, NamesUnreadableResourcesAndShowsTheRest) {
  JobNews news;
  news.problems["events"] = kube::ApiError{
      403,
      "Forbidden",
      "User \"ann\" cannot list resource \"events\"",
      {}}.ToStatus();
  follower_->Take(std::move(news), now_);
  EXPECT_THAT(display_.shown, ElementsAre("note: You may not read events, so they are not shown: "
                                          "User \"ann\" cannot list resource \"events\""));
  TakeJob(Job("Training", 10));
  EXPECT_EQ(display_.progress.step(), 10u);
}

TEST_F(JobFollowerTest, ReportsWatchThatBreaksAndRecovers) {
  JobNews news;
  news.problems["trainingjobs"] = absl::UnavailableError("connection refused");
  follower_->Take(std::move(news), now_);
  news = JobNews();
  news.problems["trainingjobs"] = absl::OkStatus();
  follower_->Take(std::move(news), now_);
  EXPECT_THAT(display_.shown, ElementsAre(HasSubstr("connection refused"),
                                          HasSubstr("Watching trainingjobs again")));
  EXPECT_FALSE(follower_->outcome().has_value());
}

TEST_F(FollowerOfAnOldJobTest, DoesNotShowEarlierEvents) {
  Json job = Job("Training", 250);
  job["status"]["training"]["evaluation"] = {
      {"step", 200}, {"accuracy", 97.5}, {"metrics", {{"auc", 0.5}, {"odd", "text"}}}};
  TakeJob(job);
  TakePods({Pod("worker-0", "worker", "a", Running()), Pod("worker-1", "worker", "b", Killed())});
  TakeEvents({Event("1", "Normal", "Training", "long ago")}, {});
  EXPECT_THAT(display_.shown, IsEmpty());
  TakeEvents({}, {Event("1", "Normal", "Training", "long ago"),
                  Event("2", "Normal", "Training", "just now")});
  TakePods({Pod("worker-0", "worker", "a", Running()), Pod("worker-1", "worker", "c", Running())});
  EXPECT_THAT(display_.shown, ElementsAre("just now", "started mnist-worker-1"));
  EXPECT_EQ(display_.progress.last_evaluation().accuracy(), 97.5);
  ASSERT_EQ(display_.progress.last_evaluation().metrics_size(), 1);
  EXPECT_EQ(display_.progress.last_evaluation().metrics(0).name(), "auc");
  EXPECT_EQ(display_.progress.last_evaluation().metrics(0).value(), 0.5);
}

TEST(JobTextTest, ToleratesMalformedObjects) {
  for (const Json& job :
       {Json(), Json::array(), Json("text"), Json({{"status", 1}}),
        Json({{"status", {{"training", "x"}, {"conditions", 3}, {"lastFailures", {1, 2}}}},
              {"spec", {{"suspend", "yes"}}}})}) {
    EXPECT_FALSE(OutcomeOf(job).has_value());
    EXPECT_EQ(ProgressOf(job).step(), 0u);
    EXPECT_FALSE(StateLine(job).empty());
  }
}

TEST(JobTextTest, StateLineShowsProgressOrOutcome) {
  EXPECT_EQ(StateLine(Job("Training", 250)), "training: step 250 of 1,000 (25 %)");
  Json job = Job("Succeeded", 1000, {Condition("Succeeded", "Completed", "")});
  job["status"]["training"]["metric"] = "accuracy 98.53 %";
  EXPECT_EQ(StateLine(job), "Succeeded at step 1,000 of 1,000, accuracy 98.53 %");
  EXPECT_EQ(StateLine(Job("Failed", 10, {Condition("Failed", "NeverReady", "no data")})),
            "Failed at step 10 of 1,000: no data");
}

}  // namespace
}  // namespace sluice::cli
