#include "cli/local/child_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/process.h"

namespace sluice::local {
namespace {

// A child that has not run its program after this time is killed. The parent waits for it.
constexpr int kExecPatienceMs = 10'000;

// The error that a child sends through the pipe if it cannot become the program.
struct ChildError {
  int error = 0;
  bool exec = false;  // false: before exec
};

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeProgram(char* const* arguments, int log, int null_input, int error_pipe,
                                pid_t parent, const ProcessGuard& guard) {
  ChildError error;
  setpgid(0, 0);
  guard.Add(getpid());
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || dup2(null_input, STDIN_FILENO) < 0 ||
      dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0) {
    error.error = errno;
  } else if (getppid() == parent) {
    UnblockSignalsInChild();
    execv(arguments[0], arguments);
    error = {errno, true};
  }
  (void)!write(error_pipe, &error, sizeof(error));
  _exit(127);
}

// glibc 2.36 declares pidfd_open for C only.
int OpenPidFd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

absl::Status ErrorOf(int error, const std::string& what) {
  return absl::ErrnoToStatus(error, what);
}

absl::StatusOr<pid_t> Spawn(const ChildProcesses::Command& command, const ProcessGuard& guard) {
  std::vector<char*> arguments;
  arguments.reserve(command.arguments.size() + 1);
  for (const std::string& argument : command.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const int log = open(command.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return ErrorOf(errno, command.log_file);
  const int null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  int error_pipe[2] = {-1, -1};
  if (null_input < 0 || pipe2(error_pipe, O_CLOEXEC) != 0) {
    const int error = errno;
    close(log);
    if (null_input >= 0) close(null_input);
    return ErrorOf(error, "a process could not be started");
  }

  const pid_t parent = getpid();
  const pid_t pid = fork();
  const int fork_error = errno;
  if (pid == 0) BecomeProgram(arguments.data(), log, null_input, error_pipe[1], parent, guard);
  close(log);
  close(null_input);
  close(error_pipe[1]);

  ChildError error;
  ssize_t got = 0;
  pollfd ready = {error_pipe[0], POLLIN, 0};
  int polled = 1;
  if (pid > 0) {
    do {
      polled = poll(&ready, 1, kExecPatienceMs);
    } while (polled < 0 && errno == EINTR);
    if (polled == 0) kill(pid, SIGKILL);  // ends the read below
    do {
      got = read(error_pipe[0], &error, sizeof(error));
    } while (got < 0 && errno == EINTR);
  }
  close(error_pipe[0]);

  if (pid < 0) return ErrorOf(fork_error, "a process could not be started");
  if (polled == 0) {
    guard.Remove(pid);
    waitpid(pid, nullptr, 0);
    return absl::DeadlineExceededError(
        absl::StrCat(command.arguments[0], " did not start within ", kExecPatienceMs / 1000, " s"));
  }
  if (got == 0) return pid;
  guard.Remove(pid);
  waitpid(pid, nullptr, 0);
  return ErrorOf(error.error, error.exec ? command.arguments[0] : "a process could not be started");
}

}  // namespace

ChildProcesses::ChildProcesses(std::function<void(const End&)> on_end)
    : on_end_(std::move(on_end)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  SLUICE_CHECK(wake_fd_ >= 0, "no eventfd");
  thread_ = std::thread([this] { Loop(); });
}

ChildProcesses::~ChildProcesses() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (const auto& [pid, fd] : pid_fds_) kill(-pid, SIGKILL);
  }
  Wake();
  thread_.join();
  close(wake_fd_);
}

absl::StatusOr<pid_t> ChildProcesses::Start(const Command& command) {
  Request request;
  request.command = &command;
  {
    MutexLock lock(&mutex_);
    requests_.push_back(&request);
  }
  Wake();
  request.done.Wait();
  return request.result;
}

void ChildProcesses::Signal(pid_t pid, int signal) {
  MutexLock lock(&mutex_);
  // A child in the map is not reaped, so the pid is still its own.
  if (pid_fds_.count(pid) == 0) return;
  kill(signal == SIGKILL ? -pid : pid, signal);
}

size_t ChildProcesses::living() const {
  MutexLock lock(&mutex_);
  return pid_fds_.size();
}

void ChildProcesses::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));
}

void ChildProcesses::Loop() {
  std::vector<pollfd> waits;
  while (true) {
    std::vector<Request*> requests;
    waits.assign(1, {wake_fd_, POLLIN, 0});
    {
      MutexLock lock(&mutex_);
      requests.swap(requests_);
      if (stopping_ && pid_fds_.empty() && requests.empty()) return;
      for (const auto& [pid, fd] : pid_fds_) waits.push_back({fd, POLLIN, 0});
    }
    for (Request* request : requests) {
      request->result = Spawn(*request->command, guard_);
      if (request->result.ok()) {
        const int fd = OpenPidFd(*request->result);
        SLUICE_CHECK(fd >= 0, "cannot open a pidfd of a child");
        MutexLock lock(&mutex_);
        pid_fds_[*request->result] = fd;
        if (stopping_) kill(-*request->result, SIGKILL);
      }
      request->done.Notify();
    }
    if (!requests.empty()) continue;
    poll(waits.data(), waits.size(), -1);
    uint64_t ignored = 0;
    (void)!read(wake_fd_, &ignored, sizeof(ignored));
    Reap();
  }
}

void ChildProcesses::Reap() {
  std::vector<End> ends;
  bool tell = true;
  {
    MutexLock lock(&mutex_);
    tell = !stopping_;
    for (auto it = pid_fds_.begin(); it != pid_fds_.end();) {
      const auto [pid, fd] = *it;
      siginfo_t info = {};
      // Until the leader is reaped, no other group can have this number.
      if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        ++it;
        continue;
      }
      kill(-pid, SIGKILL);
      guard_.Remove(pid);
      waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
      close(fd);
      const bool exited = info.si_code == CLD_EXITED;
      ends.push_back({pid, exited ? info.si_status : 0, exited ? 0 : info.si_status});
      it = pid_fds_.erase(it);
    }
  }
  if (!tell) return;
  for (const End& end : ends) on_end_(end);
}

}  // namespace sluice::local
