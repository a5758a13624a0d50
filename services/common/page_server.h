// A small HTTP server for a few pages that are made on the spot: metrics and probes.
//
// Intuition. Kubelet kills a container whose probe is not answered, so nobody who reaches the port
// may keep a probe from its answer. One thread serves all connections and waits for none of them; a
// connection is open for one request and for a few seconds; and where all places are taken, a new
// connection takes that of the oldest one that has not sent its request yet. So a thousand
// connections that say nothing cost a probe nothing.
#ifndef SLUICE_SERVICES_COMMON_PAGE_SERVER_H_
#define SLUICE_SERVICES_COMMON_PAGE_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sluice {

class PageServer {
 public:
  struct Answer {
    int code;  // 200, or 503
    std::string text;
  };
  struct Page {
    std::string path;
    std::function<Answer()> answer;  // on the server's thread; must not block
  };
  struct Options {
    // host:port; port 0: any. [::] is every address of the machine, of either kind.
    std::string address = "127.0.0.1:0";
    // Open at once. One more takes the place of the oldest whose request is not here.
    size_t max_connections = 64;
    // Of a request's line and headers; a longer one is answered with 431.
    size_t max_request_bytes = 8192;
    // From a connection's begin until its request is here, and from then until its answer is sent.
    // Then the connection is closed.
    absl::Duration patience = absl::Seconds(5);
  };

  // UNAVAILABLE, naming the address: it cannot be listened on. INVALID_ARGUMENT: it is malformed.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(Options options,
                                                           std::vector<Page> pages);

  // Closes the connections; waits for a page that is being made.
  ~PageServer();

  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  int port() const { return port_; }

 private:
  class Impl;
  PageServer(std::unique_ptr<Impl> impl, int port);

  const std::unique_ptr<Impl> impl_;
  const int port_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PAGE_SERVER_H_
