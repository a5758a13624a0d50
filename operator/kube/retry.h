#ifndef SLUICE_OPERATOR_KUBE_RETRY_H_
#define SLUICE_OPERATOR_KUBE_RETRY_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice::kube {

// How often, and with which delays, the client repeats a call by itself.
struct RetryPolicy {
  int max_tries = 5;
  absl::Duration initial = absl::Milliseconds(100);
  absl::Duration max = absl::Seconds(10);
};

// Decides whether the client itself should retry a failed call, and after how long; pure. `tries`
// counts the tries made, from 1. `idempotent`: carrying out the call twice has the same effect as
// once.
//
// A 429 with a Retry-After was not carried out, so any call may be retried. A 429 without it comes
// from the eviction API (a disruption budget): the caller handles it. After a 5xx or a broken
// connection the effect is unknown: only idempotent calls are retried. 501 and every other 4xx
// would recur.
std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, const absl::Status& status,
                                         bool idempotent, int tries);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_RETRY_H_
