#include "cli/local/job_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "cli/common/job_result.h"
#include "services/manifest/manifest.h"
#include "services/manifest/resume.h"

namespace sluice::local {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kManifest[] = R"(
apiVersion: sluice.dev/v1alpha1
kind: TrainingJob
metadata: {name: example}
spec:
  model: {name: mlp}
  data: {format: Synthetic, synthetic: {samples: 100, shape: [4], classes: 2}}
  optimizer: {name: SGD, learningRate: 0.1}
  training: {steps: 10}
)";

api::TrainingJob Job(const std::vector<std::pair<std::string, std::string>>& replace = {}) {
  std::string text = kManifest;
  for (const auto& [from, to] : replace) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
  const api::ParsedManifest parsed = api::ParseManifest(text, "");
  for (const api::Problem& problem : parsed.problems) ADD_FAILURE() << problem.ToString("job.yaml");
  return parsed.job;
}

class JobDirectoryTest : public ::testing::Test {
 protected:
  JobDirectoryTest()
      : state_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                            ::testing::UnitTest::GetInstance()->current_test_info()->name())),
        files_(MakeRealFileSystem()),
        directory_(files_.get(), state_, "example") {}

  const std::string state_;
  const std::unique_ptr<FileSystem> files_;
  JobDirectory directory_;
};

TEST_F(JobDirectoryTest, RefusesASecondLockAndNamesTheHolder) {
  auto lock = directory_.Lock();
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(directory_.LockedBy(), getpid());
  JobDirectory other(files_.get(), state_, "example");
  const auto refused = other.Lock();
  EXPECT_TRUE(absl::IsAborted(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr(absl::StrCat("pid ", getpid())));
  EXPECT_TRUE(JobDirectory(files_.get(), state_, "another").Lock().ok());
  *lock = nullptr;
  EXPECT_EQ(directory_.LockedBy(), std::nullopt);
  EXPECT_TRUE(other.Lock().ok());
}

TEST_F(JobDirectoryTest, TheLockOfAKilledProcessIsFree) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    [[maybe_unused]] const auto lock = directory_.Lock();
    (void)!write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(directory_.LockedBy(), child);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(directory_.LockedBy(), std::nullopt);
  EXPECT_TRUE(directory_.Lock().ok());
}

TEST_F(JobDirectoryTest, AFreeLockCanBeTaken) {
  for (int round = 0; round < 1000; ++round) {
    absl::Notification held;
    std::thread holder([&] {
      auto lock = JobDirectory(files_.get(), state_, "example").Lock();
      EXPECT_TRUE(lock.ok()) << lock.status();
      held.Notify();
    });
    held.WaitForNotification();
    while (directory_.LockedBy().has_value()) {
    }
    const auto lock = directory_.Lock();
    EXPECT_TRUE(lock.ok()) << lock.status() << " in round " << round;
    holder.join();
  }
}

TEST_F(JobDirectoryTest, LockedByDoesNotTakeTheLock) {
  ASSERT_TRUE(directory_.Lock().ok());
  std::atomic<bool> ended = false;
  std::thread asking([&] {
    JobDirectory other(files_.get(), state_, "example");
    while (!ended) other.LockedBy();
  });
  for (int round = 0; round < 1000; ++round) {
    const auto lock = directory_.Lock();
    EXPECT_TRUE(lock.ok()) << lock.status() << " in round " << round;
  }
  ended = true;
  asking.join();
}

TEST_F(JobDirectoryTest, NamesADirectoryThatCannotBeCreated) {
  const std::string file = absl::StrCat(state_, "-file");
  std::ofstream(file) << "not a directory";
  JobDirectory below(files_.get(), file, "example");
  const auto lock = below.Lock();
  EXPECT_FALSE(lock.ok());
  EXPECT_FALSE(absl::IsAborted(lock.status()));
  EXPECT_THAT(lock.status().message(), HasSubstr(file));
}

TEST_F(JobDirectoryTest, ReadsAJobBackUnchanged) {
  ASSERT_TRUE(directory_.Lock().ok());
  EXPECT_TRUE(absl::IsNotFound(directory_.ReadJob().status()));
  api::TrainingJob job = Job();
  job.spec.set_uid("some-uid");
  ASSERT_TRUE(directory_.WriteJob(job).ok());
  const auto read = directory_.ReadJob();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->spec.uid(), "some-uid");
  EXPECT_THAT(api::CompareJobs(*read, job), IsEmpty());
}

TEST_F(JobDirectoryTest, NamesADamagedFile) {
  ASSERT_TRUE(directory_.Lock().ok());
  std::ofstream(JoinPath(directory_.path(), "job.json")) << "{\"half";
  const auto read = directory_.ReadJob();
  EXPECT_TRUE(absl::IsDataLoss(read.status()));
  EXPECT_THAT(read.status().message(), HasSubstr("job.json"));
}

// A process may print its termination message in any encoding.
TEST_F(JobDirectoryTest, KeepsAReasonThatIsNotUtf8) {
  ASSERT_TRUE(directory_.Lock().ok());
  cli::JobResult result;
  result.outcome.reason = "no such file: caf\xe9";
  ASSERT_TRUE(directory_.WriteResult(result).ok());
  const auto read = directory_.ReadResult();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->outcome.reason, HasSubstr("no such file: caf"));
}

TEST_F(JobDirectoryTest, RejectsAFileThatIsNestedTooDeeply) {
  ASSERT_TRUE(directory_.Lock().ok());
  std::ofstream(JoinPath(directory_.path(), "job.json"))
      << "{\"spec\": " << std::string(300'000, '[') << std::string(300'000, ']') << "}";
  EXPECT_THAT(directory_.ReadJob().status().message(), HasSubstr("nested"));
}

TEST_F(JobDirectoryTest, RequestedSizesAreTakenOnceAndTheNewestCounts) {
  JobDirectory& directory = directory_;
  ASSERT_TRUE(directory.Prepare().ok());
  EXPECT_FALSE(directory.TakeRequestedSizes().has_value());
  ASSERT_TRUE(directory.RequestSizes({2, 3}).ok());
  ASSERT_TRUE(directory.RequestSizes({4, 5}).ok());
  EXPECT_TRUE(directory.HasRequestedSizes());
  const std::optional<Sizes> sizes = directory.TakeRequestedSizes();
  ASSERT_TRUE(sizes.has_value());
  EXPECT_EQ(sizes->shards, 4u);
  EXPECT_EQ(sizes->workers, 5u);
  EXPECT_FALSE(directory.HasRequestedSizes());
  EXPECT_FALSE(directory.TakeRequestedSizes().has_value());

  for (const char* damaged : {"", "{}", R"({"shards":0,"workers":1})", R"({"shards":-1})",
                              R"({"shards":-1,"workers":2})"}) {
    std::ofstream(directory.run() + "/sizes.json") << damaged;
    EXPECT_FALSE(directory.TakeRequestedSizes().has_value()) << damaged;
    EXPECT_FALSE(directory.HasRequestedSizes()) << damaged;
  }
  // A new run does not take a request that was made to an earlier one.
  ASSERT_TRUE(directory.RequestSizes({2, 3}).ok());
  ASSERT_TRUE(directory.Prepare().ok());
  EXPECT_FALSE(directory.HasRequestedSizes());
}

TEST_F(JobDirectoryTest, ReadsResultsBack) {
  ASSERT_TRUE(directory_.Lock().ok());
  cli::JobResult result;
  result.outcome.kind = policy::OutcomeKind::kFailed;
  result.outcome.reason = "the disk is full";
  result.ended = absl::FromUnixSeconds(1'767'225'600);
  result.progress.set_step(7);
  result.progress.set_samples(448);
  result.progress.set_total_samples(4480);
  result.progress.set_epoch(0.5);
  v1::Evaluation& evaluation = *result.progress.mutable_last_evaluation();
  evaluation.set_step(6);
  evaluation.set_loss(0.25);
  evaluation.set_has_accuracy(true);
  evaluation.set_accuracy(98.5);
  evaluation.set_has_perplexity(true);
  evaluation.set_perplexity(162.5);
  ASSERT_TRUE(directory_.WriteResult(result).ok());
  const auto read = directory_.ReadResult();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->outcome.kind, policy::OutcomeKind::kFailed);
  EXPECT_EQ(read->outcome.reason, "the disk is full");
  EXPECT_EQ(read->ended, result.ended);
  EXPECT_EQ(read->progress.SerializeAsString(), result.progress.SerializeAsString());
  const absl::StatusOr<std::string> text =
      files_->Read(JoinPath(directory_.path(), "result.json"), 1 << 16);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(*text, HasSubstr("\"outcome\": \"Failed\""));
  EXPECT_THAT(*text, HasSubstr("\"time\": \"2026-01-01T00:00:00+00:00\""));
  EXPECT_THAT(*text, HasSubstr("\"accuracy\": 98.5"));
  ASSERT_TRUE(directory_.RemoveResult().ok());
  EXPECT_TRUE(directory_.RemoveResult().ok());
  EXPECT_TRUE(absl::IsNotFound(directory_.ReadResult().status()));
}

// It has the run's secret.
TEST_F(JobDirectoryTest, FilesOfARunAreOfTheUserAloneAndRemovedAtTheEnd) {
  const auto lock = directory_.Lock();
  ASSERT_TRUE(directory_.Prepare().ok());
  EXPECT_EQ(std::filesystem::status(directory_.run()).permissions(),
            std::filesystem::perms::owner_all);
  ASSERT_TRUE(
      AtomicWriteFile(files_.get(), directory_.SecretFile(), absl::Cord("secret"), "t").ok());
  ASSERT_TRUE(directory_.RemoveRun().ok());
  EXPECT_FALSE(*files_->Exists(directory_.run()));
  EXPECT_TRUE(directory_.RemoveRun().ok());
  EXPECT_TRUE(directory_.Prepare().ok());
}

TEST_F(JobDirectoryTest, ClearingRemovesEverythingButTheLock) {
  const auto lock = directory_.Lock();
  ASSERT_TRUE(directory_.Prepare().ok());
  ASSERT_TRUE(directory_.WriteJob(Job()).ok());
  ASSERT_TRUE(files_->CreateDirectories(JoinPath(directory_.checkpoints(), "claims")).ok());
  const std::string neighbour = JoinPath(state_, "neighbour");
  ASSERT_TRUE(files_->CreateDirectories(neighbour).ok());
  ASSERT_TRUE(directory_.Clear().ok());
  EXPECT_THAT(*files_->List(directory_.path()), ElementsAre("lock"));
  EXPECT_TRUE(*files_->Exists(neighbour));
  EXPECT_EQ(directory_.LockedBy(), getpid());
}

TEST_F(JobDirectoryTest, ListsOnlyDirectoriesThatWereLockedOnce) {
  EXPECT_THAT(ListJobs(files_.get(), state_), IsEmpty());
  ASSERT_TRUE(directory_.Lock().ok());
  ASSERT_TRUE(files_->CreateDirectories(JoinPath(state_, "unrelated")).ok());
  EXPECT_THAT(ListJobs(files_.get(), state_), ElementsAre("example"));
}

TEST_F(JobDirectoryTest, ReadsTheLastLinesOfALog) {
  ASSERT_TRUE(files_->CreateDirectories(state_).ok());
  const std::string log = JoinPath(state_, "log");
  EXPECT_THAT(LastLines(log, 5), IsEmpty());
  {
    std::ofstream file(log);
    for (int i = 0; i < 20000; ++i) file << "line " << i << "\n";
  }
  EXPECT_THAT(LastLines(log, 2), ElementsAre("line 19998", "line 19999"));
  // No partial line, however many lines are requested.
  EXPECT_THAT(LastLines(log, 100000).front(), ::testing::StartsWith("line "));
  std::ofstream(log) << "only";
  EXPECT_THAT(LastLines(log, 2), ElementsAre("only"));
}

TEST_F(JobDirectoryTest, ReadsOnlyLinesOfTheNewestInstance) {
  ASSERT_TRUE(files_->CreateDirectories(state_).ok());
  const std::string log = JoinPath(state_, "log");
  std::ofstream(log) << "first\n";
  const uint64_t from = std::filesystem::file_size(log);
  EXPECT_THAT(LastLines(log, 5, from), IsEmpty());
  std::ofstream(log, std::ios::app) << "second\nthird\n";
  EXPECT_THAT(LastLines(log, 5, from), ElementsAre("second", "third"));
  // The file was truncated meanwhile.
  std::ofstream(log) << "new\n";
  EXPECT_THAT(LastLines(log, 5, from), ElementsAre("new"));
}

TEST(ResumeTest, AllowsChangesOfFieldsThatCheckpointsDoNotDependOn) {
  const std::vector<api::ManifestChange> changes = api::CompareJobs(
      Job(), Job({{"steps: 10", "steps: 20, mode: Asynchronous"},
                  {"learningRate: 0.1", "learningRate: 0.2, weightDecay: 0.01"},
                  {"spec:", "spec:\n  worker: {replicas: 7}\n  backoffLimit: 9"}}));
  ASSERT_FALSE(changes.empty());
  for (const api::ManifestChange& change : changes) EXPECT_TRUE(change.allowed) << change.path;
}

TEST(ResumeTest, RejectsChangesOfFieldsThatCheckpointsDependOn) {
  struct Case {
    const char* from;
    const char* to;
    const char* path;
  };
  const Case cases[] = {
      {"name: mlp", "name: logistic", "spec.model.name"},
      {"learningRate: 0.1", "learningRate: 0.1, momentum: 0.9", "spec.optimizer.momentum"},
      {"name: SGD", "name: Adagrad", "spec.optimizer.name"},
      {"steps: 10", "steps: 10, seed: 5", "spec.training.seed"},
      {"steps: 10", "steps: 10, globalBatchSize: 8", "spec.training.globalBatchSize"},
      {"classes: 2", "classes: 3", "spec.data.synthetic.classes"},
      {"spec:", "spec:\n  parameterServer: {partitions: 3}", "spec.parameterServer.partitions"},
  };
  for (const Case& c : cases) {
    bool named = false;
    for (const api::ManifestChange& change : api::CompareJobs(Job(), Job({{c.from, c.to}}))) {
      named = named || (change.path == c.path && !change.allowed);
    }
    EXPECT_TRUE(named) << c.path;
  }
}

TEST(ResumeTest, AChangeNamesBothValues) {
  const std::vector<api::ManifestChange> changes =
      api::CompareJobs(Job(), Job({{"steps: 10", "steps: 11"}}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].path, "spec.training.steps");
  EXPECT_EQ(changes[0].before, "10");
  EXPECT_EQ(changes[0].after, "11");
}

}  // namespace
}  // namespace sluice::local
