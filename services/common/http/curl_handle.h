#ifndef SLUICE_SERVICES_COMMON_HTTP_CURL_HANDLE_H_
#define SLUICE_SERVICES_COMMON_HTTP_CURL_HANDLE_H_

#include <curl/curl.h>

#include <memory>
#include <string>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace sluice {

// One of libcurl's easy handles, with the text of its last error. One thread at a time. The caller
// performs the request (curl_easy_perform blocks) and adds the options of its own kind, such as the
// function that takes the answer.
class CurlHandle {
 public:
  // RESOURCE_EXHAUSTED: there is no memory for a handle. To be called before every other function,
  // none of which works after an error.
  absl::Status Open() {
    easy_.reset(curl_easy_init());
    if (easy_ == nullptr) return absl::ResourceExhaustedError("libcurl: out of memory");
    error_ = std::make_unique<char[]>(CURL_ERROR_SIZE);
    return absl::OkStatus();
  }

  CURL* get() const { return easy_.get(); }

  // The options of every request; http and https only. libcurl copies the texts. `connect_timeout`
  // bounds the connection and TLS handshake only, not the transfer.
  void Prepare(const std::string& url, const std::string& user_agent,
               absl::Duration connect_timeout) {
    error_[0] = '\0';
    Set(CURLOPT_ERRORBUFFER, error_.get());
    Set(CURLOPT_URL, url.c_str());
    Set(CURLOPT_PROTOCOLS_STR, "https,http");
    Set(CURLOPT_NOSIGNAL, 1);
    Set(CURLOPT_USERAGENT, user_agent.c_str());
    Set(CURLOPT_CONNECTTIMEOUT_MS, absl::ToInt64Milliseconds(connect_timeout));
  }

  // An integer becomes libcurl's `long`. libcurl's errors are ignored.
  template <typename Value>
  void Set(CURLoption option, Value value) {
    if constexpr (std::is_integral_v<Value>) {
      curl_easy_setopt(get(), option, static_cast<long>(value));  // NOLINT(google-runtime-int)
    } else {
      curl_easy_setopt(get(), option, value);
    }
  }

  // The answer's; 0: there is none yet.
  int response_code() const {
    long code = 0;  // NOLINT(google-runtime-int): libcurl's type
    curl_easy_getinfo(get(), CURLINFO_RESPONSE_CODE, &code);
    return static_cast<int>(code);
  }

  // Why the request failed. libcurl's own detail if it gave one, else the meaning of the code.
  std::string ErrorText(CURLcode code) const {
    return error_[0] != '\0' ? error_.get() : curl_easy_strerror(code);
  }

 private:
  struct Cleanup {
    void operator()(CURL* easy) const { curl_easy_cleanup(easy); }
  };

  std::unique_ptr<char[]> error_;  // at one address, because libcurl writes to it
  std::unique_ptr<CURL, Cleanup> easy_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_HTTP_CURL_HANDLE_H_
