// A small HTTP server for a few pages that are made on request: metrics and probes.
//
// Intuition. Kubelet kills a container that does not answer its probe, so other clients of the port
// must not be able to delay the answer to a probe. One thread serves all connections and waits for
// none of them; a connection is open for one request and for a few seconds; and when all places are
// taken, a new connection replaces the oldest one that has not sent its request yet. So a thousand
// silent connections cost a probe nothing.
//
// Kubelet reports each probe that fails as a problem, although a process that starts or ends is
// none. A client that asks for a page again and again therefore says how often:
// `/readyz?period=SECONDS`. It gets its first answer when the page is ready for it (Page::wait),
// and the process can end when the client has just been answered (AwaitProbes).
#ifndef SLUICE_SERVICES_COMMON_IO_PAGE_SERVER_H_
#define SLUICE_SERVICES_COMMON_IO_PAGE_SERVER_H_

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
  // A sensible Page::wait for a page that says whether a process is ready.
  static constexpr int kReadyWaitSeconds = 600;

  struct Answer {
    int code;  // 200, or 503
    std::string text;
  };
  struct Page {
    std::string path;
    std::function<Answer()> answer;  // on the server's thread; must not block
    // Until the page has answered 200 once, a client with a period waits for that, at most for as
    // long as this.
    absl::Duration wait = absl::ZeroDuration();
  };
  struct Options {
    // host:port; port 0: any. [::] means every address of the machine, IPv6 and IPv4.
    std::string address = "127.0.0.1:0";
    // How many may be open at once. A further one replaces the oldest without a complete request.
    size_t max_connections = 64;
    // Bytes of a request's first line and headers; a longer request is answered with 431.
    size_t max_request_bytes = 8192;
    // The time from accepting a connection until its request has arrived, and from then until its
    // answer is sent. Then the connection is closed.
    absl::Duration patience = absl::Seconds(5);
  };

  // UNAVAILABLE: cannot listen on the address, which the error names. INVALID_ARGUMENT: it is
  // malformed.
  static absl::StatusOr<std::unique_ptr<PageServer>> Start(Options options,
                                                           std::vector<Page> pages);

  // Answers the clients that wait, closes the connections; waits for a running `answer`.
  ~PageServer();

  // Blocks until no client with a period is expected within `quiet`, at most for a few times that,
  // or until `hurry` returns true (called from time to time).
  void AwaitProbes(absl::Duration quiet, const std::function<bool()>& hurry);

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

#endif  // SLUICE_SERVICES_COMMON_IO_PAGE_SERVER_H_
