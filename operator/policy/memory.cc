#include "operator/policy/policy.h"
#include "services/common/check.h"

namespace sluice::policy {

Memory Resumed(const Memory& memory) {
  SLUICE_DCHECK(memory.outcome.has_value() && memory.outcome->kind == OutcomeKind::kSuspended,
                "only a suspended job is resumed");
  Memory resumed;
  resumed.restorations = memory.restorations;
  resumed.worked = memory.worked;
  return resumed;
}

void Forgive(absl::Duration stood_still, Observation* world, Memory* memory) {
  SLUICE_DCHECK(stood_still >= absl::ZeroDuration(), "a pause only postpones timeouts");
  world->last_progress_at += stood_still;
  for (auto& [replica, process] : world->processes) {
    if (!process.running) continue;
    process.started += stood_still;
    process.expelled_after += stood_still;
  }
  for (auto& [replica, kept] : memory->replicas) kept.missing_since += stood_still;
  if (memory->outcome.has_value()) memory->outcome->since += stood_still;
  if (memory->unexplained.has_value()) memory->unexplained->since += stood_still;
  memory->suspending_since += stood_still;
}

}  // namespace sluice::policy
