#ifndef SLUICE_SERVICES_COMMON_ARITHMETIC_TESTING_INSTRUCTION_SETS_H_
#define SLUICE_SERVICES_COMMON_ARITHMETIC_TESTING_INSTRUCTION_SETS_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace sluice {

// Calls `test` once for each instruction set that kernels are compiled for and this machine has,
// including the baseline, with kernels using that set. Not thread-safe: it changes what all kernels
// use.
inline void ForEachInstructionSet(absl::FunctionRef<void()> test) {
  const int64_t targets = (hwy::SupportedTargets() & HWY_TARGETS) | HWY_STATIC_TARGET;
  for (int64_t rest = targets; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & ~(rest - 1);
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    test();
  }
  hwy::GetChosenTarget().DeInit();  // the next kernel chooses the best again
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_ARITHMETIC_TESTING_INSTRUCTION_SETS_H_
