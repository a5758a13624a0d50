#include "services/protocol/arithmetic.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "services/common/version.h"
#include "services/protocol/kernels.h"

namespace sluice {

MachineArithmetic ThisMachine() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  const char* const best = hwy::TargetName(targets & -targets);  // the lowest bit is the best
  return {std::string(BuildDescription()), best};
}

std::string JobArithmetic(const MachineArithmetic& machine, const v1::TrainingSpec& training) {
  const Kernels kernels = KernelsOf(training);
  const std::string arithmetic = absl::StrCat(
      machine.build, ", ",
      kernels == v1::TrainingSpec::NATIVE ? machine.instructions : KernelsName(kernels));
  const int threads = FixedThreads(training);
  if (threads == 0) return arithmetic;
  return absl::StrCat(arithmetic, ", threads of a worker: ", threads);
}

}  // namespace sluice
