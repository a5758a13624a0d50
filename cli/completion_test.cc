// Runs the scripts of `sluice completion` in the shells.
#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/cli.h"

namespace sluice::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string Script(const std::string& shell) {
  std::ostringstream out;
  std::ostringstream err;
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const RealClock clock;
  Environment environment;
  environment.out = &out;
  environment.err = &err;
  environment.files = files.get();
  environment.clock = &clock;
  EXPECT_EQ(RunCommandLine({"completion", shell}, environment), 0) << err.str();
  return out.str();
}

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest()
      : directory_(absl::StrCat(std::getenv("TEST_TMPDIR"), "/",
                                ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(directory_ + "/.sluice/clothes");
    std::filesystem::create_directories(directory_ + "/.sluice/digits");
    std::ofstream(directory_ + "/job.yaml") << "kind: TrainingJob\n";
    std::ofstream(directory_ + "/completion.bash") << Script("bash");
  }

  // Runs shell commands in the test's directory and returns the lines that they print.
  std::vector<std::string> Shell(const std::string& command, int* code = nullptr) {
    std::ofstream(directory_ + "/script") << "cd " << directory_ << "\n" << command << "\n";
    FILE* pipe =
        popen(absl::StrCat("bash --norc --noprofile ", directory_, "/script 2>&1").c_str(), "r");
    std::string text;
    char buffer[4096];
    while (const size_t size = fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, size);
    const int status = pclose(pipe);
    if (code != nullptr) *code = WEXITSTATUS(status);
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  // Bash's proposals for the last of these words.
  std::vector<std::string> Proposals(const std::vector<std::string>& words) {
    return Shell(absl::StrCat(
        "source completion.bash\nCOMP_WORDS=(sluice '", absl::StrJoin(words, "' '"),
        "')\nCOMP_CWORD=", words.size(),
        "\n_sluice\n[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\""));
  }

  const std::string directory_;
};

TEST_F(CompletionTest, BashParsesTheScript) {
  int code = -1;
  EXPECT_THAT(Shell("bash -n completion.bash", &code), IsEmpty());
  EXPECT_EQ(code, 0);
}

TEST_F(CompletionTest, BashProposesEveryCommand) {
  EXPECT_THAT(Proposals({""}), IsSupersetOf({"run", "init", "validate", "render", "explain",
                                             "status", "logs", "stop", "inspect", "export",
                                             "completion", "version", "--help", "--version"}));
  EXPECT_THAT(Proposals({"sta"}), ElementsAre("status"));
}

TEST_F(CompletionTest, BashProposesTheFlagsOfTheCommand) {
  EXPECT_THAT(Proposals({"run", "--"}),
              IsSupersetOf({"--fresh", "--workers", "--output", "--state-dir", "--help"}));
  EXPECT_THAT(Proposals({"run", "--dry"}), ElementsAre("--dry-run"));
  EXPECT_THAT(Proposals({"stop", "--"}), Not(Contains("--fresh")));
}

TEST_F(CompletionTest, BashProposesTheValuesOfAFlag) {
  EXPECT_THAT(Proposals({"run", "job.yaml", "--output", ""}), ElementsAre("text", "json", "plain"));
  EXPECT_THAT(Proposals({"run", "--workers", ""}), IsEmpty());
  EXPECT_THAT(Proposals({"completion", ""}), UnorderedElementsAre("bash", "zsh", "fish"));
}

TEST_F(CompletionTest, BashProposesJobsAndFiles) {
  EXPECT_THAT(Proposals({"stop", ""}), ElementsAre("clothes", "digits"));
  EXPECT_THAT(Proposals({"run", "jo"}), ElementsAre("job.yaml"));
  EXPECT_THAT(Proposals({"inspect", ""}), IsSupersetOf({"clothes", "digits", "job.yaml"}));
}

TEST_F(CompletionTest, OtherShellsKnowEveryCommandAndFlag) {
  const std::string zsh = Script("zsh");
  EXPECT_THAT(zsh, HasSubstr("#compdef sluice"));
  EXPECT_THAT(
      zsh,
      HasSubstr("'run:Train a job, on this machine or on a cluster, and follow its progress'"));
  EXPECT_THAT(zsh, HasSubstr(":value:(text json plain)'"));
  const std::string fish = Script("fish");
  EXPECT_THAT(
      fish,
      HasSubstr(
          "-a run -d 'Train a job, on this machine or on a cluster, and follow its progress'"));
  EXPECT_THAT(fish, HasSubstr("from run' -l output -x -a 'text json plain'"));
  EXPECT_THAT(fish, HasSubstr("from export' -s o -l output"));
}

// Skipped unless the shells are installed.
TEST_F(CompletionTest, OtherShellsParseTheirScripts) {
  bool any = false;
  for (const std::string shell : {"zsh", "fish"}) {
    int code = -1;
    Shell(absl::StrCat("command -v ", shell), &code);
    if (code != 0) continue;
    any = true;
    std::ofstream(directory_ + "/completion." + shell) << Script(shell);
    EXPECT_THAT(Shell(absl::StrCat(shell, " -n completion.", shell), &code), IsEmpty());
    EXPECT_EQ(code, 0) << shell;
  }
  if (!any) GTEST_SKIP() << "neither zsh nor fish is installed";
}

}  // namespace
}  // namespace sluice::cli
