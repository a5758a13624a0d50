#include "cli/local/child_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/check.h"
#include "services/common/io/listener.h"
#include "services/common/process/fork_server.h"
#include "services/common/process/process.h"

namespace sluice::local {
namespace {

// A child that has not run its program after this time is killed. The parent waits for it.
constexpr int kExecPatienceMs = 10'000;
// A program that has not loaded after this time, or does not fork within it, is not waited for any
// longer.
constexpr absl::Duration kServerPatience = absl::Seconds(10);

// The error that a child sends through the pipe if it cannot become the program.
struct ChildError {
  int error = 0;
  bool exec = false;  // false: before exec
};

// A child's standard streams; -1: those of this process, and `terminal`.
struct Streams {
  int input = -1;
  int output = -1;
  const Terminal* terminal = nullptr;
};

bool Adopt(const Streams& streams) {
  if (streams.terminal != nullptr) {
    streams.terminal->TakeInChild();
    return true;
  }
  return dup2(streams.input, STDIN_FILENO) >= 0 && dup2(streams.output, STDOUT_FILENO) >= 0 &&
         dup2(streams.output, STDERR_FILENO) >= 0;
}

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeProgram(char* const* arguments, const Streams& streams, int error_pipe,
                                pid_t parent, const ProcessGuard& guard) {
  ChildError error;
  setpgid(0, 0);
  guard.Add(getpid());

  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || !Adopt(streams)) {
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

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words, const Streams& streams,
                            const ProcessGuard& guard) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrorOf(errno, "a process could not be started");
  const Fd errors(ends[0]);
  Fd child_errors(ends[1]);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) return ErrorOf(errno, "a process could not be started");
  if (pid == 0) BecomeProgram(arguments.data(), streams, ends[1], parent, guard);
  child_errors = Fd();

  ChildError error;
  ssize_t got = 0;
  pollfd ready = {errors.get(), POLLIN, 0};
  int polled = 1;
  do {
    polled = poll(&ready, 1, kExecPatienceMs);
  } while (polled < 0 && errno == EINTR);
  if (polled == 0) kill(pid, SIGKILL);  // ends the read below
  do {
    got = read(errors.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (polled != 0 && got == 0) return pid;

  guard.Remove(pid);
  waitpid(pid, nullptr, 0);
  if (polled == 0) {
    return absl::DeadlineExceededError(
        absl::StrCat(words[0], " did not start within ", kExecPatienceMs / 1000, " s"));
  }
  return ErrorOf(error.error, error.exec ? words[0] : "a process could not be started");
}

int OpenNull(int mode) { return open("/dev/null", mode | O_CLOEXEC); }

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
  DropServer();
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

void ChildProcesses::Load(const std::string& program) {
  {
    MutexLock lock(&mutex_);
    if (server_.state != Server::kNone) return;
    server_.state = Server::kWanted;
    server_.program = program;
    server_.since = absl::Now();
  }
  Wake();
}

bool ChildProcesses::Loading() {
  MutexLock lock(&mutex_);
  if (server_.state == Server::kLoading) {
    const absl::Status loaded = AwaitForkServer(server_.socket, absl::ZeroDuration());
    if (loaded.ok()) server_.state = Server::kReady;
    if (absl::IsUnavailable(loaded)) server_.state = Server::kFailed;
  }
  const bool loading = server_.state == Server::kWanted || server_.state == Server::kLoading;
  return loading && absl::Now() < server_.since + kServerPatience;
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
    bool server_wanted = false;
    waits.assign(1, {wake_fd_, POLLIN, 0});
    {
      MutexLock lock(&mutex_);
      requests.swap(requests_);
      server_wanted = server_.state == Server::kWanted;
      if (stopping_ && pid_fds_.empty() && requests.empty()) return;
      for (const auto& [pid, fd] : pid_fds_) waits.push_back({fd, POLLIN, 0});
    }

    if (server_wanted) StartServer();
    for (Request* request : requests) {
      request->result = StartChild(*request->command);
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

void ChildProcesses::StartServer() {
  std::string program;
  {
    MutexLock lock(&mutex_);
    program = server_.program;
  }

  int ends[2] = {-1, -1};
  absl::StatusOr<pid_t> pid = absl::UnknownError("no socket");
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0) {
    const Fd input(ends[1]);
    const Fd output(OpenNull(O_WRONLY));
    pid = Spawn(ForkServerArguments(program), {input.get(), output.get()}, guard_);
  }

  MutexLock lock(&mutex_);
  server_.socket = ends[0];
  server_.pid = pid.ok() ? *pid : 0;
  server_.state = pid.ok() ? Server::kLoading : Server::kFailed;
}

void ChildProcesses::DropServer() {
  MutexLock lock(&mutex_);
  if (server_.pid > 0) {
    kill(-server_.pid, SIGKILL);
    guard_.Remove(server_.pid);
    waitpid(server_.pid, nullptr, 0);
  }
  if (server_.socket >= 0) close(server_.socket);
  server_ = Server();
  server_.state = Server::kFailed;
}

absl::StatusOr<pid_t> ChildProcesses::StartChild(const Command& command) {
  if (command.foreground) {
    absl::StatusOr<pid_t> pid = Spawn(command.arguments, {-1, -1, &terminal_}, guard_);
    if (!pid.ok()) {
      terminal_.TakeBack();
      return pid;
    }
    MutexLock lock(&mutex_);
    foreground_ = *pid;
    return pid;
  }

  const Fd log(open(command.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (log.get() < 0) return ErrorOf(errno, command.log_file);

  int server = -1;
  (void)Loading();
  {
    MutexLock lock(&mutex_);
    const bool loaded = server_.state == Server::kReady;
    if (loaded && server_.program == command.arguments[0]) server = server_.socket;
  }

  if (server >= 0) {
    absl::StatusOr<pid_t> pid =
        RequestFork(server, {command.arguments, log.get(), guard_.socket()}, kServerPatience);
    if (!absl::IsUnavailable(pid.status()) && !absl::IsDeadlineExceeded(pid.status())) return pid;
    DropServer();
  }

  const Fd input(OpenNull(O_RDONLY));
  if (input.get() < 0) return ErrorOf(errno, "a process could not be started");
  return Spawn(command.arguments, {input.get(), log.get()}, guard_);
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
      if (pid == foreground_) {
        terminal_.TakeBack();
        foreground_ = 0;
      }
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
