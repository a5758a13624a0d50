// Threads for callers that wait for many similar operations, such as calls of the API server.
#ifndef SLUICE_OPERATOR_RUNTIME_TASK_POOL_H_
#define SLUICE_OPERATOR_RUNTIME_TASK_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "services/common/mutex.h"

namespace sluice::runtime {

// Loops over numbered tasks. Several loops may run at a time, of several threads: each caller works
// on its own, so that none waits for others, and the pool's threads help one after the other in
// turn. Any thread.
class TaskPool {
 public:
  using Task = std::function<absl::Status(size_t)>;

  // 0 threads: tasks run on the callers' threads only, one after the other.
  explicit TaskPool(int threads);
  // No loop may be running.
  ~TaskPool();

  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Does task(0), ..., task(count - 1): begun in this order, at most `width` at a time. After one
  // that fails no further one begins. Blocks until those that began have ended. OK, or the failure
  // of the lowest number.
  absl::Status ForEach(size_t count, int width, const Task& task);

 private:
  struct Loop {
    const Task* task;
    size_t count;
    int width;
    size_t next = 0;
    int running = 0;
    size_t failed = 0;  // the number that `status` is of
    absl::Status status;
    CondVar changed;  // waited for by the caller

    bool HasWork() const { return status.ok() && next < count && running < width; }
    bool Over() const { return running == 0 && (!status.ok() || next == count); }
  };

  void Help();
  // One task; without the lock meanwhile.
  void RunOne(Loop* loop) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of those with work the one that waits longest; null: there is none.
  Loop* NextLoop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;   // protects what follows, and the loops
  CondVar work_;  // a loop has begun
  std::deque<Loop*> loops_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_TASK_POOL_H_
