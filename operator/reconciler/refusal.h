// Translates a refusal by the API server into a reason and advice for the user. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_REFUSAL_H_
#define SLUICE_OPERATOR_RECONCILER_REFUSAL_H_

#include "absl/status/status.h"
#include "operator/reconciler/pod_status.h"

namespace sluice::reconciler {

// A refused write as the status shows it.
struct Refusal {
  Problem problem;  // its message says what to do
  // It often resolves itself within moments, and should be reported only when it lasts.
  bool may_pass = false;
};

// `status`: what kube::Client returned for writing a pod or another object of a job. Empty for OK,
// for conflicts, and if this operator is no longer the leader: a new reconciliation handles those.
Refusal RefusalOf(const absl::Status& status);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REFUSAL_H_
