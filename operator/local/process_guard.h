// Kills what a killed process leaves behind.
#ifndef SLUICE_OPERATOR_LOCAL_PROCESS_GUARD_H_
#define SLUICE_OPERATOR_LOCAL_PROCESS_GUARD_H_

#include <sys/types.h>

namespace sluice::local {

// A process of its own that knows this one's process groups, and kills those that are left when
// this one is gone, however it went. The kernel ends children with their parent (PR_SET_PDEATHSIG),
// but not what these have started: `bash -c "train & wait"`.
//
// It hangs on one end of a socket: when the last holder of the other end is gone, it acts, and
// ends. It has nothing else open. Not thread-safe, but for Add.
class ProcessGuard {
 public:
  // Forks it. Without one (no processes left) the rest does nothing.
  ProcessGuard();
  // Groups that are still known are killed. Waits for it; one that is frozen is killed itself after
  // 2 s.
  ~ProcessGuard();

  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  // Async-signal-safe: a child calls it for the group that it leads, before it becomes its program,
  // so that there is no moment at which the group is not known.
  void Add(pid_t group) const;
  // Before the group's leader is reaped: afterwards the number may be another's.
  void Remove(pid_t group) const;

 private:
  void Tell(pid_t word) const;

  int socket_ = -1;
  pid_t pid_ = -1;
};

}  // namespace sluice::local

#endif  // SLUICE_OPERATOR_LOCAL_PROCESS_GUARD_H_
