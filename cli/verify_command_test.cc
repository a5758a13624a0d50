// Tests of `sluice verify`, with programs that are shell scripts; tests/integration starts the real
// ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/local/job_directory.h"
#include "cli/testing/cli_test_base.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class VerifyCommandTest : public CliTestBase {
 protected:
  int Verify(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"verify", "example", "--state-dir", State()});
    return Run(arguments);
  }

  local::JobDirectory Directory() const {
    return local::JobDirectory(files_.get(), State(), "example");
  }

  // Makes the job of job.yaml look as if it had trained up to the newest of these checkpoints.
  void WriteTrained(const std::vector<uint64_t>& steps, v1::Mode mode = v1::SYNCHRONOUS) {
    local::JobDirectory directory = Directory();
    auto lock = directory.Lock();
    ASSERT_TRUE(lock.ok()) << lock.status();
    api::TrainingJob job = *api::ReadManifest(directory_ + "/job.yaml", {});
    job.spec.set_uid("1");
    ASSERT_TRUE(directory.WriteJob(job).ok());
    const auto storage = MakeLocalStorage(files_.get(), directory.checkpoints(), "test");
    ASSERT_TRUE(storage->Probe().ok());
    v1::Claim claim;
    claim.set_attempt(1);
    claim.set_job(FullJobName(job.spec));
    ASSERT_TRUE(storage->CreateClaim(claim).ok());
    for (const uint64_t step : steps) {
      v1::CheckpointIndex index;
      index.set_job(FullJobName(job.spec));
      index.mutable_checkpoint()->set_attempt(1);
      index.mutable_checkpoint()->set_step(step);
      index.set_mode(mode);
      ASSERT_TRUE(storage->WriteCheckpointIndex(index).ok());
    }
  }
};

TEST_F(VerifyCommandTest, RefusesBadFlags) {
  WriteTrained({5, 10});
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--from", "-1"}, "--from"},
      {{"--from", "ten"}, "--from"},
      {{"--to", "0"}, "--to"},
      {{"--all", "--from", "5"}, "--all"},
      {{"--all", "--to", "5"}, "--all"},
      {{"--tolerance", "-1"}, "--tolerance"},
      {{"--output", "plain"}, "--output"},
      {{"--cluster"}, "there is no flag --cluster"},
      {{"--from", "10", "--to", "5"}, "--from 10 must be before --to 5"},
      {{"--to", "7"}, "there is no checkpoint of step 7; there are those of the steps 5, 10"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Verify(arguments), 2) << message;
    EXPECT_THAT(err_.str(), HasSubstr(message));
  }
}

TEST_F(VerifyCommandTest, NamesTheJobsThereAre) {
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("there is no job example in ", State())));
  WriteTrained({5, 10});
  EXPECT_EQ(Run({"verify", "exampel", "--state-dir", State()}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("there is no job exampel"));
  EXPECT_THAT(err_.str(), HasSubstr("; there are: example"));
}

TEST_F(VerifyCommandTest, RefusesRunningJob) {
  WriteTrained({5, 10});
  local::JobDirectory directory = Directory();
  const auto lock = directory.Lock();
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("sluice stop example"));
}

TEST_F(VerifyCommandTest, NeedsTwoCheckpoints) {
  WriteTrained({});
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("it has no checkpoint yet"));
}

TEST_F(VerifyCommandTest, NamesTheOnlyCheckpoint) {
  WriteTrained({5});
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("no checkpoint before the one of step 5"));
  EXPECT_THAT(err_.str(), HasSubstr("--from 0"));
}

TEST_F(VerifyCommandTest, RefusesAsynchronousJob) {
  WriteTrained({5}, v1::ASYNCHRONOUS);
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("not a function of the seed"));
}

TEST_F(VerifyCommandTest, RefusesBitExactJobOfAnotherBuild) {
  std::string manifest = kManifest;
  manifest.replace(manifest.find("{steps: 10}"), 11,
                   "{steps: 10, globalBatchSize: 16, microbatchSize: 4, determinism: BitExact}");
  Write("job.yaml", manifest);
  WriteTrained({5, 10});  // the index names no build
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("bits may differ"));
}

TEST_F(VerifyCommandTest, NamesMissingData) {
  Write("job.yaml", kIdxManifest);
  WriteTrained({5, 10});
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("spec.data.source.path"));
  EXPECT_THAT(err_.str(), HasSubstr("no such file or directory"));
}

TEST_F(VerifyCommandTest, NamesMissingProgram) {
  WriteTrained({5, 10});
  EXPECT_EQ(Verify({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("the program sluice-coordinator is missing"));
}

TEST_F(VerifyCommandTest, NamesDamagedCheckpoint) {
  WriteTrained({5, 10});
  std::ofstream(Directory().checkpoints() + "/attempt-0001-step-000000000005/manifest.json")
      << "{}";
  EXPECT_EQ(Verify({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("attempt-0001-step-000000000005"));
}

TEST_F(VerifyCommandTest, ReportsReplayThatFails) {
  WriteTrained({5, 10});
  WritePrograms("exit 1");
  EXPECT_EQ(Verify({"--quiet"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("the replay of the steps 5 to 10 failed: "));
  EXPECT_THAT(err_.str(), HasSubstr(Directory().path() + "/verify/steps-5-10/example/logs"));
  EXPECT_EQ(out_.str(), "");
}

}  // namespace
}  // namespace sluice::cli
