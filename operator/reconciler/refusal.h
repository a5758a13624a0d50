// What it means for people that the API server did not do what it was asked. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_REFUSAL_H_
#define SLUICE_OPERATOR_RECONCILER_REFUSAL_H_

#include "absl/status/status.h"
#include "operator/reconciler/pod_view.h"

namespace sluice::reconciler {

struct Refusal {
  Trouble trouble;  // says what to do
  // It often passes by itself, within moments: worth telling only when it lasts.
  bool may_pass = false;
};

// `status`: a kube::Client's of a write of a pod, or of another object of a job. Empty for OK, for
// conflicts, and where this operator leads no more: those are answered by another look.
Refusal RefusalOf(const absl::Status& status);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REFUSAL_H_
