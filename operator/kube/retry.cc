#include "operator/kube/retry.h"

#include <algorithm>
#include <cmath>

#include "operator/kube/api_error.h"

namespace sluice::kube {

std::optional<absl::Duration> RetryDelay(const RetryPolicy& policy, const absl::Status& status,
                                         bool idempotent, int tries) {
  if (status.ok() || tries >= policy.max_tries) return std::nullopt;

  const std::optional<ApiError> error = ApiErrorOf(status);
  const absl::Duration exponential =
      std::min(policy.max, policy.initial * std::exp2(std::min(tries - 1, 30)));

  if (error.has_value() && error->retry_after.has_value() &&
      (error->code == 429 || (error->code >= 500 && idempotent))) {
    // A delay above the bound is left to the caller's own backoff.
    if (*error->retry_after > policy.max) return std::nullopt;
    return std::max(*error->retry_after, exponential);
  }

  if (!idempotent || !IsOutcomeUnknown(status)) return std::nullopt;
  return exponential;
}

}  // namespace sluice::kube
