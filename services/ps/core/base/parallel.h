#ifndef SLUICE_SERVICES_PS_CORE_BASE_PARALLEL_H_
#define SLUICE_SERVICES_PS_CORE_BASE_PARALLEL_H_

#include <cstddef>

#include "absl/functional/function_ref.h"

namespace sluice::ps {

// Runs the heavy arithmetic of a close block by block.
class ParallelRunner {
 public:
  virtual ~ParallelRunner() = default;

  // Calls `work(i)` once for every i in [0, count), in any order, on any threads, and returns when
  // all have returned. `work` never throws, and calls with different i share no data that they
  // write.
  virtual void Run(size_t count, absl::FunctionRef<void(size_t)> work) = 0;
};

// On the calling thread, in order.
class InlineRunner : public ParallelRunner {
 public:
  void Run(size_t count, absl::FunctionRef<void(size_t)> work) override {
    for (size_t i = 0; i < count; ++i) work(i);
  }
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_PARALLEL_H_
