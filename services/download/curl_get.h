#ifndef SLUICE_SERVICES_DOWNLOAD_CURL_GET_H_
#define SLUICE_SERVICES_DOWNLOAD_CURL_GET_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "services/download/http_get.h"

namespace sluice {

// Uses libcurl: http and https, with the environment's proxies (https_proxy and the like),
// following up to 10 redirects. Certificates are checked against those of the machine. Any thread;
// each Get makes a connection of its own.
class CurlGet final : public HttpGet {
 public:
  struct Options {
    absl::Duration connect_timeout = absl::Seconds(15);
    // A request fails if the server sends nothing for so long; whole seconds.
    absl::Duration idle_timeout = absl::Seconds(60);
    std::string user_agent = "sluice";
  };

  // Call curl_global_init before the first thread starts, or never.
  explicit CurlGet(Options options) : options_(std::move(options)) {}

  absl::Status Get(const std::string& url, const Sink& sink,
                   const std::function<bool()>& cancelled) override;

 private:
  const Options options_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_CURL_GET_H_
