#ifndef SLUICE_OPERATOR_KUBE_CURL_HTTP_H_
#define SLUICE_OPERATOR_KUBE_CURL_HTTP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "operator/kube/config.h"
#include "operator/kube/http.h"
#include "services/common/io/file_util.h"
#include "services/common/time/clock.h"

namespace sluice::kube {

// HTTP/1.1 with libcurl. Connections are reused and closed after a few minutes, so that replaced
// certificate files (including a new CA) come into use; each stream has its own connection.
// Redirects are not followed; the environment's proxies are not used.
class CurlTransport final : public HttpTransport {
 public:
  struct Options {
    ClientConfig config;
    size_t max_body_bytes = size_t{64} << 20;
    absl::Duration connect_timeout = absl::Seconds(10);
    absl::Duration max_connection_age = absl::Minutes(5);
    std::string user_agent = "sluice";
  };

  // Makes the transport; it does not connect yet. InvalidArgument if the options are invalid.
  // `files` and `clock` outlive this. Call curl_global_init before the first thread is started, or
  // never.
  static absl::StatusOr<std::unique_ptr<CurlTransport>> Make(Options options, FileSystem* files,
                                                             const Clock* clock);
  ~CurlTransport() override;

  // After a 401, retries once with a newly read token.
  absl::StatusOr<HttpResponse> Do(const HttpRequest& request) override;
  absl::StatusOr<HttpResponse> Stream(const HttpRequest& request, const BodySink& sink,
                                      Cancellation* cancellation) override;

 private:
  class Impl;
  explicit CurlTransport(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_CURL_HTTP_H_
