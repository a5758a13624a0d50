#include "services/protocol/arithmetic.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "services/common/version.h"

namespace sluice {

std::string MachineArithmetic() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  const char* const best = hwy::TargetName(targets & -targets);  // the lowest bit is the best
  return absl::StrCat(BuildDescription(), ", ", best);
}

std::string JobArithmetic(absl::string_view machine, const v1::TrainingSpec& training) {
  const uint32_t threads = training.threads() == 0 && training.bit_exact() ? 1 : training.threads();
  if (threads == 0) return std::string(machine);
  return absl::StrCat(machine, ", threads of a worker: ", threads);
}

}  // namespace sluice
