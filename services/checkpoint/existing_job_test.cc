#include "services/checkpoint/existing_job.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/arithmetic/crc32c.h"
#include "services/common/io/fake_file_system.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using Kind = ExistingJob::Kind;

v1::CheckpointRef Ref(uint64_t attempt, uint64_t step) {
  v1::CheckpointRef ref;
  ref.set_attempt(attempt);
  ref.set_step(step);
  return ref;
}

v1::JobSpec Job(const std::string& uid, uint64_t steps = 100) {
  v1::JobSpec job;
  job.set_namespace_("default");
  job.set_name("exact");
  job.set_uid(uid);
  job.set_loss("nll");
  job.mutable_training()->set_steps(steps);
  job.mutable_training()->set_global_batch_size(32);
  job.mutable_worker()->set_replicas(2);
  job.mutable_checkpoint()->set_directory("/store");
  return job;
}

v1::JobSpec Job(const std::string& uid, v1::CheckpointSpec::OnExisting policy,
                uint64_t steps = 100) {
  v1::JobSpec job = Job(uid, steps);
  job.mutable_checkpoint()->set_on_existing(policy);
  return job;
}

class ExistingJobTest : public ::testing::Test {
 protected:
  void Claim(const v1::JobSpec& job, bool end = false) {
    v1::Claim claim;
    claim.set_attempt(++claims_);
    claim.set_end(end);
    claim.set_job(FullJobName(job));
    claim.set_settings(ClaimSettings(job));
    claim.set_time("2026-11-22T20:00:00+00:00");
    if (parent_.step() > 0 && !end) *claim.mutable_parent() = parent_;
    ASSERT_TRUE(storage_->CreateClaim(claim).ok());
  }

  void Save(const v1::JobSpec& job, const v1::CheckpointRef& ref) {
    const std::string content = "values";
    ASSERT_TRUE(storage_->WriteFile(ref, "partition-00000.safetensors", absl::Cord(content)).ok());
    v1::CheckpointIndex checkpoint_index;
    checkpoint_index.set_job(FullJobName(job));
    *checkpoint_index.mutable_checkpoint() = ref;
    v1::PartitionFile& file = *checkpoint_index.add_files();
    file.set_name("partition-00000.safetensors");
    file.set_bytes(content.size());
    file.set_crc32c(Crc32c(content));
    ASSERT_TRUE(storage_->WriteCheckpointIndex(checkpoint_index).ok());
  }

  // Job u1 has trained, to its end if `finished`.
  void Train(bool finished) {
    Claim(Job("u1"));
    Save(Job("u1"), Ref(1, 100));
    if (finished) Claim(Job("u1"), /*end=*/true);
  }

  ExistingJob Judge(const v1::JobSpec& job) {
    const absl::StatusOr<OpenedStorage> opened = ReadForJob(*storage_, job, FileCheck::kSizes);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? opened->existing : ExistingJob();
  }

  FakeFileSystem files_;
  std::unique_ptr<CheckpointStorage> storage_ = MakeLocalStorage(&files_, "/store", "test");
  uint64_t claims_ = 0;
  v1::CheckpointRef parent_;  // of the next claim
};

TEST_F(ExistingJobTest, SilentlyUsesEmptyDirectoryAndOwnCheckpoints) {
  for (const auto policy : {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::RESUME,
                            v1::CheckpointSpec::FAIL, v1::CheckpointSpec::REPLACE}) {
    EXPECT_EQ(Judge(Job("u1", policy)).kind, Kind::kNone);
  }
  Train(/*finished=*/false);
  for (const auto policy : {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::RESUME,
                            v1::CheckpointSpec::FAIL, v1::CheckpointSpec::REPLACE}) {
    const ExistingJob existing = Judge(Job("u1", policy, 200));
    EXPECT_EQ(existing.kind, Kind::kNone) << policy;
    EXPECT_EQ(existing.message, "");
  }
}

TEST_F(ExistingJobTest, RecognizesOwnDamagedClaimByItsCheckpoint) {
  Train(/*finished=*/false);
  ASSERT_TRUE(AtomicWriteFile(&files_, "/store/claims/000001.json", absl::Cord("{}"), "t").ok());
  EXPECT_EQ(Judge(Job("u1", v1::CheckpointSpec::FAIL)).kind, Kind::kNone);
  EXPECT_EQ(Judge(Job("u2")).kind, Kind::kRefused) << "the settings are unknown";
}

TEST_F(ExistingJobTest, ResumesUnfinishedJobWithSameSettingsByDefault) {
  Train(/*finished=*/false);
  v1::JobSpec wider = Job("u2");
  wider.mutable_worker()->set_replicas(7);
  wider.mutable_checkpoint()->set_interval_steps(5);
  EXPECT_EQ(Judge(wider).kind, Kind::kResume) << "checkpoints do not depend on the difference";
  EXPECT_EQ(Judge(Job("u2", 200)).kind, Kind::kResume);
  EXPECT_EQ(Judge(Job("u2", v1::CheckpointSpec::RESUME)).kind, Kind::kResume);
  const ExistingJob refused = Judge(Job("u2", v1::CheckpointSpec::FAIL));
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_THAT(
      refused.message,
      AllOf(HasSubstr("the checkpoint directory /store holds job default/exact/u1, which has "
                      "not finished; its newest checkpoint is of step 100"),
            HasSubstr("its settings are those of this job"),
            HasSubstr("Set checkpoint.onExisting: Resume to continue from it, or Replace")));
}

TEST_F(ExistingJobTest, ComparesLongListsOfColumnsByTheirChecksum) {
  const auto wide = [](const std::string& uid, const std::string& last) {
    v1::JobSpec job = Job(uid);
    for (int i = 0; i < 4000; ++i) {
      job.mutable_data()->mutable_csv()->add_numeric_columns(absl::StrCat("column ", i));
    }
    job.mutable_data()->mutable_csv()->add_numeric_columns(last);
    return job;
  };
  EXPECT_NE(ClaimSettings(wide("u1", "z")), "") << "the settings are recorded";
  Claim(wide("u1", "z"));
  Save(wide("u1", "z"), Ref(1, 100));
  EXPECT_EQ(Judge(wide("u2", "z")).kind, Kind::kResume);
  EXPECT_EQ(Judge(wide("u2", "other")).kind, Kind::kRefused);
}

TEST_F(ExistingJobTest, NamesFinishedJobAndDoesNothingByDefault) {
  Train(/*finished=*/true);
  for (const auto policy : {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::FAIL}) {
    const ExistingJob existing = Judge(Job("u2", policy, 200));
    EXPECT_EQ(existing.kind, Kind::kRefused);
    EXPECT_THAT(existing.message,
                AllOf(HasSubstr("holds job default/exact/u1, which finished after step 100 at "
                                "2026-11-22T20:00:00+00:00; this job differs in "
                                "spec.training.steps 100 -> 200"),
                      HasSubstr("Nothing was trained or changed."),
                      HasSubstr("Resume to continue from it")));
  }
  EXPECT_THAT(Judge(Job("u2")).message, HasSubstr("Resume to accept its result"));
}

TEST_F(ExistingJobTest, ContinuesFinishedJobOnlyIfJobIsLonger) {
  Train(/*finished=*/true);
  EXPECT_EQ(Judge(Job("u2", v1::CheckpointSpec::RESUME, 200)).kind, Kind::kResume);
  for (const uint64_t steps : {100, 50}) {
    const ExistingJob existing = Judge(Job("u2", v1::CheckpointSpec::RESUME, steps));
    EXPECT_EQ(existing.kind, Kind::kFinished);
    EXPECT_THAT(existing.message, HasSubstr("nothing was trained"));
  }
}

v1::JobSpec WithRates(v1::JobSpec job, double rate, double decay, double decay_of_group) {
  job.mutable_optimizer()->set_learning_rate(rate);
  job.mutable_optimizer()->set_weight_decay(decay);
  v1::OptimizerSpec::Group& group = *job.mutable_optimizer()->add_groups();
  group.add_patterns("*.bias");
  group.set_weight_decay(decay_of_group);
  return job;
}

TEST_F(ExistingJobTest, SaysWhichRatesAndLengthChangeWhenTheJobContinues) {
  Claim(WithRates(Job("u1"), 0.001, 0, 0.5));
  Save(Job("u1"), Ref(1, 100));
  const v1::JobSpec same = WithRates(Job("u1"), 0.001, 0, 0.5);
  EXPECT_EQ(Judge(same).changes, "");
  for (const char* uid : {"u1", "u2"}) {
    v1::JobSpec job = WithRates(Job(uid, 200), 0.0005, 0.1, 0.25);
    job.mutable_optimizer()->mutable_schedule()->set_type(v1::Schedule::COSINE);
    const ExistingJob existing = Judge(job);
    EXPECT_EQ(existing.kind, std::string(uid) == "u1" ? Kind::kNone : Kind::kResume);
    EXPECT_EQ(existing.changes,
              "groups[0].weightDecay 0.25, was 0.5; learningRate 0.0005, was 0.001; "
              "schedule.minFactor 0.0, was (unset); schedule.type Cosine, was (unset); "
              "schedule.warmupSteps 0, was (unset); weightDecay 0.1, was 0.0; steps 200, was 100");
  }
  v1::JobSpec stopping = same;
  stopping.mutable_training()->mutable_stopping()->set_patience(5);
  EXPECT_THAT(Judge(stopping).changes, HasSubstr("stopping.patience 5, was (unset)"));
}

TEST_F(ExistingJobTest, AClaimHasTheOptimizerToTheBit) {
  const v1::JobSpec job = WithRates(Job("u1"), 0.1 + 1e-17, 1.0 / 3, 1e-300);
  v1::Claim claim;
  EXPECT_FALSE(ClaimedOptimizer(claim).has_value());
  claim.set_settings(ClaimSettings(job));
  const std::optional<v1::OptimizerSpec> optimizer = ClaimedOptimizer(claim);
  ASSERT_TRUE(optimizer.has_value());
  EXPECT_EQ(optimizer->SerializeAsString(), job.optimizer().SerializeAsString());
}

TEST_F(ExistingJobTest, OtherOptionsOfTheOptimizerNeverChange) {
  Claim(WithRates(Job("u1"), 0.001, 0, 0.5));
  Save(Job("u1"), Ref(1, 100));
  v1::JobSpec momentum = WithRates(Job("u2"), 0.01, 0, 0.5);
  momentum.mutable_optimizer()->set_momentum(0.9);
  const ExistingJob refused = Judge(momentum);
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_EQ(refused.changes, "");
  EXPECT_THAT(refused.message, HasSubstr("spec.optimizer.momentum 0.0 -> 0.9"));
  EXPECT_THAT(refused.message, Not(HasSubstr("restoreFrom"))) << "the state has another form";

  v1::JobSpec dampened = WithRates(Job("u2"), 0.01, 0, 0.5);
  dampened.mutable_optimizer()->set_dampening(0.1);
  EXPECT_THAT(Judge(dampened).message,
              HasSubstr("give the job another name and set checkpoint.restoreFrom: /store"));

  v1::JobSpec group = WithRates(Job("u2"), 0.001, 0, 0.5);
  group.mutable_optimizer()->mutable_groups(0)->set_patterns(0, "*.weight");
  EXPECT_THAT(Judge(group).message, HasSubstr("spec.optimizer.groups[0].patterns"));
}

TEST_F(ExistingJobTest, AFinishedJobContinuesWithAnotherConditionToStopButNotWithAnotherRate) {
  Train(/*finished=*/true);
  v1::JobSpec job = Job("u2", v1::CheckpointSpec::RESUME);
  job.mutable_optimizer()->set_learning_rate(0.5);
  EXPECT_EQ(Judge(job).kind, Kind::kFinished);
  job.mutable_training()->mutable_stopping()->set_patience(5);
  EXPECT_EQ(Judge(job).kind, Kind::kResume);
}

TEST_F(ExistingJobTest, NamesOtherSettingsAndNeverResumes) {
  Train(/*finished=*/false);
  for (const auto policy : {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::RESUME}) {
    v1::JobSpec job = Job("u2", policy);
    job.set_loss("mse");
    job.mutable_training()->set_global_batch_size(64);
    const ExistingJob existing = Judge(job);
    EXPECT_EQ(existing.kind, Kind::kRefused);
    EXPECT_THAT(existing.message,
                AllOf(HasSubstr("spec.loss nll -> mse, spec.training.globalBatchSize 32 -> 64"),
                      HasSubstr("Resume, with its settings"), HasSubstr("Replace")));
  }
}

TEST_F(ExistingJobTest, NamesReplacedJobAndDoesNotBeginWithItsState) {
  Train(/*finished=*/true);
  v1::JobSpec job = Job("u2", v1::CheckpointSpec::REPLACE);
  const absl::StatusOr<OpenedStorage> opened = ReadForJob(*storage_, job, FileCheck::kSizes);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->existing.kind, Kind::kReplace);
  EXPECT_THAT(opened->existing.message, HasSubstr("default/exact/u1, which finished after step"));
  EXPECT_FALSE(opened->point.found);
  EXPECT_THAT(*storage_->ListCheckpoints(), SizeIs(1)) << "nothing is removed yet";
  EXPECT_THAT(ReplacedCheckpoints(job, opened->claims, *storage_->ListCheckpoints()), IsEmpty());

  // From its first claim on, the storage is the job's own, and the job continues.
  Claim(job);
  EXPECT_EQ(Judge(job).kind, Kind::kNone);
  Save(job, Ref(3, 10));
  const auto replaced =
      ReplacedCheckpoints(job, *storage_->ReadClaims(), *storage_->ListCheckpoints());
  ASSERT_THAT(replaced, SizeIs(1));
  EXPECT_EQ(replaced[0].attempt(), 1u);
}

TEST_F(ExistingJobTest, ResumedJobReplacesNothing) {
  Train(/*finished=*/false);
  parent_ = Ref(1, 100);
  v1::JobSpec job = Job("u2", v1::CheckpointSpec::REPLACE);
  Claim(job);
  EXPECT_THAT(ReplacedCheckpoints(job, *storage_->ReadClaims(), *storage_->ListCheckpoints()),
              IsEmpty());
}

TEST_F(ExistingJobTest, ReplacedJobDoesNotReplaceItsReplacement) {
  Train(/*finished=*/false);
  Claim(Job("u2", v1::CheckpointSpec::REPLACE));
  const ExistingJob existing = Judge(Job("u1", v1::CheckpointSpec::REPLACE));
  EXPECT_EQ(existing.kind, Kind::kRefused);
  EXPECT_THAT(existing.message, HasSubstr("job default/exact/u2 has taken over"));
}

TEST_F(ExistingJobTest, OnlyReplaceStartsOverBesideDamagedCheckpoints) {
  Train(/*finished=*/false);
  const std::string checkpoint_index =
      absl::StrCat("/store/", CheckpointDirectory(Ref(1, 100)), "/manifest.json");
  ASSERT_TRUE(AtomicWriteFile(&files_, checkpoint_index, absl::Cord("{}"), "t").ok());
  for (const auto policy :
       {v1::CheckpointSpec::UNSET, v1::CheckpointSpec::RESUME, v1::CheckpointSpec::FAIL}) {
    const auto opened = ReadForJob(*storage_, Job("u2", policy), FileCheck::kSizes);
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("no checkpoint of the job"));
  }
  EXPECT_EQ(Judge(Job("u2", v1::CheckpointSpec::REPLACE)).kind, Kind::kReplace);
  // The job replaces neither its own checkpoints nor those that may be its own.
  EXPECT_FALSE(
      ReadForJob(*storage_, Job("u1", v1::CheckpointSpec::REPLACE), FileCheck::kSizes).ok());
  ASSERT_TRUE(AtomicWriteFile(&files_, "/store/claims/000001.json", absl::Cord("{}"), "t").ok());
  EXPECT_FALSE(
      ReadForJob(*storage_, Job("u2", v1::CheckpointSpec::REPLACE), FileCheck::kSizes).ok());
}

// The first claim of u2 records that u2 began without the checkpoints of u1.
TEST_F(ExistingJobTest, ReplacingJobWithDamagedFirstClaimNeverContinuesFromOldJob) {
  Train(/*finished=*/true);
  const v1::JobSpec job = Job("u2", v1::CheckpointSpec::REPLACE);
  Claim(job);
  Save(job, Ref(3, 10));
  parent_ = Ref(3, 10);
  Claim(job);
  ASSERT_TRUE(AtomicWriteFile(&files_, "/store/claims/000003.json", absl::Cord("{}"), "t").ok());
  EXPECT_EQ(Judge(job).kind, Kind::kNone) << "its own checkpoint is whole";
  const std::string checkpoint_index =
      absl::StrCat("/store/", CheckpointDirectory(Ref(3, 10)), "/manifest.json");
  ASSERT_TRUE(AtomicWriteFile(&files_, checkpoint_index, absl::Cord("{}"), "t").ok());
  const auto opened = ReadForJob(*storage_, job, FileCheck::kSizes);
  EXPECT_THAT(std::string(opened.status().message()),
              AllOf(HasSubstr("the job that wrote these checkpoints is unknown"),
                    HasSubstr("claims/000003.json"), HasSubstr(CheckpointDirectory(Ref(3, 10)))));
}

TEST_F(ExistingJobTest, ClaimsWithoutCheckpointDoNotBindOtherJobs) {
  Claim(Job("u1"));
  EXPECT_EQ(Judge(Job("u2", v1::CheckpointSpec::FAIL)).kind, Kind::kNone);
}

TEST_F(ExistingJobTest, SettingsThatAreNotAManifestAreUnknown) {
  v1::Claim claim;
  claim.set_attempt(++claims_);
  claim.set_job("default/exact/u1");
  RestorePoint point;
  point.found = true;
  *point.checkpoint_index.mutable_checkpoint() = Ref(1, 100);
  // The third one is in the form of an older version.
  for (const char* settings :
       {"[]", "{\"spec\"", "{\"loss\": \"nll\", \"training\": {\"steps\": 3}}", "{\"spec\": 3}",
        "\xff"}) {
    claim.set_settings(settings);
    const ExistingJob existing = JudgeExisting(Job("u2"), {claim}, point);
    EXPECT_EQ(existing.kind, Kind::kRefused) << settings;
    EXPECT_THAT(existing.message, HasSubstr("recorded in a form that this release does not know"));
    EXPECT_EQ(JudgeExisting(Job("u1"), {claim}, point).kind, Kind::kNone) << settings;
    EXPECT_FALSE(ClaimedOptimizer(claim).has_value()) << settings;
    v1::JobSpec resuming = Job("u2", v1::CheckpointSpec::RESUME);
    EXPECT_EQ(JudgeExisting(resuming, {claim}, point).kind, Kind::kResume) << settings;
  }
  claim.clear_settings();
  EXPECT_THAT(JudgeExisting(Job("u2"), {claim}, point).message,
              HasSubstr("its settings are not recorded"));
  for (const char* settings :
       {"{\"spec\": {\"training\": 3}}", "{\"spec\": {\"training\": {\"steps\": []}}}",
        "{\"spec\": {\"optimizer\": {\"parameters\": {\"~.a~\": 1}}}}"}) {
    claim.set_settings(settings);
    EXPECT_EQ(JudgeExisting(Job("u2"), {claim}, point).kind, Kind::kRefused) << settings;
  }
}

TEST_F(ExistingJobTest, AFieldThatTheClaimsReleaseDidNotHaveHasItsDefault) {
  v1::JobSpec job = Job("u1");
  const std::string settings = ClaimSettings(job);
  const std::string field = "\"lastBatch\":\"Keep\",";
  ASSERT_THAT(settings, HasSubstr(field));
  v1::Claim claim;
  claim.set_attempt(1);
  claim.set_job(FullJobName(job));
  claim.set_settings(absl::StrReplaceAll(settings, {{field, ""}}));
  RestorePoint point;
  point.found = true;
  EXPECT_THAT(JudgeExisting(Job("u2"), {claim}, point).message,
              HasSubstr("its settings are those of this job"));
  job.set_uid("u2");
  job.mutable_training()->set_last_batch(v1::TrainingSpec::DROP);
  EXPECT_THAT(JudgeExisting(job, {claim}, point).message,
              HasSubstr("spec.training.lastBatch (unset) -> Drop"));
}

}  // namespace
}  // namespace sluice
