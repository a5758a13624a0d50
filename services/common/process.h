#ifndef SLUICE_SERVICES_COMMON_PROCESS_H_
#define SLUICE_SERVICES_COMMON_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

// Asks the kernel to kill this process when the thread that started it ends. FAILED_PRECONDITION:
// the parent is already not `expected_parent` any more (it died in between); the caller should
// exit. Linux keeps the setting per thread of the parent: the parent must start its children from a
// thread that lives as long as it does.
absl::Status DieWithParent(pid_t expected_parent);

// A random name for one life of a process: never 0, from the kernel's generator.
uint64_t RandomIncarnation();

// Writes the port as decimal text, atomically: whoever started the process with port 0 finds it
// there.
absl::Status WritePortFile(const std::string& path, int port);

// Calls back on a thread of its own for each SIGTERM and SIGINT, and for SIGHUP (the terminal is
// gone) unless the process was started with that ignored, in place of dying of it. To be
// made in main before any other thread (threads inherit the blocked signals; those of libraries
// that were there before pass theirs on), and once in a process. Signals stay blocked after it is
// gone.
class SignalWatcher {
 public:
  // `on_signal(the signal)` may block and lock: it is a normal thread.
  explicit SignalWatcher(std::function<void(int)> on_signal);
  // Waits for a running callback.
  ~SignalWatcher();

  SignalWatcher(const SignalWatcher&) = delete;
  SignalWatcher& operator=(const SignalWatcher&) = delete;

 private:
  void Loop();

  const std::function<void(int)> on_signal_;
  int signal_fd_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;
};

// Gives the signals that SignalWatcher blocks, and SIGPIPE, back to a child between fork and exec.
// Async-signal-safe.
void UnblockSignalsInChild();

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_H_
