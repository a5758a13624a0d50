#ifndef SLUICE_OPERATOR_KUBE_RETRY_H_
#define SLUICE_OPERATOR_KUBE_RETRY_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice::kube {

struct RetryPolicy {
  int max_tries = 5;
  absl::Duration initial = absl::Milliseconds(100);
  absl::Duration max = absl::Seconds(10);
};

// Whether a call that ended so is worth another try by the client itself, and after how long; pure.
// `tries` counts those made, from 1. `idempotent`: a second effect equals the first.
//
// 429 with a Retry-After was not let in, so that any call may be tried again; without one it is the
// eviction API's word on a disruption budget, and the caller's to handle. 5xx and broken
// connections leave open what was done: idempotent calls only. 501 and every other 4xx would only
// be repeated.
std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, const absl::Status& status,
                                         bool idempotent, int tries);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_RETRY_H_
