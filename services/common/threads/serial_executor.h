#ifndef SLUICE_SERVICES_COMMON_THREADS_SERIAL_EXECUTOR_H_
#define SLUICE_SERVICES_COMMON_THREADS_SERIAL_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "services/common/threads/mutex.h"

namespace sluice {

// Runs tasks one at a time, in the order in which they were given. It guards a pure core, in place
// of a mutex.
//
// Intuition. A mutex makes every caller wait for its turn; a plain task queue costs every caller a
// thread hop. SerialExecutor does neither: Run executes the task directly on the caller's thread
// when no other task is running or waiting, and queues it otherwise; the thread that is running a
// task then also runs a few queued ones ("combining"), and the executor's own thread runs the rest.
//
// Order: there is one queue and no overtaking, so the tasks of one producer run in the order in
// which it gave them, and each task sees the writes of earlier ones. No lock is held while a task
// runs. A task may call Run and Post: those tasks run after it. Threads: Run, Post from any thread.
class SerialExecutor {
 public:
  using Task = absl::AnyInvocable<void() &&>;

  struct Options {
    std::string name = "executor";  // of the thread; at most 15 characters count
    // How many queued tasks a caller of Run runs after its own, before it leaves the rest to the
    // thread.
    int max_combined = 16;
    // Called with each change of the queued bytes (the sum of `bytes` over tasks that have not
    // begun); any thread, must not block.
    std::function<void(int64_t)> on_queued_bytes;
  };

  explicit SerialExecutor(Options options);

  // Calls Stop().
  ~SerialExecutor();

  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  // Runs the task now on the calling thread if the executor is idle, else queues it. For short
  // tasks. `bytes`: memory that the task holds while it waits, for accounting only.
  void Run(Task task, size_t bytes);
  void Run(Task task) { Run(std::move(task), 0); }

  // Queues the task for the executor's own thread. For long tasks. Producers must bound the queue
  // (credit, permits); queued_tasks() and queued_bytes() return its size.
  void Post(Task task, size_t bytes);
  void Post(Task task) { Post(std::move(task), 0); }

  // Runs the queued tasks, then ends the thread. Later tasks are destroyed without being run. Must
  // not be called from a task. May be called again.
  void Stop();

  // Blocks until all earlier tasks have run. Must not be called from a task.
  void Flush();

  size_t queued_tasks() const;
  size_t queued_bytes() const;

 private:
  struct Entry {
    Task task;
    size_t bytes = 0;
    bool own_thread = false;  // Post
  };

  // The body of the executor's own thread.
  void Loop();
  // Whether the caller may run the task now. Else it is queued, or destroyed after Stop.
  bool TryStart(Task& task, size_t bytes);
  // Ends a task that ran on a caller's thread, the `combined`-th of this turn. False: the turn
  // ends.
  bool EndAndTakeNext(int combined, Entry* next);
  void Execute(Entry entry);
  // Calls options_.on_queued_bytes.
  void Account(int64_t change);

  void Enqueue(Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndTask() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  mutable Mutex mutex_;  // protects what follows; never held while a task runs
  CondVar work_;         // the thread may have something to do
  CondVar progress_;     // a task has ended
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // some thread is running a task
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0;  // tasks accepted, and tasks ended
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: starts when the other members exist
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_THREADS_SERIAL_EXECUTOR_H_
