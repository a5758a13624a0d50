// Kills the processes that a killed process leaves behind.
#ifndef SLUICE_CLI_LOCAL_PROCESS_GUARD_H_
#define SLUICE_CLI_LOCAL_PROCESS_GUARD_H_

#include <sys/types.h>

namespace sluice::local {

// A separate process with a list of this process's child groups. It kills the remaining groups when
// this process is gone, however it ended. The kernel ends children with their parent
// (PR_SET_PDEATHSIG), but not the processes that these have started: `bash -c "train & wait"`.
//
// The guard waits on one end of a socket: when the last holder of the other end is gone, it kills
// the groups and exits. It has no other open files. Not thread-safe, except Add.
class ProcessGuard {
 public:
  // Forks the guard. If that fails (no processes left), the other calls have no effect.
  ProcessGuard();
  // Groups that are still known are killed. Waits for the guard; after 2 s a frozen guard is
  // killed.
  ~ProcessGuard();

  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  // Async-signal-safe: a child calls it for the group that it leads, before it becomes its program,
  // so the group is in the guard's list at all times.
  void Add(pid_t group) const;
  // To be called before the group's leader is reaped: afterwards another group may get the number.
  void Remove(pid_t group) const;
  // A message of a group's number (pid_t) adds it. -1: there is no guard.
  int socket() const { return socket_; }

 private:
  // Sends the guard a group to add, or, if negative, to remove.
  void Send(pid_t word) const;

  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace sluice::local

#endif  // SLUICE_CLI_LOCAL_PROCESS_GUARD_H_
