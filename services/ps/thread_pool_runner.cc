#include "services/ps/thread_pool_runner.h"

namespace sluice::ps {

ThreadPoolRunner::ThreadPoolRunner(int threads) {
  for (int i = 1; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
}

ThreadPoolRunner::~ThreadPoolRunner() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  work_there_.SignalAll();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPoolRunner::Run(size_t count, absl::FunctionRef<void(size_t)> work) {
  if (threads_.empty() || count <= 1) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }

  MutexLock lock(&mutex_);
  work_ = &work;
  next_ = 0;
  count_ = count;
  done_ = 0;
  work_there_.SignalAll();
  Take();
  while (done_ < count_) all_done_.Wait(&mutex_);
  work_ = nullptr;
  count_ = 0;
  next_ = 0;
}

void ThreadPoolRunner::Take() {
  while (next_ < count_) {
    const size_t item = next_++;
    const absl::FunctionRef<void(size_t)> work = *work_;
    mutex_.Unlock();
    work(item);
    mutex_.Lock();
    if (++done_ == count_) all_done_.Signal();
  }
}

void ThreadPoolRunner::Loop() {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    Take();
    if (!stopping_) work_there_.Wait(&mutex_);
  }
}

}  // namespace sluice::ps
