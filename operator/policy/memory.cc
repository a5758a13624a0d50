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

void ExtendDeadlines(absl::Duration paused_for, Observation* world, Memory* memory) {
  SLUICE_DCHECK(paused_for >= absl::ZeroDuration(), "a pause only postpones timeouts");
  world->last_progress_at += paused_for;

  for (auto& [replica, process] : world->processes) {
    if (!process.running) continue;
    process.started += paused_for;
    process.expelled_after += paused_for;
  }

  for (auto& [replica, kept] : memory->replicas) kept.missing_since += paused_for;
  memory->unregistered_at += paused_for;
  if (memory->outcome.has_value()) memory->outcome->since += paused_for;
  if (memory->unexplained.has_value()) memory->unexplained->since += paused_for;
  memory->suspending_since += paused_for;
}

}  // namespace sluice::policy
