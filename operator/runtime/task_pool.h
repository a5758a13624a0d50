// Threads for callers that wait for many similar operations, such as calls to the API server.
#ifndef SLUICE_OPERATOR_RUNTIME_TASK_POOL_H_
#define SLUICE_OPERATOR_RUNTIME_TASK_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "services/common/threads/mutex.h"

namespace sluice::runtime {

// Runs loops over numbered tasks. Several threads may run loops at a time: each caller works on its
// own loop, so that it does not wait for other loops, and the pool's threads help the loops in
// turn. Any thread.
class TaskPool {
 public:
  using Task = std::function<absl::Status(size_t)>;

  // With 0 threads, tasks run only on the callers' threads, one at a time per caller.
  explicit TaskPool(int threads);
  // No loop may be running.
  ~TaskPool();

  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Runs task(0), ..., task(count - 1): started in this order, at most `width` at a time. After a
  // failure no further task starts. Blocks until all started tasks have ended. Returns OK, or the
  // failure of the task with the lowest number.
  absl::Status ForEach(size_t count, int width, const Task& task);

 private:
  // One ForEach in progress; lives on its caller's stack.
  struct Loop {
    const Task* task;
    size_t count;
    int width;
    size_t next = 0;
    int running = 0;
    size_t failed = 0;  // the task that returned `status`
    absl::Status status;
    CondVar changed;  // the caller waits for it

    bool HasWork() const { return status.ok() && next < count && running < width; }
    bool Over() const { return running == 0 && (!status.ok() || next == count); }
  };

  // The body of the pool's threads: runs tasks of the loops in turn.
  void Help();
  // Runs one task, without the lock.
  void RunOne(Loop* loop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The loop with work that has waited longest; null: there is none.
  Loop* NextLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;   // protects the members below, and the loops
  CondVar work_;  // signalled when a loop begins
  std::deque<Loop*> loops_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_TASK_POOL_H_
