#include "operator/runtime/task_pool.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"

namespace sluice::runtime {

TaskPool::TaskPool(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Help(); });
  }
}

TaskPool::~TaskPool() {
  {
    MutexLock lock(&mutex_);
    SLUICE_DCHECK(loops_.empty(), "no loop outlives the pool");
    stopping_ = true;
  }
  work_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status TaskPool::ForEach(size_t count, int width, const Task& task) {
  if (count == 0) return absl::OkStatus();
  Loop loop;
  loop.task = &task;
  loop.count = count;
  loop.width = std::max(1, width);

  MutexLock lock(&mutex_);
  loops_.push_back(&loop);
  if (count > 1) work_.SignalAll();

  while (!loop.Over()) {
    if (loop.HasWork()) {
      RunOne(&loop);
    } else {
      loop.changed.Wait(&mutex_);
    }
  }

  loops_.erase(std::find(loops_.begin(), loops_.end(), &loop));
  return loop.status;
}

void TaskPool::Help() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (Loop* loop = NextLoop(); loop != nullptr) {
      RunOne(loop);
    } else {
      work_.Wait(&mutex_);
    }
  }
}

void TaskPool::RunOne(Loop* loop) {
  SLUICE_DCHECK(loop->HasWork(), "at most `width` tasks of a loop run, and none after a failure");
  const size_t number = loop->next++;
  const Task& task = *loop->task;
  ++loop->running;

  mutex_.Unlock();
  absl::Status status = task(number);
  mutex_.Lock();

  --loop->running;
  if (!status.ok() && (loop->status.ok() || number < loop->failed)) {
    loop->status = std::move(status);
    loop->failed = number;
  }

  // The thread that ran the task looks for more work itself.
  loop->changed.Signal();
}

TaskPool::Loop* TaskPool::NextLoop() {
  for (auto it = loops_.begin(); it != loops_.end(); ++it) {
    Loop* loop = *it;
    if (!loop->HasWork()) continue;
    // Moves it to the end, so that other loops come first next time.
    loops_.erase(it);
    loops_.push_back(loop);
    return loop;
  }
  return nullptr;
}

}  // namespace sluice::runtime
