#include "cli/verify/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/io/fake_file_system.h"

namespace sluice::verify {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::CheckpointIndex Index(uint64_t attempt, uint64_t step) {
  v1::CheckpointIndex index;
  index.set_job("default/example/1");
  index.mutable_checkpoint()->set_attempt(attempt);
  index.mutable_checkpoint()->set_step(step);
  index.set_mode(v1::SYNCHRONOUS);
  index.set_isa("sluice 1, x86-64-v3, threads of a worker: 1");
  return index;
}

v1::CheckpointIndex Index(uint64_t attempt, uint64_t step, const v1::CheckpointIndex& parent) {
  v1::CheckpointIndex index = Index(attempt, step);
  *index.mutable_parent() = parent.checkpoint();
  return index;
}

History HistoryOf(const std::vector<uint64_t>& steps) {
  History history;
  history.from_beginning = true;
  for (const uint64_t step : steps) history.checkpoints.push_back(Index(1, step));
  return history;
}

std::vector<std::string> Texts(const std::vector<Interval>& intervals) {
  std::vector<std::string> texts;
  for (const Interval& interval : intervals) {
    texts.push_back(absl::StrCat(interval.from.has_value() ? "" : "beginning ", interval.first(),
                                 "-", interval.last()));
  }
  return texts;
}

std::vector<std::string> Selected(const History& history, const Selection& selection) {
  const auto intervals = SelectIntervals(history, selection);
  return intervals.ok() ? Texts(*intervals)
                        : std::vector<std::string>{std::string(intervals.status().message())};
}

// ---- ReadHistory

class ReadHistoryTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(storage->Probe().ok()); }

  void Write(const v1::CheckpointIndex& index) {
    ASSERT_TRUE(storage->WriteCheckpointIndex(index).ok());
  }
  void Claim(uint64_t attempt, const v1::CheckpointIndex* parent = nullptr) {
    v1::Claim claim;
    claim.set_attempt(attempt);
    if (parent != nullptr) *claim.mutable_parent() = parent->checkpoint();
    ASSERT_TRUE(storage->CreateClaim(claim).ok());
  }
  std::vector<std::string> Names(const History& history) {
    std::vector<std::string> names;
    for (const v1::CheckpointIndex& index : history.checkpoints) {
      names.push_back(absl::StrCat(index.checkpoint().attempt(), "/", index.checkpoint().step()));
    }
    return names;
  }

  FakeFileSystem files;
  const std::unique_ptr<CheckpointStorage> storage = MakeLocalStorage(&files, "/storage", "test");
};

TEST_F(ReadHistoryTest, FollowsParentsAndLeavesOutWhatWasGivenUp) {
  Claim(1);
  Write(Index(1, 10));
  const v1::CheckpointIndex parent = Index(1, 20);
  Write(parent);
  Claim(2, &parent);
  Write(Index(1, 25));  // written late by a coordinator that was replaced
  Write(Index(2, 30, parent));
  Write(Index(2, 40, parent));
  const auto history = ReadHistory(*storage);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_THAT(Names(*history), ElementsAre("1/10", "1/20", "2/30", "2/40"));
  EXPECT_TRUE(history->from_beginning);
}

TEST_F(ReadHistoryTest, EachIntervalHasTheOptimizerOfItsAttempt) {
  v1::JobSpec job;
  v1::Claim claim;
  for (uint64_t attempt = 1; attempt <= 2; ++attempt) {
    job.mutable_optimizer()->set_learning_rate(0.1 / static_cast<double>(attempt));
    claim.set_attempt(attempt);
    claim.set_settings(ClaimSettings(job));
    ASSERT_TRUE(storage->CreateClaim(claim).ok());
    *claim.mutable_parent() = Index(1, 20).checkpoint();
  }
  Write(Index(1, 10));
  Write(Index(1, 20));
  Write(Index(2, 30, Index(1, 20)));
  const auto history = ReadHistory(*storage);
  ASSERT_TRUE(history.ok()) << history.status();
  Selection all;
  all.all = true;
  const auto intervals = SelectIntervals(*history, all);
  ASSERT_TRUE(intervals.ok()) << intervals.status();
  ASSERT_EQ(intervals->size(), 2u);
  EXPECT_EQ(ReplayJob(job, intervals->at(0), "", 0).optimizer().learning_rate(), 0.1);
  EXPECT_EQ(ReplayJob(job, intervals->at(1), "", 0).optimizer().learning_rate(), 0.05);
}

TEST_F(ReadHistoryTest, EndsWhereTheParentWasDeleted) {
  Claim(1);
  const v1::CheckpointIndex parent = Index(1, 20);
  Claim(2, &parent);
  Write(Index(2, 30, parent));
  const auto history = ReadHistory(*storage);
  ASSERT_TRUE(history.ok()) << history.status();
  EXPECT_THAT(Names(*history), ElementsAre("2/30"));
  EXPECT_FALSE(history->from_beginning);
}

TEST_F(ReadHistoryTest, NamesDamagedIndex) {
  Claim(1);
  Write(Index(1, 10));
  const std::string path = "/storage/attempt-0001-step-000000000010/manifest.json";
  std::string text = *files.Read(path, 1 << 20);
  text[text.find("default")] = 'x';
  ASSERT_TRUE(AtomicWriteFile(&files, path, absl::Cord(text), "test").ok());
  const absl::Status status = ReadHistory(*storage).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("attempt-0001-step-000000000010"));
}

TEST_F(ReadHistoryTest, RefusesStorageWithoutCheckpoint) {
  Claim(1);
  const absl::Status status = ReadHistory(*storage).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("no checkpoint"));
}

// ---- SelectIntervals

TEST(SelectIntervalsTest, SelectsByFlags) {
  const History history = HistoryOf({10, 20, 30, 40});
  EXPECT_THAT(Selected(history, {}), ElementsAre("30-40"));
  EXPECT_THAT(Selected(history, {std::nullopt, 20, false}), ElementsAre("10-20"));
  EXPECT_THAT(Selected(history, {20, std::nullopt, false}), ElementsAre("20-30", "30-40"));
  EXPECT_THAT(Selected(history, {20, 30, false}), ElementsAre("20-30"));
  EXPECT_THAT(Selected(history, {std::nullopt, std::nullopt, true}),
              ElementsAre("10-20", "20-30", "30-40"));
  EXPECT_THAT(Selected(history, {0, 20, false}), ElementsAre("beginning 0-10", "10-20"));
}

TEST(SelectIntervalsTest, ErrorsSayWhichCheckpointsThereAre) {
  const History history = HistoryOf({10, 20});
  EXPECT_THAT(
      Selected(history, {15, std::nullopt, false}),
      ElementsAre("there is no checkpoint of step 15; there are those of the steps 10, 20"));
  EXPECT_THAT(Selected(history, {std::nullopt, 21, false}),
              ElementsAre(HasSubstr("no checkpoint of step 21")));
  EXPECT_THAT(Selected(history, {20, 10, false}), ElementsAre("--from 20 must be before --to 10"));
  EXPECT_THAT(Selected(history, {20, 20, false}), ElementsAre("--from 20 must be before --to 20"));
}

TEST(SelectIntervalsTest, OneCheckpointIsReplayedFromTheBeginningOnly) {
  History history = HistoryOf({10});
  for (const bool all : {false, true}) {
    EXPECT_THAT(Selected(history, {std::nullopt, std::nullopt, all}),
                ElementsAre(AllOf(HasSubstr("two are needed"), HasSubstr("--from 0"))));
  }
  EXPECT_THAT(Selected(history, {0, std::nullopt, false}), ElementsAre("beginning 0-10"));

  history.from_beginning = false;
  *history.checkpoints[0].mutable_parent() = Index(1, 5).checkpoint();
  EXPECT_THAT(Selected(history, {std::nullopt, std::nullopt, false}),
              ElementsAre(testing::Not(HasSubstr("--from 0"))));
  EXPECT_THAT(Selected(history, {0, std::nullopt, false}),
              ElementsAre(HasSubstr("its attempt began with the checkpoint of step 5")));
}

// ---- CheckReplayable

class CheckReplayableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job.mutable_training()->set_bit_exact(true);
    interval = {Index(1, 10), Index(1, 20)};
  }
  std::string Refusal(bool exact = true) const {
    const absl::Status status = CheckReplayable(job, interval, {"sluice 1", "AVX2"}, exact);
    if (status.ok()) return "";
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("steps 10 to 20 cannot be repeated: "));
    return std::string(status.message());
  }

  v1::JobSpec job;
  Interval interval;
};

TEST_F(CheckReplayableTest, AcceptsSynchronousJob) { EXPECT_THAT(Refusal(), IsEmpty()); }

TEST_F(CheckReplayableTest, RefusesAsynchronousTraining) {
  interval.to.set_mode(v1::ASYNCHRONOUS);
  EXPECT_THAT(Refusal(), HasSubstr("trained asynchronously"));
  interval.to.set_mode(v1::SYNCHRONOUS);
  interval.from->set_mode(v1::BOUNDED_STALENESS);
  EXPECT_THAT(Refusal(), HasSubstr("not a function of the seed"));
}

TEST_F(CheckReplayableTest, RefusesWhatDependedOnTheWorkers) {
  job.mutable_training()->mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
  EXPECT_THAT(Refusal(), HasSubstr("policy: Drop"));
  job.mutable_training()->clear_stragglers();
  job.mutable_training()->set_push_codec(v1::CODEC_INT8);
  EXPECT_THAT(Refusal(), HasSubstr("compression.push"));
  job.mutable_training()->clear_push_codec();
  job.mutable_data()->mutable_text()->set_state(v1::DataSpec::Text::CARRIED);
  EXPECT_THAT(Refusal(), HasSubstr("text.state: Carried"));
}

TEST_F(CheckReplayableTest, RefusesOtherBuildOrThreadsWhereBytesMustBeEqual) {
  interval.to.set_isa("sluice 0.9, x86-64-v3, threads of a worker: 1");
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("trained by sluice 0.9, x86-64-v3"),
                               HasSubstr("this is sluice 1, x86-64-v3"), HasSubstr("--tolerance")));
  interval.to.set_isa("sluice 1, x86-64-v3, threads of a worker: 2");
  EXPECT_THAT(Refusal(), HasSubstr("threads of a worker: 2"));
  EXPECT_THAT(Refusal(/*exact=*/false), IsEmpty());
}

// ---- ReplayJob

TEST(ReplayJobTest, TrainsToTheIntervalsEndWithOneWorkerAndWritesOneCheckpoint) {
  v1::JobSpec job;
  job.mutable_training()->set_mode(v1::ASYNCHRONOUS);  // changed after the interval
  job.mutable_training()->set_epochs(3);
  job.mutable_training()->mutable_target()->set_value(1);
  job.mutable_worker()->set_replicas(4);
  job.mutable_parameter_server()->set_replicas(3);
  job.mutable_parameter_server()->set_copies(2);
  job.mutable_parameter_server()->set_partitions(8);
  job.mutable_checkpoint()->set_directory("/own");
  job.mutable_checkpoint()->set_interval_steps(10);
  job.mutable_checkpoint()->set_restore_from("/other");
  job.mutable_data()->mutable_evaluation()->set_interval_steps(5);

  const v1::JobSpec replay = ReplayJob(job, {Index(1, 10), Index(1, 20)}, "/own/at-10", 2);
  EXPECT_EQ(replay.training().mode(), v1::SYNCHRONOUS);
  EXPECT_EQ(replay.training().steps(), 20u);
  EXPECT_EQ(replay.training().epochs(), 0u);
  EXPECT_FALSE(replay.training().has_target());
  EXPECT_EQ(replay.worker().replicas(), 1u);
  EXPECT_EQ(replay.parameter_server().replicas(), 1u);
  EXPECT_EQ(replay.parameter_server().copies(), 1u);
  EXPECT_EQ(replay.parameter_server().partitions(), 8u);
  EXPECT_EQ(replay.checkpoint().directory(), "");
  EXPECT_EQ(replay.checkpoint().interval_steps(), 0u);
  EXPECT_EQ(replay.checkpoint().restore_from(), "/own/at-10");
  EXPECT_EQ(replay.checkpoint().hash_interval_steps(), 2u);
  EXPECT_FALSE(replay.data().has_evaluation());

  // From the beginning, the job's own beginning counts.
  EXPECT_EQ(ReplayJob(job, {std::nullopt, Index(1, 20)}, "", 0).checkpoint().restore_from(),
            "/other");
}

}  // namespace
}  // namespace sluice::verify
