#include "services/common/process/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/common/io/file_util.h"

namespace sluice {
namespace {

sigset_t WatchedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  // Under nohup SIGHUP is ignored and must stay so; if blocked, it would be delivered all the same.
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) != 0 || hangup.sa_handler != SIG_IGN) {
    sigaddset(&signals, SIGHUP);
  }
  return signals;
}

// For calls that cannot fail on a healthy system.
void CheckErrno(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

constexpr int kWatchable[] = {SIGTERM, SIGINT, SIGHUP};

// Threads that libraries start before main (OpenBLAS's, behind LibTorch) block no signals, so the
// kernel may deliver a signal of the process to one of them. A handler, which can use only globals,
// forwards it through this pipe, which is made once and kept.
std::atomic<int> forwarded_read{-1};
std::atomic<int> forwarded_write{-1};

void Forward(int signal) {
  const int before = errno;
  const auto byte = static_cast<unsigned char>(signal);
  (void)!write(forwarded_write.load(), &byte, 1);
  errno = before;
}

void ForwardFromOtherThreads(const sigset_t& signals) {
  if (forwarded_read.load() < 0) {
    int ends[2] = {-1, -1};
    CheckErrno(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "pipe2");
    forwarded_read = ends[0];
    forwarded_write = ends[1];
  }

  struct sigaction action = {};
  action.sa_handler = Forward;
  action.sa_flags = SA_RESTART;
  for (int signal : kWatchable) {
    if (sigismember(&signals, signal) != 1) continue;
    CheckErrno(sigaction(signal, &action, nullptr) == 0, "sigaction");
  }
}

}  // namespace

absl::Status DieWithParent(pid_t expected_parent) {
  CheckErrno(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl(PR_SET_PDEATHSIG)");
  // If the parent died before the call, the kernel sends no signal.
  if (getppid() == expected_parent) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the parent process ", expected_parent, " is gone"));
}

uint64_t RandomIncarnation() {
  uint64_t incarnation = 0;
  while (incarnation == 0) {
    const ssize_t got = getrandom(&incarnation, sizeof(incarnation), 0);
    if (got != static_cast<ssize_t>(sizeof(incarnation))) {
      CheckErrno(got >= 0 || errno == EINTR, "getrandom");
      incarnation = 0;
    }
  }
  return incarnation;
}

absl::Status WritePortFile(const std::string& path, int port) {
  const auto files = MakeRealFileSystem();
  return AtomicWriteFile(files.get(), path, absl::Cord(absl::StrCat(port, "\n")),
                         absl::StrCat(getpid()));
}

SignalWatcher::SignalWatcher(std::function<void(int)> on_signal)
    : on_signal_(std::move(on_signal)) {
  const sigset_t signals = WatchedSignals();
  CheckErrno(pthread_sigmask(SIG_BLOCK, &signals, nullptr) == 0, "pthread_sigmask");
  // Not blocking: another thread may take a signal between poll and read.
  signal_fd_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  CheckErrno(signal_fd_ >= 0, "signalfd");
  ForwardFromOtherThreads(signals);
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  CheckErrno(stop_fd_ >= 0, "eventfd");
  thread_ = std::thread([this] { Loop(); });
}

SignalWatcher::~SignalWatcher() {
  const uint64_t one = 1;
  CheckErrno(write(stop_fd_, &one, sizeof(one)) == sizeof(one), "write to an eventfd");
  thread_.join();
  close(stop_fd_);
  close(signal_fd_);
}

void SignalWatcher::Loop() {
  while (true) {
    pollfd ready[3] = {
        {stop_fd_, POLLIN, 0}, {signal_fd_, POLLIN, 0}, {forwarded_read.load(), POLLIN, 0}};
    if (poll(ready, 3, -1) < 0) {
      CheckErrno(errno == EINTR, "poll");
      continue;
    }

    if (ready[0].revents != 0) return;
    unsigned char forwarded = 0;
    if (ready[2].revents != 0 && read(ready[2].fd, &forwarded, 1) == 1) on_signal_(forwarded);

    if (ready[1].revents == 0) continue;
    signalfd_siginfo info;
    if (read(signal_fd_, &info, sizeof(info)) == sizeof(info)) {
      on_signal_(static_cast<int>(info.ssi_signo));
    }
  }
}

void UnblockSignalsInChild() {
  const sigset_t signals = WatchedSignals();
  for (int watched : kWatchable) {
    if (sigismember(&signals, watched) == 1) signal(watched, SIG_DFL);
  }
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_DFL);
}

}  // namespace sluice
