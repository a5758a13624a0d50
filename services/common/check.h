#ifndef SLUICE_SERVICES_COMMON_CHECK_H_
#define SLUICE_SERVICES_COMMON_CHECK_H_

#include <atomic>
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

// The same where debug checks are on, for an invariant whose violation would show only later, or
// not at all: a ledger that does not add up, a version that goes back, a step that closes twice.
// `reason` states the invariant. The condition has no side effects, and no input from outside can
// make it false.
//
// Debug checks are on in tests, in the simulator and in builds with assertions (the sanitizers,
// --config=debug), and off in every shipped program. A library is compiled once, for programs and
// tests alike, so the compiler cannot know; the linker decides: checks are on where
// //services/common:debug_checks is linked, as it is by everything that links //third_party:gtest.
// Where they are off, a check costs a load and a branch that is never taken.
#define SLUICE_DCHECK(condition, reason)                     \
  do {                                                       \
    if (__builtin_expect(::sluice::DebugChecksAreOn(), 0)) { \
      SLUICE_CHECK(condition, reason);                       \
    }                                                        \
  } while (false)

namespace sluice {

#ifdef NDEBUG
inline constexpr bool kBuiltWithAssertions = false;
#else
inline constexpr bool kBuiltWithAssertions = true;
#endif

// The one global of the project: a property of the program, set before main.
inline std::atomic<bool> debug_checks{kBuiltWithAssertions};

inline bool DebugChecksAreOn() { return debug_checks.load(std::memory_order_relaxed); }

// Turns debug checks off as long as it lives. Only for the simulator, where it leaves out a rule of
// the protocol: the invariants are what the rule is for.
class WithoutDebugChecks {
 public:
  WithoutDebugChecks() : before_(debug_checks.exchange(false)) {}
  ~WithoutDebugChecks() { debug_checks = before_; }
  WithoutDebugChecks(const WithoutDebugChecks&) = delete;
  WithoutDebugChecks& operator=(const WithoutDebugChecks&) = delete;

 private:
  const bool before_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_CHECK_H_
