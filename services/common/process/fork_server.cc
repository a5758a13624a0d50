#include "services/common/process/fork_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kMaxRequestBytes = size_t{64} << 10;
// For the arguments of a new process; longer ones are shown cut off.
constexpr size_t kTitleBytes = 4096;

// An answer of the server. `pid` 0: the process could not be made.
struct Answer {
  pid_t pid = 0;
  int error = 0;
};

struct Received {
  std::string text;  // the requester's pid and the arguments, each ended by a NUL
  int output = -1;
  int guard = -1;
};

constexpr size_t kDescriptors = 2;
using Control = std::array<char, CMSG_SPACE(kDescriptors * sizeof(int))>;

void Send(const Answer& answer) {
  while (send(STDIN_FILENO, &answer, sizeof(answer), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

// False: the requester is gone, or sent something else.
bool Receive(Received* received) {
  received->text.resize(kMaxRequestBytes);
  alignas(cmsghdr) Control control = {};
  iovec part = {received->text.data(), received->text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();

  ssize_t got = 0;
  do {
    got = recvmsg(STDIN_FILENO, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);

  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (got <= 0 || header == nullptr || header->cmsg_len != CMSG_LEN(kDescriptors * sizeof(int))) {
    return false;
  }

  int descriptors[kDescriptors];
  std::memcpy(descriptors, CMSG_DATA(header), sizeof(descriptors));
  received->text.resize(static_cast<size_t>(got));
  received->output = descriptors[0];
  received->guard = descriptors[1];
  return true;
}

// Shows the new process's arguments in place of the server's, which `space` holds.
void SetTitle(absl::Span<char> space, const std::string& arguments) {
  std::fill(space.begin(), space.end(), '\0');
  const size_t length = std::min(arguments.size(), space.size() - 1);
  std::copy_n(arguments.begin(), length, space.begin());
}

// In a process whose parent is about to end: returns its new parent.
pid_t AwaitNewParent(pid_t old) {
  const timespec moment = {0, 20'000};
  while (getppid() == old) nanosleep(&moment, nullptr);
  return getppid();
}

// The new process, up to the program's main. `maker`: its first parent.
void Begin(const Received& request, pid_t requester, pid_t maker) {
  setpgid(0, 0);
  const pid_t own = getpid();
  while (send(request.guard, &own, sizeof(own), MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }

  // The signal comes from the parent at the time of this call.
  if (AwaitNewParent(maker) != requester || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 ||
      getppid() != requester) {
    _exit(127);
  }

  // Its standard input carries the answer until it is replaced.
  const int answers = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int null_input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  Answer answer = {own, 0};
  if (answers < 0 || null_input < 0 || dup2(null_input, STDIN_FILENO) < 0 ||
      dup2(request.output, STDOUT_FILENO) < 0 || dup2(request.output, STDERR_FILENO) < 0) {
    answer = {0, errno};
  }

  // If the answer cannot be sent, the requester has given up.
  const bool sent =
      send(answers, &answer, sizeof(answer), MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(answer));
  if (!sent || answer.pid == 0) _exit(127);
  for (const int used : {answers, null_input, request.output, request.guard}) close(used);
}

absl::Status NotUsable(absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("the process that forks workers ", why));
}

absl::StatusOr<Answer> ReadAnswer(int socket, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  pollfd ready = {socket, POLLIN, 0};
  int polled = 0;
  do {
    const absl::Duration left = std::max(deadline - absl::Now(), absl::ZeroDuration());
    polled = poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(left)));
  } while (polled < 0 && errno == EINTR);

  if (polled == 0) {
    return absl::DeadlineExceededError("the process that forks workers does not answer");
  }

  Answer answer;
  if (recv(socket, &answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer)) {
    return NotUsable("has ended");
  }
  return answer;
}

}  // namespace

std::vector<std::string> ForkServerArguments(const std::string& program) {
  return {program, kForkServer, std::string(kTitleBytes, ' ')};
}

std::vector<char*> ServeForks(int argc, char** argv) {
  // The arguments follow each other in memory.
  char* const last = argv[argc - 1];
  const absl::Span<char> space(argv[0],
                               static_cast<size_t>(last + std::strlen(last) + 1 - argv[0]));
  const std::string own = absl::StrCat(argv[0], std::string(1, '\0'), kForkServer);

  SetTitle(space, own);
  Send({getpid(), 0});
  static Received request;  // outlives this call in a new process
  while (Receive(&request)) {
    // fork twice: a process whose parent ends becomes a child of the requester, its nearest
    // ancestor that adopts (PR_SET_CHILD_SUBREAPER). glibc's fork, unlike clone(CLONE_PARENT), runs
    // the fork handlers with which libraries stop their threads and start them again.
    const pid_t maker = fork();
    if (maker == 0) {
      const pid_t first_parent = getpid();
      const pid_t made = fork();
      if (made < 0) Send({0, errno});
      if (made != 0) _exit(0);

      std::vector<char*> arguments;
      const size_t begin = request.text.find('\0') + 1;
      SetTitle(space, request.text.substr(begin));
      Begin(request, std::atoi(request.text.c_str()), first_parent);
      for (size_t at = begin; at < request.text.size(); at += std::strlen(arguments.back()) + 1) {
        arguments.push_back(request.text.data() + at);
      }
      return arguments;
    }

    // The server itself: it keeps nothing of the request, and reaps the intermediate process.
    if (maker < 0) Send({0, errno});
    close(request.output);
    close(request.guard);
    while (maker > 0 && waitpid(maker, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  _exit(0);
}

absl::Status AwaitForkServer(int socket, absl::Duration timeout) {
  return ReadAnswer(socket, timeout).status();
}

absl::StatusOr<pid_t> RequestFork(int socket, const ForkRequest& request, absl::Duration timeout) {
  const std::string end(1, '\0');
  std::string text = absl::StrCat(getpid(), end, absl::StrJoin(request.arguments, end), end);
  if (text.size() > kMaxRequestBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("arguments of ", text.size(), " bytes, at most ", kMaxRequestBytes));
  }
  // A file takes no messages.
  const int descriptors[kDescriptors] = {request.output,
                                         request.guard < 0 ? request.output : request.guard};
  alignas(cmsghdr) Control control = {};
  iovec part = {text.data(), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(descriptors));
  std::memcpy(CMSG_DATA(header), descriptors, sizeof(descriptors));

  // Only for this moment: a process that loses its parent later goes to init, as before.
  int adopts = 0;
  prctl(PR_GET_CHILD_SUBREAPER, &adopts);
  prctl(PR_SET_CHILD_SUBREAPER, 1);

  absl::StatusOr<Answer> answer = NotUsable("has ended");
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
    answer = ReadAnswer(socket, timeout);
  }
  prctl(PR_SET_CHILD_SUBREAPER, adopts);

  RETURN_IF_ERROR(answer.status());
  if (answer->pid == 0) return absl::ErrnoToStatus(answer->error, "a process could not be made");
  return answer->pid;
}

}  // namespace sluice
