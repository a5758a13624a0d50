// The processes that a job's backend starts on this machine.
#ifndef SLUICE_OPERATOR_LOCAL_CHILD_PROCESSES_H_
#define SLUICE_OPERATOR_LOCAL_CHILD_PROCESSES_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "operator/local/process_guard.h"
#include "services/common/mutex.h"
#include "services/common/notification.h"

namespace sluice::local {

// Starts, signals and reaps children. However this process ends, they end with it: the kernel kills
// them (PR_SET_PDEATHSIG), and a ProcessGuard what they have started. Linux ties that to the thread
// that forked, so one thread, which lives as long as this object, starts all of them.
//
// A child is the leader of a process group of its own: the terminal's Ctrl-C does not reach it. It
// has no standard input, and what it prints is appended to its log file. What is left of its group
// when it ends is killed.
//
// Thread-safe.
class ChildProcesses {
 public:
  struct Command {
    std::vector<std::string> arguments;  // the first is the path of the program
    std::string log_file;
  };
  struct End {
    pid_t pid = 0;
    int code = 0;    // of exit(), if signal is 0
    int signal = 0;  // that killed it, or 0
  };

  // `on_end` is called once for each child, one at a time, on a thread of this object; it may call
  // back, except for Start.
  explicit ChildProcesses(std::function<void(const End&)> on_end);
  // Kills what lives (SIGKILL) and waits for it. No more calls of `on_end` follow.
  ~ChildProcesses();

  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Returns once the program runs, or cannot. Errors name the program or the log file: NOT_FOUND,
  // PERMISSION_DENIED, RESOURCE_EXHAUSTED (processes, memory), or UNKNOWN. DEADLINE_EXCEEDED: it
  // had not begun to run after 10 s (it was stopped that early), and was killed.
  absl::StatusOr<pid_t> Start(const Command& command);

  // kill(2); with SIGKILL the child's whole group. Nothing happens if the child has ended.
  void Signal(pid_t pid, int signal);

  size_t living() const;

 private:
  struct Request {
    const Command* command;
    absl::StatusOr<pid_t> result = absl::UnknownError("not started");
    Notification done;
  };

  void Loop();
  void Reap();
  void Wake();

  const std::function<void(const End&)> on_end_;
  int wake_fd_ = -1;
  const ProcessGuard guard_;
  mutable Mutex mutex_;  // protects what follows; not held while calling out or forking
  std::vector<Request*> requests_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, int> pid_fds_ ABSL_GUARDED_BY(mutex_);  // of the living
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace sluice::local

#endif  // SLUICE_OPERATOR_LOCAL_CHILD_PROCESSES_H_
