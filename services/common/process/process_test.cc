#include "services/common/process/process.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "services/common/io/file_util.h"
#include "services/common/threads/mutex.h"

namespace sluice {
namespace {

TEST(ProcessTest, IncarnationsAreNotZeroAndDiffer) {
  std::set<uint64_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(RandomIncarnation());
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(seen.count(0), 0u);
}

TEST(ProcessTest, WritesPortFile) {
  const std::string path = JoinPath(::testing::TempDir(), "port");
  ASSERT_TRUE(WritePortFile(path, 29500).ok());
  EXPECT_EQ(*MakeRealFileSystem()->Read(path, 100), "29500\n");
}

TEST(ProcessTest, DieWithParentFailsIfParentIsGone) {
  const absl::Status status = DieWithParent(getpid());  // not our own parent
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

// The grandchild has the pipe's write end, which closes when the grandchild is dead.
TEST(ProcessTest, ChildDiesWithParent) {
  int alive[2];
  ASSERT_EQ(pipe(alive), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t self = getpid();
    if (fork() == 0) {
      if (!DieWithParent(self).ok()) _exit(1);
      const char ready = 'r';
      if (write(alive[1], &ready, 1) != 1) _exit(1);
      while (true) pause();
    }
    while (true) pause();
  }
  close(alive[1]);
  char byte = 0;
  ASSERT_EQ(read(alive[0], &byte, 1), 1);
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  EXPECT_EQ(read(alive[0], &byte, 1), 0);
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  close(alive[0]);
}

TEST(SignalWatcherTest, KeepsIgnoringIgnoredHangup) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGHUP, SIG_IGN);
    SignalWatcher watcher([](int signal) { _exit(signal == SIGTERM ? 0 : 1); });
    kill(getpid(), SIGHUP);
    kill(getpid(), SIGTERM);
    while (true) pause();
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Like the threads of OpenBLAS, which LibTorch loads.
TEST(SignalWatcherTest, ForwardsSignalTakenByEarlierThread) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
    std::thread([] {
      while (true) pause();
    }).detach();
    SignalWatcher watcher([](int signal) { _exit(signal == SIGTERM ? 0 : 1); });
    kill(getpid(), SIGTERM);
    while (true) pause();
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(SignalWatcherTest, CallsBackOnNormalThread) {
  signal(SIGHUP, SIG_DFL);
  Mutex mutex;
  CondVar changed;
  std::vector<int> seen;
  SignalWatcher watcher([&](int signal) {
    MutexLock lock(&mutex);
    seen.push_back(signal);
    changed.SignalAll();
  });
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) {
    ASSERT_EQ(kill(getpid(), signal), 0);
    MutexLock lock(&mutex);
    while (seen.empty() || seen.back() != signal) changed.Wait(&mutex);
  }
  EXPECT_EQ(seen.size(), 3u);
}

}  // namespace
}  // namespace sluice
