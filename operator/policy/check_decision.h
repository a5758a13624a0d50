#ifndef SLUICE_OPERATOR_POLICY_CHECK_DECISION_H_
#define SLUICE_OPERATOR_POLICY_CHECK_DECISION_H_

#include "operator/policy/policy.h"

namespace sluice::policy {

// Debug checks of what policy.h promises of each decision. `before`: the memory that Decide got.
void CheckDecision(const Observation& world, const Memory& before, const Decision& decision);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_CHECK_DECISION_H_
