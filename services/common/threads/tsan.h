#ifndef SLUICE_SERVICES_COMMON_THREADS_TSAN_H_
#define SLUICE_SERVICES_COMMON_THREADS_TSAN_H_

#include "services/common/threads/mutex.h"

// The system's gRPC is not compiled with ThreadSanitizer, which therefore does not see that an
// operation's completion comes after its start, or that gRPC uses an object only after it got the
// object and destroys it only after its last use. These two functions declare that order; without
// ThreadSanitizer they do nothing.

namespace sluice::internal {

// Call BeforeGrpc before gRPC gets an operation or an object, and before a callback that has used
// the object returns. Call AfterGrpc when gRPC returns the operation, calls back with the object or
// destroys it. Both with the same `owner`.
inline void BeforeGrpc([[maybe_unused]] void* owner) {
#ifdef SLUICE_THREAD_SANITIZER
  __tsan_release(owner);
#endif
}

inline void AfterGrpc([[maybe_unused]] void* owner) {
#ifdef SLUICE_THREAD_SANITIZER
  __tsan_acquire(owner);
#endif
}

}  // namespace sluice::internal

#endif  // SLUICE_SERVICES_COMMON_THREADS_TSAN_H_
