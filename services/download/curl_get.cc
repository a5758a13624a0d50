#include "services/download/curl_get.h"

#include <curl/curl.h>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr long kMaxRedirects = 10;  // NOLINT(google-runtime-int): libcurl's type

struct EasyDeleter {
  void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
};
using Easy = std::unique_ptr<CURL, EasyDeleter>;

struct Exchange {
  CURL* easy;
  const HttpGet::Sink* sink;
  const std::function<bool()>* cancelled;
  absl::Status status;
};

long ResponseCode(CURL* easy) {  // NOLINT(google-runtime-int)
  long code = 0;                 // NOLINT(google-runtime-int)
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
  return code;
}

size_t OnBody(char* bytes, size_t size, size_t count, void* argument) {
  auto* exchange = static_cast<Exchange*>(argument);
  // The body of an error response is not the file.
  if (ResponseCode(exchange->easy) != 200) return size * count;
  curl_off_t total = 0;
  curl_easy_getinfo(exchange->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &total);
  exchange->status =
      (*exchange->sink)({bytes, size * count}, total > 0 ? static_cast<uint64_t>(total) : 0);
  return exchange->status.ok() ? size * count : 0;
}

int OnProgress(void* argument, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const auto* exchange = static_cast<Exchange*>(argument);
  return (*exchange->cancelled)() ? 1 : 0;
}

absl::Status StatusOfCode(const std::string& url, long code) {  // NOLINT(google-runtime-int)
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

absl::Status StatusOfCurl(const std::string& url, CURLcode code, const char* detail) {
  const std::string text =
      absl::StrCat(url, ": ", *detail == '\0' ? curl_easy_strerror(code) : detail);
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
  const Easy easy(curl_easy_init());
  if (easy == nullptr) return absl::ResourceExhaustedError("libcurl: out of memory");
  Exchange exchange{easy.get(), &sink, &cancelled, absl::OkStatus()};
  char detail[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(easy.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_PROTOCOLS_STR, "https,http");
  curl_easy_setopt(easy.get(), CURLOPT_REDIR_PROTOCOLS_STR, "https,http");
  curl_easy_setopt(easy.get(), CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(easy.get(), CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(easy.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(
      easy.get(), CURLOPT_CONNECTTIMEOUT_MS,
      static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));  // NOLINT
  curl_easy_setopt(easy.get(), CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(easy.get(), CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(absl::ToInt64Seconds(options_.idle_timeout)));  // NOLINT
  curl_easy_setopt(easy.get(), CURLOPT_USERAGENT, options_.user_agent.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(easy.get(), CURLOPT_WRITEDATA, &exchange);
  curl_easy_setopt(easy.get(), CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(easy.get(), CURLOPT_XFERINFOFUNCTION, OnProgress);
  curl_easy_setopt(easy.get(), CURLOPT_XFERINFODATA, &exchange);
  const CURLcode code = curl_easy_perform(easy.get());
  if (!exchange.status.ok()) return exchange.status;
  RETURN_IF_ERROR(StatusOfCurl(url, code, detail));
  return StatusOfCode(url, ResponseCode(easy.get()));
}

}  // namespace sluice
