#include "cli/local/child_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "services/common/process/fork_server.h"
#include "services/common/threads/mutex.h"

namespace sluice::local {
namespace {

using ::testing::HasSubstr;

std::string TestFile(const std::string& name) {
  return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name);
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool WaitUntil(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// The first number in a file, once it exists.
pid_t ReadPid(const std::string& path) {
  int pid = 0;
  WaitUntil([&] { return absl::SimpleAtoi(ReadAll(path), &pid); }, absl::Seconds(10));
  return pid;
}

bool IsGone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

std::string OwnProgram() { return std::filesystem::read_symlink("/proc/self/exe"); }

// As an argument: this program waits for a signal.
constexpr char kWaits[] = "--wait";

// This program as the command of a child: becomes a shell.
int RunScript(const std::vector<char*>& arguments) {
  execl("/bin/sh", "/bin/sh", "-c", arguments[1], nullptr);
  return 127;
}

// Children that are started, and children that are forked by a server.
class ChildProcessesTest : public ::testing::TestWithParam<bool> {
 protected:
  ChildProcessesTest() : children_(Make()) {}

  std::unique_ptr<ChildProcesses> Make() {
    auto children = std::make_unique<ChildProcesses>([this](const ChildProcesses::End& end) {
      MutexLock lock(&mutex_);
      ends_.push_back(end);
      changed_.SignalAll();
    });
    LoadIfForked(*children);
    return children;
  }

  static void LoadIfForked(ChildProcesses& children) {
    if (!GetParam()) return;
    children.Load(OwnProgram());
    EXPECT_TRUE(WaitUntil([&] { return !children.Loading(); }, absl::Seconds(10)));
  }

  static absl::StatusOr<pid_t> Shell(ChildProcesses& children, const std::string& script,
                                     const std::string& log) {
    if (GetParam()) return children.Start({{OwnProgram(), script}, TestFile(log)});
    return children.Start({{"/bin/sh", "-c", script}, TestFile(log)});
  }
  absl::StatusOr<pid_t> Shell(const std::string& script, const std::string& log = "log") {
    return Shell(*children_, script, log);
  }

  // The next end; pid 0 if there is none.
  ChildProcesses::End WaitForEnd() {
    MutexLock lock(&mutex_);
    while (ends_.size() <= taken_) {
      if (changed_.WaitWithTimeout(&mutex_, absl::Seconds(10))) return {};
    }
    return ends_[taken_++];
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<ChildProcesses::End> ends_ ABSL_GUARDED_BY(mutex_);
  size_t taken_ = 0;
  std::unique_ptr<ChildProcesses> children_;
};

TEST_P(ChildProcessesTest, ReportsExitCodesAndSignals) {
  const auto exits = Shell("exit 12");
  ASSERT_TRUE(exits.ok()) << exits.status();
  ChildProcesses::End end = WaitForEnd();
  EXPECT_EQ(end.pid, *exits);
  EXPECT_EQ(end.code, 12);
  EXPECT_EQ(end.signal, 0);
  const auto waits = Shell("sleep 1000");
  ASSERT_TRUE(waits.ok());
  children_->Signal(*waits, SIGKILL);
  end = WaitForEnd();
  EXPECT_EQ(end.pid, *waits);
  EXPECT_EQ(end.signal, SIGKILL);
  EXPECT_EQ(children_->living(), 0u);
}

TEST_P(ChildProcessesTest, AppendsToTheLogOfEarlierInstances) {
  for (const char* word : {"one", "two"}) {
    ASSERT_TRUE(Shell(absl::StrCat("echo ", word, "; echo error >&2"), "appended").ok());
    WaitForEnd();
  }
  EXPECT_EQ(ReadAll(TestFile("appended")), "one\nerror\ntwo\nerror\n");
  std::filesystem::remove(TestFile("appended"));
}

TEST_P(ChildProcessesTest, NamesAMissingProgram) {
  const auto pid = children_->Start({{"/no/such/program"}, TestFile("log")});
  EXPECT_TRUE(absl::IsNotFound(pid.status())) << pid.status();
  EXPECT_THAT(pid.status().message(), HasSubstr("/no/such/program"));
  EXPECT_EQ(children_->living(), 0u);
}

TEST_P(ChildProcessesTest, NamesALogThatCannotBeWritten) {
  const auto pid = children_->Start({{"/bin/true"}, "/no/such/directory/log"});
  EXPECT_FALSE(pid.ok());
  EXPECT_THAT(pid.status().message(), HasSubstr("/no/such/directory/log"));
}

TEST_P(ChildProcessesTest, AChildLeadsItsOwnGroupAndHasNoInput) {
  const auto pid = Shell("read line && echo read; exec sleep 1000");
  ASSERT_TRUE(pid.ok());
  EXPECT_EQ(getpgid(*pid), *pid);
  children_->Signal(*pid, SIGKILL);
  WaitForEnd();
}

TEST_P(ChildProcessesTest, SignalsThatTheParentBlocksReachTheChild) {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
  // The object's threads inherit the mask.
  children_ = Make();
  const auto pid = Shell("exec sleep 1000");
  ASSERT_TRUE(pid.ok());
  children_->Signal(*pid, SIGTERM);
  EXPECT_EQ(WaitForEnd().signal, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &terminate, nullptr);
}

TEST_P(ChildProcessesTest, KillsProcessesThatAnEndedChildStarted) {
  const std::string file = TestFile("grandchild");
  ASSERT_TRUE(Shell(absl::StrCat("sleep 1000 & echo $! > ", file, "; exit 0")).ok());
  const pid_t grandchild = ReadPid(file);
  ASSERT_GT(grandchild, 0);
  WaitForEnd();
  // It may stay a zombie if no process reaps orphans, but it must not run.
  EXPECT_TRUE(WaitUntil(
      [&] {
        return IsGone(grandchild) ||
               absl::StrContains(ReadAll(absl::StrCat("/proc/", grandchild, "/stat")), ") Z ");
      },
      absl::Seconds(10)));
}

TEST_P(ChildProcessesTest, DestructionKillsRunningChildren) {
  const auto pid = Shell("trap '' TERM; while :; do sleep 1000; done");
  ASSERT_TRUE(pid.ok());
  children_.reset();
  EXPECT_TRUE(IsGone(*pid));
}

// The newest child of this process whose file `what` in /proc begins so; 0 if there is none.
pid_t FindChild(const std::string& what, const std::string& begin) {
  pid_t found = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(thread.path() / "children");
    for (pid_t pid = 0; children >> pid;) {
      const std::string text = ReadAll(absl::StrCat("/proc/", pid, "/", what));
      if (absl::StartsWith(text, begin)) found = std::max(found, pid);
    }
  }
  return found;
}

pid_t FindGuard() { return FindChild("comm", "sluice-guard"); }

pid_t FindServer() {
  return FindChild("cmdline", absl::StrCat(OwnProgram(), std::string(1, '\0'), kForkServer));
}

TEST_P(ChildProcessesTest, AFrozenGuardDelaysDestructionOnlyByItsTimeout) {
  ASSERT_TRUE(Shell("sleep 1000").ok());
  pid_t guard = 0;
  // The guard sets its name a moment after it starts.
  ASSERT_TRUE(WaitUntil([&] { return (guard = FindGuard()) != 0; }, absl::Seconds(10)));
  ASSERT_EQ(kill(guard, SIGSTOP), 0);
  children_.reset();
  EXPECT_TRUE(IsGone(guard));
}

TEST_P(ChildProcessesTest, ChildrenDieWithTheirParentEvenIfItIsKilled) {
  const std::string file = TestFile("orphan");
  std::filesystem::remove(file);
  // Makes this process the parent of orphans, so that it can see them end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcesses own([](const ChildProcesses::End&) {});
    LoadIfForked(own);
    (void)Shell(own, absl::StrCat("echo $$ > ", file, "; exec sleep 1000"), "orphan-log");
    pause();
    _exit(0);
  }
  const pid_t child = ReadPid(file);
  ASSERT_GT(child, 0);
  ASSERT_FALSE(IsGone(child));
  kill(parent, SIGKILL);
  const absl::Time killed = absl::Now();
  int status = 0;
  EXPECT_EQ(waitpid(parent, &status, 0), parent);
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_LT(absl::Now() - killed, absl::Seconds(30));  // it would not end by itself
}

TEST_P(ChildProcessesTest, GrandchildrenDieWithTheParentEvenIfItIsKilled) {
  const std::string file = TestFile("left-grandchild");
  std::filesystem::remove(file);
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcesses own([](const ChildProcesses::End&) {});
    LoadIfForked(own);
    (void)Shell(own, absl::StrCat("sleep 1000 & echo $! > ", file, "; wait"), "left-log");
    pause();
    _exit(0);
  }
  const pid_t grandchild = ReadPid(file);
  ASSERT_GT(grandchild, 0);
  ASSERT_FALSE(IsGone(grandchild));
  kill(parent, SIGKILL);
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  // It is an orphan of this process, unless the shell reaped it first.
  EXPECT_TRUE(WaitUntil(
      [&] {
        while (waitpid(-1, nullptr, WNOHANG) > 0) {
        }
        return IsGone(grandchild);
      },
      absl::Seconds(30)));
}

INSTANTIATE_TEST_SUITE_P(StartedAndForked, ChildProcessesTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Forked" : "Started"; });

using ForkServerTest = ChildProcessesTest;

TEST_P(ForkServerTest, AChildIsForkedAndShowsItsOwnArguments) {
  const auto pid = Shell("exec sleep 1000");
  ASSERT_TRUE(pid.ok()) << pid.status();
  EXPECT_TRUE(WaitUntil([&] { return FindChild("comm", "sleep") == *pid; }, absl::Seconds(10)));
  const auto words = children_->Start({{OwnProgram(), kWaits, "two words"}, TestFile("log")});
  ASSERT_TRUE(words.ok()) << words.status();
  const std::string expected = absl::StrJoin(
      {OwnProgram(), std::string(kWaits), std::string("two words")}, std::string(1, '\0'));
  EXPECT_EQ(FindChild("cmdline", expected), *words);
  EXPECT_GT(FindServer(), 0);
}

TEST_P(ForkServerTest, AProgramOfAnotherPathIsStarted) {
  ASSERT_TRUE(children_->Start({{"/bin/sh", "-c", "echo other"}, TestFile("other")}).ok());
  EXPECT_EQ(WaitForEnd().code, 0);
  EXPECT_EQ(ReadAll(TestFile("other")), "other\n");
}

TEST_P(ForkServerTest, ChildrenOutliveTheirServerAndLaterOnesAreStarted) {
  const auto first = children_->Start({{OwnProgram(), kWaits}, TestFile("log")});
  ASSERT_TRUE(first.ok()) << first.status();
  const pid_t server = FindServer();
  ASSERT_GT(server, 0);
  ASSERT_EQ(kill(server, SIGKILL), 0);
  const auto second = children_->Start({{OwnProgram(), kWaits}, TestFile("log")});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(IsGone(server));
  EXPECT_EQ(children_->living(), 2u);
  children_->Signal(*first, SIGKILL);
  EXPECT_EQ(WaitForEnd().pid, *first);
}

TEST_P(ForkServerTest, AnyNumberOfChildrenCanBeForked) {
  for (int i = 0; i < 100; ++i) {
    const auto pid = Shell("exit 3");
    ASSERT_TRUE(pid.ok()) << pid.status();
    EXPECT_EQ(WaitForEnd().code, 3);
  }
}

TEST_P(ForkServerTest, DestructionEndsTheServer) {
  const pid_t server = FindServer();
  ASSERT_GT(server, 0);
  children_.reset();
  EXPECT_TRUE(IsGone(server));
}

TEST_P(ForkServerTest, AProgramThatIsNoServerIsStarted) {
  children_.reset();
  children_ = std::make_unique<ChildProcesses>([](const ChildProcesses::End&) {});
  children_->Load("/bin/false");
  EXPECT_TRUE(WaitUntil([&] { return !children_->Loading(); }, absl::Seconds(10)));
  EXPECT_TRUE(children_->Start({{"/bin/false"}, TestFile("log")}).ok());
}

INSTANTIATE_TEST_SUITE_P(Forked, ForkServerTest, ::testing::Values(true));

}  // namespace
}  // namespace sluice::local

int main(int argc, char** argv) {
  using sluice::local::kWaits;
  std::vector<char*> arguments(argv, argv + argc);
  if (argc > 1 && std::string(argv[1]) == sluice::kForkServer) {
    arguments = sluice::ServeForks(argc, argv);
    if (std::string(arguments[1]) != kWaits) return sluice::local::RunScript(arguments);
  }
  if (arguments.size() > 1 && std::string(arguments[1]) == kWaits) {
    pause();
    return 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
