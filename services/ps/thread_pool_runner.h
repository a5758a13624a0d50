#ifndef SLUICE_SERVICES_PS_THREAD_POOL_RUNNER_H_
#define SLUICE_SERVICES_PS_THREAD_POOL_RUNNER_H_

#include <cstddef>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "services/common/threads/mutex.h"
#include "services/ps/core/base/parallel.h"

namespace sluice::ps {

// Spreads the arithmetic of a close over threads, including the calling thread. One call at a time.
class ThreadPoolRunner final : public ParallelRunner {
 public:
  // `threads` includes the calling one; at least 1.
  explicit ThreadPoolRunner(int threads);
  ~ThreadPoolRunner() override;

  void Run(size_t count, absl::FunctionRef<void(size_t)> work) override;

 private:
  void Loop();
  // Takes items until there is none left.
  void Take() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Mutex mutex_;  // protects what follows; not held while working
  CondVar work_there_;
  CondVar all_done_;
  const absl::FunctionRef<void(size_t)>* work_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last member: they start when the others are initialized
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_THREAD_POOL_RUNNER_H_
