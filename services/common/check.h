#ifndef SLUICE_SERVICES_COMMON_CHECK_H_
#define SLUICE_SERVICES_COMMON_CHECK_H_

#include <cstdio>
#include <cstdlib>

// Ends the process, with place and reason, if one of our own invariants is broken, in release
// builds too: it guards code that would otherwise write out of bounds. Never use it for input from
// outside (peers, files, configuration): that gets an absl::Status.
#define SLUICE_CHECK(condition, reason)                                                           \
  do {                                                                                            \
    if (__builtin_expect(!(condition), 0)) {                                                      \
      std::fprintf(stderr, "%s:%d: %s: (%s) is false\n", __FILE__, __LINE__, reason, #condition); \
      std::abort();                                                                               \
    }                                                                                             \
  } while (false)

#endif  // SLUICE_SERVICES_COMMON_CHECK_H_
