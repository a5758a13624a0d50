#ifndef SLUICE_OPERATOR_KUBE_FAKE_HTTP_FRONT_H_
#define SLUICE_OPERATOR_KUBE_FAKE_HTTP_FRONT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "operator/kube/fake/fake_api_server.h"

namespace sluice::kube {

// A FakeApiServer behind a real HTTP server on the loopback device (civetweb), for tests of the
// code below the transport.
class HttpFront {
 public:
  struct Options {
    // Non-empty: other bearer tokens get a 401.
    std::string token;
    // The delay of each answer; streams are delayed by it before their first byte.
    absl::Duration delay;
    int threads = 16;  // each watch occupies one
  };

  // Listens on a free port. `server` outlives this.
  static absl::StatusOr<std::unique_ptr<HttpFront>> Start(FakeApiServer* server, Options options);
  // Cancels watches, and waits for the server's threads.
  ~HttpFront();

  std::string url() const;  // "http://127.0.0.1:port"
  void SetToken(const std::string& token);

 private:
  class Impl;
  explicit HttpFront(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_FAKE_HTTP_FRONT_H_
