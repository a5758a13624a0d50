// Reuses memory: touching fresh pages costs more than computing what is written there.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_MEMORY_POOL_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_MEMORY_POOL_H_

#include <cstddef>
#include <memory>

#include "services/common/threads/mutex.h"

namespace sluice {

// Any threads. Memory from the pool may outlive it.
class MemoryPool {
 public:
  // Keeps at most this many free blocks, those returned last.
  explicit MemoryPool(size_t max_free);

  // `bytes` bytes, aligned to 64, of unknown content; returned to the pool when the last reference
  // is gone.
  std::shared_ptr<char> Get(size_t bytes);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_MEMORY_POOL_H_
