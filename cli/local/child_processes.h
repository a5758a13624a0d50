// The processes that a job's backend starts on this machine.
#ifndef SLUICE_CLI_LOCAL_CHILD_PROCESSES_H_
#define SLUICE_CLI_LOCAL_CHILD_PROCESSES_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/local/process_guard.h"
#include "cli/local/terminal.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/notification.h"

namespace sluice::local {

// Starts, signals and reaps children. However this process ends, its children end with it: the
// kernel kills them (PR_SET_PDEATHSIG), and a ProcessGuard kills the processes that they have
// started. Linux sends that signal when the thread that forked ends, so one thread, which runs as
// long as this object exists, starts all children.
//
// A child leads its own process group, so the terminal's Ctrl-C does not reach it. It has no
// standard input, and its output is appended to its log file. When it ends, the rest of its group
// is killed. A child in the foreground has this process's standard streams instead, and, if this
// process has the terminal, the terminal until it ends: then Ctrl-C reaches only the child.
//
// Thread-safe.
class ChildProcesses {
 public:
  struct Command {
    std::vector<std::string> arguments;  // the first is the path of the program
    std::string log_file;
    bool foreground = false;  // at most one child at a time
  };
  // How a child ended.
  struct End {
    pid_t pid = 0;
    int code = 0;    // exit code, if signal is 0
    int signal = 0;  // the signal that killed it, or 0
  };

  // `on_end` is called once for each child, one call at a time, on a thread of this object; it may
  // call this object, except Start.
  explicit ChildProcesses(std::function<void(const End&)> on_end);
  // Kills the remaining children (SIGKILL) and waits for them. `on_end` is not called any more.
  ~ChildProcesses();

  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  // Loads a program that supports `fork-server` (services/common/process/fork_server.h) in the
  // background; later processes of the program are forked from it. No effect if it is or was
  // loaded.
  void Load(const std::string& program);
  // The program is about to be loaded, so starting it a little later takes less time.
  bool Loading();

  // Returns once the program runs or has failed to start. Errors name the program or the log file:
  // NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (processes, memory), or UNKNOWN.
  // DEADLINE_EXCEEDED: the child did not run the program within 10 s (for example because it was
  // stopped before that), and was killed.
  absl::StatusOr<pid_t> Start(const Command& command);

  // kill(2); SIGKILL goes to the child's whole group. No effect if the child has ended.
  void Signal(pid_t pid, int signal);

  // How many children run. Any thread.
  size_t living() const;

 private:
  // A Start that waits for the thread that forks.
  struct Request {
    const Command* command;
    absl::StatusOr<pid_t> result = absl::UnknownError("not started");
    Notification done;
  };

  // A process that forks others of its program.
  struct Server {
    enum State { kNone, kWanted, kLoading, kReady, kFailed } state = kNone;
    std::string program;
    absl::Time since;
    pid_t pid = 0;
    int socket = -1;
  };

  // The body of the thread: starts and reaps children. Ends when this is destroyed and no child is
  // left.
  void Loop();
  // Starts one child: by fork from the loaded program if possible, else by fork and exec. On Loop's
  // thread, as StartServer and Reap.
  absl::StatusOr<pid_t> StartChild(const Command& command);
  // Starts the process that loads the program and is forked from then on.
  void StartServer();
  // Kills the server. From then on, each child loads its program itself.
  void DropServer();
  // Reports the children that have ended, and kills what is left of their groups.
  void Reap();
  // Ends a poll of Loop. Any thread.
  void Wake();

  const std::function<void(const End&)> on_end_;
  int wake_fd_ = -1;
  const ProcessGuard guard_;
  const Terminal terminal_;
  mutable Mutex mutex_;  // protects what follows; not held while calling out or forking
  std::vector<Request*> requests_ ABSL_GUARDED_BY(mutex_);
  std::map<pid_t, int> pid_fds_ ABSL_GUARDED_BY(mutex_);  // of running children
  Server server_ ABSL_GUARDED_BY(mutex_);
  pid_t foreground_ ABSL_GUARDED_BY(mutex_) = 0;  // the child that has the terminal; 0: none
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last, because it uses the members above
};

}  // namespace sluice::local

#endif  // SLUICE_CLI_LOCAL_CHILD_PROCESSES_H_
