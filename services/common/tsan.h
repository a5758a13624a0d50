#ifndef SLUICE_SERVICES_COMMON_TSAN_H_
#define SLUICE_SERVICES_COMMON_TSAN_H_

#include "services/common/mutex.h"

// The system's gRPC is not compiled with ThreadSanitizer, which therefore does not see that an
// operation's completion comes after its start. These two functions declare that order; without
// ThreadSanitizer they do nothing.

namespace sluice::internal {

// Call the first before an operation is given to gRPC, the second when gRPC returns it, both with
// the same `owner`.
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

#endif  // SLUICE_SERVICES_COMMON_TSAN_H_
