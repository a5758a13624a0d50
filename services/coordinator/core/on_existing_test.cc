// A job that finds the checkpoints of an earlier job of its name: checkpoint.onExisting, with a
// real storage on a disk that fails and loses unsynced data.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/io/fake_file_system.h"
#include "services/coordinator/core/testing/fake_job.h"

namespace sluice::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

v1::JobSpec Spec(const std::string& uid, v1::CheckpointSpec::OnExisting policy, uint64_t steps) {
  v1::JobSpec spec = FakeJob::Spec();
  spec.set_uid(uid);
  spec.mutable_training()->set_steps(steps);
  spec.mutable_checkpoint()->set_interval_steps(5);
  spec.mutable_checkpoint()->set_on_existing(policy);
  spec.set_backoff_limit(100);
  return spec;
}

// A job and its disk, which a later job may reuse.
class StoredJob {
 public:
  StoredJob(FakeFileSystem* files, v1::JobSpec spec, const std::string& writer = "1")
      : storage_(MakeLocalStorage(files, "/store", writer)), job_(std::move(spec)) {
    job_.storage = storage_.get();
  }

  // Trains as far as possible; the longest of these jobs needs half of these steps.
  FakeJob& Run(int steps = 80) {
    job_.Start();
    for (int step = 0; step < steps && !job_.exit.has_value(); ++step) job_.Train(1);
    return job_;
  }

  CheckpointStorage& storage() { return *storage_; }
  FakeJob& job() { return job_; }

 private:
  std::unique_ptr<CheckpointStorage> storage_;
  FakeJob job_;
};

// Runs the first job, which leaves attempts and checkpoints.
void RunFirst(FakeFileSystem* files, bool to_its_end) {
  StoredJob first(files, Spec("u1", v1::CheckpointSpec::UNSET, 20));
  first.Run(to_its_end ? 80 : 12);
  ASSERT_EQ(first.job().exit.has_value(), to_its_end);
}

std::vector<std::string> Directories(CheckpointStorage& storage) {
  std::vector<std::string> directories;
  const std::vector<v1::CheckpointRef> checkpoints = storage.ListCheckpoints().value();
  for (const v1::CheckpointRef& ref : checkpoints) {
    directories.push_back(CheckpointDirectory(ref));
  }
  return directories;
}

TEST(OnExisting, ReportsFinishedJobOfSameNameAndLeavesItUnchanged) {
  for (const auto policy : {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::FAIL}) {
    FakeFileSystem files;
    RunFirst(&files, /*to_its_end=*/true);
    StoredJob again(&files, Spec("u2", policy, 40));
    const std::vector<std::string> before = Directories(again.storage());
    FakeJob& job = again.Run();
    ASSERT_TRUE(job.exit.has_value());
    EXPECT_EQ(job.exit->reason, ExitReason::kFailed);
    EXPECT_THAT(job.exit->message,
                AllOf(HasSubstr("holds job default/digits/u1, which finished after step 20"),
                      HasSubstr("spec.training.steps 20 -> 40"),
                      HasSubstr("Set checkpoint.onExisting: Resume")));
    EXPECT_EQ(job.Progress().phase(), v1::JobProgress::FAILED);
    EXPECT_EQ(job.Progress().reason_code(), kCheckpointDirectoryInUse);
    EXPECT_EQ(Directories(again.storage()), before);
    EXPECT_EQ(again.storage().ReadClaims()->size(), 2u);
  }
}

TEST(OnExisting, ResumeContinuesFinishedJobFromItsEnd) {
  FakeFileSystem files;
  RunFirst(&files, /*to_its_end=*/true);
  StoredJob again(&files, Spec("u2", v1::CheckpointSpec::RESUME, 40));
  FakeJob& job = again.Run();
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_EQ(job.Progress().step(), 40);
  EXPECT_EQ(job.Progress().reason_code(), "");
  EXPECT_TRUE(job.HasEvent("which finished after step 20"));
  const std::vector<v1::Claim> claims = *again.storage().ReadClaims();
  ASSERT_EQ(claims.size(), 4u);
  EXPECT_TRUE(claims[1].end());
  EXPECT_EQ(claims[2].parent().step(), 20);
  EXPECT_EQ(claims[2].job(), "default/digits/u2");
  EXPECT_TRUE(claims[3].end());

  // The end record is the new job's own: a restarted coordinator succeeds at once.
  StoredJob once_more(&files, Spec("u2", v1::CheckpointSpec::RESUME, 40));
  once_more.Run(1);
  EXPECT_EQ(once_more.job().Progress().phase(), v1::JobProgress::SUCCEEDED);
  EXPECT_EQ(once_more.job().Progress().step(), 40) << "and reports its progress";
}

TEST(OnExisting, ResumeOfFinishedJobReportsThatNothingWasTrained) {
  FakeFileSystem files;
  RunFirst(&files, /*to_its_end=*/true);
  StoredJob again(&files, Spec("u2", v1::CheckpointSpec::RESUME, 20));
  again.Run(1);
  const v1::JobProgress progress = again.job().Progress();
  EXPECT_EQ(progress.phase(), v1::JobProgress::SUCCEEDED);
  EXPECT_EQ(progress.reason_code(), kNothingTrained);
  EXPECT_THAT(progress.reason(), AllOf(HasSubstr("default/digits/u1, which finished after step 20"),
                                       HasSubstr("nothing was trained")));
  EXPECT_EQ(progress.step(), 20);
}

TEST(OnExisting, ContinuesAndNamesUnfinishedJobWithSameSettings) {
  FakeFileSystem files;
  RunFirst(&files, /*to_its_end=*/false);
  StoredJob again(&files, Spec("u2", v1::CheckpointSpec::UNSET, 20));
  FakeJob& job = again.Run();
  ASSERT_TRUE(job.exit.has_value());
  EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded);
  EXPECT_TRUE(job.HasEvent("holds job default/digits/u1, which has not finished"));
  EXPECT_TRUE(again.storage().ReadClaims()->at(1).has_parent());
}

TEST(OnExisting, ReplacedCoordinatorOfSameActivationAlwaysContinues) {
  for (const auto policy : {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::RESUME,
                            v1::CheckpointSpec::FAIL, v1::CheckpointSpec::REPLACE}) {
    FakeFileSystem files;
    StoredJob job(&files, Spec("u1", policy, 20));
    job.Run(12);
    job.job().Kill(*job.job().shards[0], /*reported=*/false);
    job.job().RestartCoordinator();
    job.job().AddShard(0);
    for (int step = 0; step < 40 && !job.job().exit.has_value(); ++step) job.job().Train(1);
    ASSERT_TRUE(job.job().exit.has_value());
    EXPECT_EQ(job.job().exit->reason, ExitReason::kSucceeded);
    const std::vector<v1::Claim> claims = *job.storage().ReadClaims();
    ASSERT_EQ(claims.size(), 3u);
    EXPECT_GE(claims[1].parent().step(), 5u);
  }
}

TEST(OnExisting, ReplacedJobFailsAndNamesItsReplacement) {
  FakeFileSystem files;
  StoredJob first(&files, Spec("u1", v1::CheckpointSpec::REPLACE, 20));
  first.Run(12);
  StoredJob second(&files, Spec("u2", v1::CheckpointSpec::REPLACE, 20), "2");
  second.Run(12);
  first.job().RestartCoordinator();
  first.job().Pass(absl::Seconds(1));
  ASSERT_TRUE(first.job().exit.has_value() ||
              first.job().Progress().phase() == v1::JobProgress::FAILED);
  EXPECT_THAT(first.job().Progress().reason(), HasSubstr("job default/digits/u2 has taken over"));
}

// The disk fails at each of its operations in turn, and loses unsynced data. The old job's
// checkpoint stays whole until the new job has one. The new job never continues from it, and trains
// to its end.
TEST(OnExisting, ReplaceSurvivesCrashAtEveryWrite) {
  int crashes = 0;
  for (int crash = 0;; ++crash) {
    SCOPED_TRACE(absl::StrCat("crash at operation ", crash));
    FakeFileSystem files;
    RunFirst(&files, /*to_its_end=*/crash % 2 == 0);
    const v1::JobSpec spec = Spec("u2", v1::CheckpointSpec::REPLACE, 30);
    bool finished = false;
    uint64_t old_claims = 0;
    v1::CheckpointRef old;
    {
      StoredJob again(&files, spec, "2");
      old_claims = again.storage().ReadClaims()->size();
      old = again.storage().ListCheckpoints()->back();
      files.FailAfter(crash);
      again.Run(30);
      finished = again.job().exit.has_value() && again.job().exit->reason == ExitReason::kSucceeded;
    }
    files.FailNever();
    files.CutPower();
    StoredJob after(&files, spec, "3");
    const std::vector<v1::CheckpointRef> there = *after.storage().ListCheckpoints();
    const bool has_own = !there.empty() && there.back().attempt() > old_claims;
    if (!has_own) {
      EXPECT_TRUE(ReadWholeCheckpoint(after.storage(), old).ok())
          << "the old checkpoint is still needed";
    }
    FakeJob& job = after.Run();
    ASSERT_TRUE(job.exit.has_value());
    EXPECT_EQ(job.exit->reason, ExitReason::kSucceeded) << job.exit->message;
    const std::vector<v1::Claim> claims = *after.storage().ReadClaims();
    for (size_t i = old_claims; i < claims.size(); ++i) {
      EXPECT_EQ(claims[i].job(), "default/digits/u2");
      if (!claims[i].has_parent()) continue;
      EXPECT_GT(claims[i].parent().attempt(), old_claims);
    }
    EXPECT_TRUE(claims.back().end());
    const absl::StatusOr<RestorePoint> point = FindRestorePoint(after.storage());
    ASSERT_TRUE(point.ok() && point->found) << point.status();
    EXPECT_EQ(point->checkpoint_index.checkpoint().step(), 30u);
    EXPECT_EQ(point->checkpoint_index.job(), "default/digits/u2");
    if (finished) break;
    ++crashes;
  }
  EXPECT_GT(crashes, 50);
}

}  // namespace
}  // namespace sluice::coordinator
