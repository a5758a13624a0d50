#include "cli/cluster/port_forward.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"

namespace sluice::cli {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr size_t kMaxOutput = 64 << 10;
constexpr char kOpen[] = "Forwarding from 127.0.0.1:";

}  // namespace

absl::StatusOr<std::string> FindKubectl(const std::string& path) {
  for (absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    std::string file = JoinPath(directory, "kubectl");
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return absl::FailedPreconditionError(
      "kubectl is not in PATH: sluice reaches a job's processes on a cluster through `kubectl "
      "port-forward`. "
      "Install it (https://kubernetes.io/docs/tasks/tools), or inspect a checkpoint instead");
}

absl::StatusOr<std::unique_ptr<PortForward>> PortForward::Start(const Options& options) {
  std::vector<std::string> arguments = {options.kubectl, "port-forward"};
  arguments.insert(arguments.end(), options.flags.begin(), options.flags.end());
  arguments.insert(arguments.end(),
                   {"--namespace", options.pod.ns, "--address", "127.0.0.1",
                    absl::StrCat("pod/", options.pod.name), absl::StrCat(":", options.port)});

  std::vector<char*> raw;
  for (std::string& argument : arguments) raw.push_back(argument.data());
  raw.push_back(nullptr);

  // Not a pipe, which would fill up: kubectl keeps printing and the output is not read.
  const int output = memfd_create("kubectl", MFD_CLOEXEC);
  if (output < 0) return absl::ErrnoToStatus(errno, "memfd_create");

  const int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t self = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(output);
    close(input);
    return absl::ErrnoToStatus(error, "fork");
  }

  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != self) _exit(1);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execv(raw[0], raw.data());
    _exit(127);
  }

  close(input);
  std::unique_ptr<PortForward> forward(new PortForward(pid, output));
  RETURN_IF_ERROR(forward->WaitUntilOpen(options.timeout),
                  absl::Status(_.code(), absl::StrCat("kubectl port-forward pod/", options.pod.name,
                                                      ": ", _.message())));
  return forward;
}

PortForward::~PortForward() {
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close(output_);
}

std::string PortForward::Output() const {
  std::string text(kMaxOutput, '\0');
  const ssize_t got = pread(output_, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

absl::Status PortForward::WaitUntilOpen(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (true) {
    const std::string text = Output();
    const size_t at = text.find(kOpen);
    const size_t end = at == std::string::npos ? at : text.find(" -> ", at);
    if (end != std::string::npos) {
      const size_t port = at + sizeof(kOpen) - 1;
      address_ = absl::StrCat("127.0.0.1:", text.substr(port, end - port));
      return absl::OkStatus();
    }

    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = 0;
      const std::string said(absl::StripAsciiWhitespace(Output()));
      return absl::UnavailableError(said.empty() ? "it exited without output" : said);
    }

    if (absl::Now() >= deadline)
      return absl::DeadlineExceededError("it did not open the port in time");
    absl::SleepFor(kPoll);
  }
}

}  // namespace sluice::cli
