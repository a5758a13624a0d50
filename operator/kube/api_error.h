// An API server's error answer as an absl::Status, without loss.
#ifndef SLUICE_OPERATOR_KUBE_API_ERROR_H_
#define SLUICE_OPERATOR_KUBE_API_ERROR_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sluice::kube {

// A metav1.Status. `reason` is the machine-readable reason ("NotFound", "AlreadyExists",
// "Conflict", "Invalid", "Expired", ...); empty if the server gave none.
struct ApiError {
  int code = 0;  // HTTP
  std::string reason;
  std::string message;
  std::optional<absl::Duration> retry_after;

  // 404 NotFound; 409 AlreadyExists or, for every other reason, Aborted; 400, 413, 415, 422
  // InvalidArgument; 401 Unauthenticated; 403 PermissionDenied; 405, 501 Unimplemented; 410
  // OutOfRange (the server has forgotten the requested version); 429 ResourceExhausted; 504
  // DeadlineExceeded; other 5xx Unavailable; anything else Unknown. The error itself travels as a
  // payload.
  absl::Status ToStatus() const;
};

// The error inside a status that ToStatus made, also after context was added with Annotate.
std::optional<ApiError> ApiErrorOf(const absl::Status& status);

// From an HTTP answer with a code of 400 or more. `body` may be anything; text that is not a
// metav1.Status is quoted and truncated. `retry_after_header` is empty if there was none.
ApiError ApiErrorFromResponse(int code, absl::string_view body,
                              absl::string_view retry_after_header);

// `status` with "context: " before its message; payloads are kept.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

// A precondition (resourceVersion, uid) does not hold, or another manager owns a field: read the
// object and decide again.
bool IsConflict(const absl::Status& status);
// The requested resourceVersion is too old: list again.
bool IsExpired(const absl::Status& status);
// No answer arrived, or a 5xx: the server may or may not have carried out the request.
bool IsOutcomeUnknown(const absl::Status& status);

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_API_ERROR_H_
