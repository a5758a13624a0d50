// Tests of `sluice chaos`, with programs that are shell scripts; tests/integration starts the real
// ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/testing/cli_test_base.h"

namespace sluice::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ChaosCommandTest : public CliTestBase {
 protected:
  int Chaos(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {"chaos", directory_ + "/job.yaml", "--state-dir", State()});
    return Run(arguments);
  }
};

TEST_F(ChaosCommandTest, RefusesBadInputBeforeAnythingStarts) {
  WritePrograms("exit 1");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--faults", "explode:worker"}, "there is no fault 'explode'"},
      {{"--faults", "kill:operator"}, "there is no role 'operator'"},
      {{"--faults", ""}, "is not a fault"},
      {{"--faults", "kill:shard+shard"}, "needs 2 processes of the role shard, and the job has 1"},
      {{"--every", "0"}, "--every: '0' is not a time above 0"},
      {{"--every", "-1s"}, "is not a time above 0"},
      {{"--for", "soon"}, "--for: 'soon' is not a time above 0"},
      {{"--stall", "inf"}, "is not a time above 0"},
      {{"--stall", "9s"}, "--stall must be longer, not 9s"},
      {{"--stall", "9s", "--for", "10s"}, "a fault may last 10s"},
      {{"--count", "0"}, "--count"},
      {{"--seed", "-1"}, "--seed"},
      {{"--tolerance", "5"}, "add --baseline run"},
      {{"--baseline", "best"}, "--baseline"},
      {{"--output", "plain"}, "--output"},
      {{"--cluster"}, "there is no flag --cluster"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Chaos(arguments), 2) << message;
    EXPECT_THAT(err_.str(), HasSubstr(message));
  }
  EXPECT_FALSE(std::filesystem::exists(State()));
}

TEST_F(ChaosCommandTest, NamesTheMissingManifest) {
  EXPECT_EQ(Run({"chaos", directory_ + "/missing.yaml"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("missing.yaml"));
}

TEST_F(ChaosCommandTest, RefusesSuspendedJob) {
  WritePrograms("exit 1");
  Write("job.yaml", absl::StrCat(kManifest, "  suspend: true\n"));
  EXPECT_EQ(Chaos({}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("spec.suspend is set"));
}

TEST_F(ChaosCommandTest, RefusesToCutConnectionsAmongWorkers) {
  WritePrograms("exit 1");
  Write("job.yaml", absl::StrCat(absl::StrReplaceAll(kManifest, {{"training: {",
                                                                  "training: {dense: {aggregation: "
                                                                  "AllReduce}, "}}),
                                 "  tls: Disabled\n"));
  for (const char* fault : {"cut:worker", "slow:shard"}) {
    EXPECT_EQ(Chaos({"--faults", fault}), 2);
    EXPECT_THAT(err_.str(), HasSubstr("which cannot be cut or slowed"));
  }
}

TEST_F(ChaosCommandTest, JobThatFailsFailsTheVerdict) {
  WritePrograms("exit 1");
  EXPECT_EQ(Chaos({"--seed", "7"}), 1);
  EXPECT_THAT(out_.str(), HasSubstr("Training with faults of seed 7: kill:worker, kill:shard"));
  EXPECT_THAT(out_.str(), HasSubstr("\nFailed: the job failed: "));
  EXPECT_THAT(out_.str(),
              HasSubstr(absl::StrCat("sluice chaos ", directory_, "/job.yaml --seed 7\n")));
  EXPECT_TRUE(std::filesystem::exists(State() + "/faults/example/logs"));
}

TEST_F(ChaosCommandTest, RepeatingCommandHasTheFlagsThatChangeTheFaults) {
  WritePrograms("exit 1");
  EXPECT_EQ(Chaos({"--seed", "7", "--faults", "kill:worker", "--every", "500ms", "--for", "2",
                   "--count", "3", "--workers", "2"}),
            1);
  EXPECT_THAT(out_.str(), HasSubstr("--seed 7 --faults kill:worker --every 0.5s --for 2s "
                                    "--count 3 --workers 2\n"));
}

TEST_F(ChaosCommandTest, JobThatNeverTrainsHangs) {
  WritePrograms("exec sleep 1000");
  EXPECT_EQ(Chaos({"--for", "0.1s", "--stall", "0.5s", "--output", "json"}), 1);
  const nlohmann::json verdict = Objects().back();
  EXPECT_EQ(verdict["type"], "verdict");
  EXPECT_EQ(verdict["verdict"], "Failed");
  EXPECT_EQ(verdict["exitCode"], 1);
  EXPECT_THAT(verdict["problems"][0].get<std::string>(),
              HasSubstr("the job hangs: no step for 0.5 s in the phase starting"));
}

TEST_F(ChaosCommandTest, QuietPrintsOnlyTheVerdict) {
  WritePrograms("exec sleep 1000");
  EXPECT_EQ(Chaos({"--for", "0.1s", "--stall", "0.5s", "--quiet"}), 1);
  EXPECT_EQ(out_.str(),
            "Failed: the job hangs: no step for 0.5 s in the phase starting at step 0, without "
            "coordinator\n");
}

TEST_F(ChaosCommandTest, BaselineThatFailsEndsTheCommand) {
  WritePrograms("exit 1");
  EXPECT_EQ(Chaos({"--baseline", "run"}), 1);
  EXPECT_THAT(out_.str(), HasSubstr("\nFailed: without faults, the job failed: "));
  EXPECT_THAT(out_.str(), Not(HasSubstr("Training with faults")));
}

// `sluice run` of the same job continues from its own directory, which is unchanged.
TEST_F(ChaosCommandTest, LeavesCheckpointsOfTheUsersJobAlone) {
  WritePrograms("exit 1");
  const std::string own = directory_ + "/own";
  std::filesystem::create_directories(own);
  Write("own/file", "kept");
  Write("job.yaml", absl::StrCat(kManifest, "  checkpoint: {storage: {path: ", own, "}}\n"));
  EXPECT_EQ(Chaos({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr(absl::StrCat("the checkpoints go to ", State(), ", not to ")));
  EXPECT_TRUE(std::filesystem::exists(own + "/file"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(own),
                          std::filesystem::directory_iterator()),
            1);
}

}  // namespace
}  // namespace sluice::cli
