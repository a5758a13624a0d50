// Starts processes of a program that takes long to load, without loading it each time.
//
// `PROGRAM fork-server` loads once and then forks a process for each request
// (docs/decisions/local-processes.md). The requests come through the server's standard input, one
// end of a socket pair (SOCK_SEQPACKET).
#ifndef SLUICE_SERVICES_COMMON_PROCESS_FORK_SERVER_H_
#define SLUICE_SERVICES_COMMON_PROCESS_FORK_SERVER_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

inline constexpr char kForkServer[] = "fork-server";

// The server's arguments. They leave room in which a process writes its own, for ps(1).
std::vector<std::string> ForkServerArguments(const std::string& program);

// The server, called by main before the program starts threads. Returns only in the new processes,
// with their arguments; the server ends when the other end of its standard input is closed.
//
// A new process is a child of the requester, leads its own process group, and is killed when its
// parent ends (PR_SET_PDEATHSIG). It has no standard input. It has the server's environment.
std::vector<char*> ServeForks(int argc, char** argv);

struct ForkRequest {
  std::vector<std::string> arguments;  // the first is the path of the program
  // Both stay the caller's: the new process gets copies.
  int output = -1;  // of the new process: standard output and error
  int guard = -1;   // receives the new process's pid (pid_t) before it begins; -1: none
};

// Waits until the server has loaded, at most for `timeout`. UNAVAILABLE: it has ended.
absl::Status AwaitForkServer(int socket, absl::Duration timeout);

// Returns the new process's id once it runs. The caller must be an ancestor of the server.
// DEADLINE_EXCEEDED or UNAVAILABLE: the server does not answer, and is to be killed. Other errors,
// such as RESOURCE_EXHAUSTED: the process could not be made.
absl::StatusOr<pid_t> RequestFork(int socket, const ForkRequest& request, absl::Duration timeout);

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_FORK_SERVER_H_
