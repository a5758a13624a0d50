#include "operator/policy/check_decision.h"

#include <algorithm>

#include "services/common/check.h"

namespace sluice::policy {

void CheckDecision(const Observation& world, const Memory& before, const Decision& decision) {
  const Memory& after = decision.memory;
  SLUICE_DCHECK(!before.outcome.has_value() ||
                    (after.outcome.has_value() && after.outcome->kind == before.outcome->kind &&
                     after.outcome->code == before.outcome->code),
                "the outcome is decided once");

  SLUICE_DCHECK(!after.outcome.has_value() || decision.starts.empty(),
                "nothing is started after the outcome");
  SLUICE_DCHECK(
      !decision.finish.has_value() || (after.outcome.has_value() && decision.stops.empty()),
      "the job is finished when it has an outcome and no process is left");
  SLUICE_DCHECK(after.restorations >= before.restorations, "the backoff limit is used up for good");

  SLUICE_DCHECK(std::includes(after.worked.begin(), after.worked.end(), before.worked.begin(),
                              before.worked.end()),
                "a role whose process was ready has worked for good");

  SLUICE_DCHECK(decision.exits.size() <= world.processes.size(), "an exit is reported once");
  SLUICE_DCHECK(decision.replaced.size() <= world.processes.size(), "a restart is counted once");
}

}  // namespace sluice::policy
