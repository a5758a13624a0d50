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
#include "absl/time/clock.h"

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

class ChildProcessesTest : public ::testing::Test {
 protected:
  ChildProcessesTest()
      : children_(std::make_unique<ChildProcesses>([this](const ChildProcesses::End& end) {
          MutexLock lock(&mutex_);
          ends_.push_back(end);
          changed_.SignalAll();
        })) {}

  absl::StatusOr<pid_t> Shell(const std::string& script, const std::string& log = "log") {
    return children_->Start({{"/bin/sh", "-c", script}, TestFile(log)});
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

TEST_F(ChildProcessesTest, ReportsExitCodesAndSignals) {
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

TEST_F(ChildProcessesTest, AppendsToTheLogOfEarlierInstances) {
  for (const char* word : {"one", "two"}) {
    ASSERT_TRUE(Shell(absl::StrCat("echo ", word, "; echo error >&2"), "appended").ok());
    WaitForEnd();
  }
  EXPECT_EQ(ReadAll(TestFile("appended")), "one\nerror\ntwo\nerror\n");
}

TEST_F(ChildProcessesTest, NamesAMissingProgram) {
  const auto pid = children_->Start({{"/no/such/program"}, TestFile("log")});
  EXPECT_TRUE(absl::IsNotFound(pid.status())) << pid.status();
  EXPECT_THAT(pid.status().message(), HasSubstr("/no/such/program"));
  EXPECT_EQ(children_->living(), 0u);
}

TEST_F(ChildProcessesTest, NamesALogThatCannotBeWritten) {
  const auto pid = children_->Start({{"/bin/true"}, "/no/such/directory/log"});
  EXPECT_FALSE(pid.ok());
  EXPECT_THAT(pid.status().message(), HasSubstr("/no/such/directory/log"));
}

TEST_F(ChildProcessesTest, AChildLeadsItsOwnGroupAndHasNoInput) {
  const auto pid = Shell("read line && echo read; exec sleep 1000");
  ASSERT_TRUE(pid.ok());
  EXPECT_EQ(getpgid(*pid), *pid);
  children_->Signal(*pid, SIGKILL);
  WaitForEnd();
}

TEST_F(ChildProcessesTest, SignalsThatTheParentBlocksReachTheChild) {
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
  // The object's threads inherit the mask.
  children_ = std::make_unique<ChildProcesses>([this](const ChildProcesses::End& end) {
    MutexLock lock(&mutex_);
    ends_.push_back(end);
    changed_.SignalAll();
  });
  const auto pid = Shell("exec sleep 1000");
  ASSERT_TRUE(pid.ok());
  children_->Signal(*pid, SIGTERM);
  EXPECT_EQ(WaitForEnd().signal, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &terminate, nullptr);
}

TEST_F(ChildProcessesTest, KillsProcessesThatAnEndedChildStarted) {
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

TEST_F(ChildProcessesTest, DestructionKillsRunningChildren) {
  const auto pid = Shell("trap '' TERM; while :; do sleep 1000; done");
  ASSERT_TRUE(pid.ok());
  children_.reset();
  EXPECT_TRUE(IsGone(*pid));
}

// The newest child of this process that is a guard; 0 if there is none.
pid_t FindGuard() {
  pid_t guard = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream children(thread.path() / "children");
    for (pid_t pid = 0; children >> pid;) {
      std::string name;
      std::ifstream(absl::StrCat("/proc/", pid, "/comm")) >> name;
      if (name == "sluice-guard") guard = std::max(guard, pid);
    }
  }
  return guard;
}

TEST_F(ChildProcessesTest, AFrozenGuardDelaysDestructionOnlyByItsTimeout) {
  ASSERT_TRUE(Shell("sleep 1000").ok());
  pid_t guard = 0;
  // The guard sets its name a moment after it starts.
  ASSERT_TRUE(WaitUntil([&] { return (guard = FindGuard()) != 0; }, absl::Seconds(10)));
  ASSERT_EQ(kill(guard, SIGSTOP), 0);
  children_.reset();
  EXPECT_TRUE(IsGone(guard));
}

TEST_F(ChildProcessesTest, ChildrenDieWithTheirParentEvenIfItIsKilled) {
  const std::string file = TestFile("orphan");
  // Makes this process the parent of orphans, so that it can see them end.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcesses own([](const ChildProcesses::End&) {});
    (void)own.Start({{"/bin/sh", "-c", absl::StrCat("echo $$ > ", file, "; exec sleep 1000")},
                     TestFile("orphan-log")});
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

TEST_F(ChildProcessesTest, GrandchildrenDieWithTheParentEvenIfItIsKilled) {
  const std::string file = TestFile("left-grandchild");
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    ChildProcesses own([](const ChildProcesses::End&) {});
    (void)own.Start({{"/bin/sh", "-c", absl::StrCat("sleep 1000 & echo $! > ", file, "; wait")},
                     TestFile("left-log")});
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

}  // namespace
}  // namespace sluice::local
