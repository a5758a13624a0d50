#include "cli/local/process_guard.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>

namespace sluice::local {
namespace {

// More processes than a job can have: one coordinator, 1,024 shards, 1,024 workers.
constexpr size_t kMaxGroups = 4096;
// A frozen guard delays its parent by at most this: a message to it is dropped, and at the end it
// is killed.
constexpr int kPatienceMs = 2000;

// Runs after a fork of a process with threads: only async-signal-safe calls, and no memory but
// this.
[[noreturn]] void Guard(int socket) {
  static pid_t groups[kMaxGroups];
  size_t count = 0;
  // Signals from the terminal, or from `kill` to a group, are not meant for the guard.
  setpgid(0, 0);
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) signal(ignored, SIG_IGN);
  prctl(PR_SET_NAME, "sluice-guard");

  // The guard must not keep locks, pipes or terminals open. The socket is moved to 0.
  if (dup2(socket, 0) != 0) _exit(1);
  close_range(1, ~0U, 0);

  while (true) {
    pid_t word = 0;
    const ssize_t got = recv(0, &word, sizeof(word), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(word)) break;

    if (word > 0 && count < kMaxGroups) groups[count++] = word;
    if (word < 0) {
      pid_t* const found = std::find(groups, groups + count, -word);
      if (found != groups + count) *found = groups[--count];
    }
  }

  for (size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

ProcessGuard::ProcessGuard() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;

  pid_ = fork();
  if (pid_ == 0) {
    close(ends[1]);
    Guard(ends[0]);
  }

  close(ends[0]);
  if (pid_ > 0) {
    socket_ = ends[1];
    const timeval patience = {kPatienceMs / 1000, 0};
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  } else {
    close(ends[1]);
  }
}

ProcessGuard::~ProcessGuard() {
  if (socket_ < 0) return;
  close(socket_);
  const int pid_fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended = {pid_fd, POLLIN, 0};
  if (poll(&ended, 1, kPatienceMs) <= 0) kill(pid_, SIGKILL);
  if (pid_fd >= 0) close(pid_fd);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessGuard::Add(pid_t group) const { Send(group); }
void ProcessGuard::Remove(pid_t group) const { Send(-group); }

void ProcessGuard::Send(pid_t word) const {
  if (socket_ < 0) return;
  while (send(socket_, &word, sizeof(word), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace sluice::local
