#include "services/download/curl_get.h"

#include <curl/curl.h>

#include "absl/strings/str_cat.h"
#include "services/common/http/curl_handle.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr int kMaxRedirects = 10;

struct Exchange {
  const CurlHandle* handle;
  const HttpGet::Sink* sink;
  const std::function<bool()>* cancelled;
  absl::Status status;
};

size_t OnBody(char* bytes, size_t size, size_t count, void* argument) {
  auto* exchange = static_cast<Exchange*>(argument);
  // The body of an error response is not the file.
  if (exchange->handle->response_code() != 200) return size * count;

  curl_off_t total = 0;
  curl_easy_getinfo(exchange->handle->get(), CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &total);

  exchange->status =
      (*exchange->sink)({bytes, size * count}, total > 0 ? static_cast<uint64_t>(total) : 0);
  return exchange->status.ok() ? size * count : 0;
}

int OnProgress(void* argument, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* exchange = static_cast<Exchange*>(argument);
  return (*exchange->cancelled)() ? 1 : 0;
}

absl::Status StatusOfCode(const std::string& url, int code) {
  const std::string text = absl::StrCat(url, ": the server answers ", code);
  switch (code) {
    case 200:
      return absl::OkStatus();
    case 401:
    case 403:
      return absl::PermissionDeniedError(text + " (not allowed)");
    case 404:
    case 410:
      return absl::NotFoundError(text + " (there is no such file)");
    case 408:
    case 425:
    case 429:
      return absl::UnavailableError(text);
    default:
      return code >= 500 ? absl::UnavailableError(text) : absl::FailedPreconditionError(text);
  }
}

absl::Status StatusOfCurl(const std::string& url, CURLcode code, const CurlHandle& handle) {
  const std::string text = absl::StrCat(url, ": ", handle.ErrorText(code));
  switch (code) {
    case CURLE_OK:
      return absl::OkStatus();
    case CURLE_ABORTED_BY_CALLBACK:
      return absl::CancelledError(absl::StrCat(url, ": the download was stopped"));
    case CURLE_OPERATION_TIMEDOUT:
      return absl::DeadlineExceededError(text);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
      return absl::InvalidArgumentError(text);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_TOO_MANY_REDIRECTS:
      return absl::FailedPreconditionError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace

absl::Status CurlGet::Get(const std::string& url, const Sink& sink,
                          const std::function<bool()>& cancelled) {
  CurlHandle handle;
  RETURN_IF_ERROR(handle.Open());
  Exchange exchange{&handle, &sink, &cancelled, absl::OkStatus()};

  handle.Prepare(url, options_.user_agent, options_.connect_timeout);
  handle.Set(CURLOPT_REDIR_PROTOCOLS_STR, "https,http");
  handle.Set(CURLOPT_FOLLOWLOCATION, 1);
  handle.Set(CURLOPT_MAXREDIRS, kMaxRedirects);
  handle.Set(CURLOPT_LOW_SPEED_LIMIT, 1);
  handle.Set(CURLOPT_LOW_SPEED_TIME, absl::ToInt64Seconds(options_.idle_timeout));
  handle.Set(CURLOPT_WRITEFUNCTION, OnBody);
  handle.Set(CURLOPT_WRITEDATA, &exchange);
  handle.Set(CURLOPT_NOPROGRESS, 0);
  handle.Set(CURLOPT_XFERINFOFUNCTION, OnProgress);
  handle.Set(CURLOPT_XFERINFODATA, &exchange);

  const CURLcode code = curl_easy_perform(handle.get());
  if (!exchange.status.ok()) return exchange.status;
  RETURN_IF_ERROR(StatusOfCurl(url, code, handle));
  return StatusOfCode(url, handle.response_code());
}

}  // namespace sluice
