#ifndef SLUICE_SERVICES_COMMON_PROCESS_PROCESS_H_
#define SLUICE_SERVICES_COMMON_PROCESS_PROCESS_H_

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
// the parent is no longer `expected_parent` (it died meanwhile); the caller should exit. Linux
// keeps the setting per thread of the parent: the parent must start its children from a thread that
// lives as long as it does.
absl::Status DieWithParent(pid_t expected_parent);

// A random number that identifies one instance of a process; never 0, from the kernel's generator.
uint64_t RandomIncarnation();

// Writes the port as decimal text, atomically, for the parent that started the process with port 0.
// The parent sees no file, or all of it. Errors as of AtomicWriteFile.
absl::Status WritePortFile(const std::string& path, int port);

// Calls back on its own thread for each SIGTERM and SIGINT, and for SIGHUP (the terminal is gone)
// unless the process was started with that ignored, instead of dying of the signal. Make it in main
// before any other thread, and once in a process: threads inherit the blocked signals, and threads
// that libraries started earlier forward theirs. Signals stay blocked after its destruction.
class SignalWatcher {
 public:
  // `on_signal(signal)` runs on a normal thread, so it may block and lock.
  explicit SignalWatcher(std::function<void(int)> on_signal);
  // Ends the thread; waits for a running callback.
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

// Unblocks the signals that SignalWatcher blocks, and SIGPIPE, in a child between fork and exec.
// Async-signal-safe.
void UnblockSignalsInChild();

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_PROCESS_H_
