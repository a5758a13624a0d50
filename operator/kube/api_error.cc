#include "operator/kube/api_error.h"

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/object.h"
#include "services/common/text/utf8.h"

namespace sluice::kube {
namespace {

constexpr char kPayload[] = "sluice.dev/kubernetes-api-error";
// The longest quote of a body that is not a metav1.Status.
constexpr size_t kMaxQuoted = 256;

absl::StatusCode CodeFor(int code, absl::string_view reason) {
  switch (code) {
    case 400:
    case 413:
    case 415:
    case 422:
      return absl::StatusCode::kInvalidArgument;
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 405:
    case 501:
      return absl::StatusCode::kUnimplemented;
    case 409:
      return reason == "AlreadyExists" ? absl::StatusCode::kAlreadyExists
                                       : absl::StatusCode::kAborted;
    case 410:
      return absl::StatusCode::kOutOfRange;
    case 429:
      return absl::StatusCode::kResourceExhausted;
    case 504:
      return absl::StatusCode::kDeadlineExceeded;
    default:
      return code >= 500 ? absl::StatusCode::kUnavailable : absl::StatusCode::kUnknown;
  }
}

}  // namespace

absl::Status ApiError::ToStatus() const {
  absl::Status status(CodeFor(code, reason), absl::StrCat(message, " (HTTP ", code,
                                                          reason.empty() ? "" : ", ", reason, ")"));
  Json payload = {{"code", code}, {"reason", reason}, {"message", message}};
  if (retry_after.has_value()) payload["retryAfterMs"] = absl::ToInt64Milliseconds(*retry_after);
  status.SetPayload(kPayload,
                    absl::Cord(payload.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return status;
}

std::optional<ApiError> ApiErrorOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return std::nullopt;

  const Json json = Json::parse(std::string(*payload), nullptr, false);
  ApiError error;
  error.code = static_cast<int>(GetInt(json, {"code"}));
  error.reason = GetString(json, {"reason"});
  error.message = GetString(json, {"message"});
  if (Find(json, {"retryAfterMs"}) != nullptr) {
    error.retry_after = absl::Milliseconds(GetInt(json, {"retryAfterMs"}));
  }
  return error;
}

ApiError ApiErrorFromResponse(int code, absl::string_view body,
                              absl::string_view retry_after_header) {
  ApiError error;
  error.code = code;

  const Json json = Json::parse(body.begin(), body.end(), nullptr, false);
  if (GetString(json, {"kind"}) == "Status") {
    error.reason = GetString(json, {"reason"});
    error.message = GetString(json, {"message"});
    const int64_t seconds = GetInt(json, {"details", "retryAfterSeconds"});
    if (seconds > 0) error.retry_after = absl::Seconds(seconds);
  }

  if (error.message.empty()) {
    error.message = body.empty() ? "the API server gave no reason"
                                 : CleanUtf8(absl::StripAsciiWhitespace(body), kMaxQuoted);
  }

  int64_t seconds = 0;
  if (absl::SimpleAtoi(retry_after_header, &seconds) && seconds >= 0) {
    error.retry_after = absl::Seconds(seconds);
  }
  return error;
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&annotated](absl::string_view url, const absl::Cord& payload) {
    annotated.SetPayload(url, payload);
  });
  return annotated;
}

bool IsConflict(const absl::Status& status) { return absl::IsAborted(status); }

bool IsExpired(const absl::Status& status) { return absl::IsOutOfRange(status); }

// This includes errors that the server itself reported: they do not show what it has done.
bool IsOutcomeUnknown(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace sluice::kube
