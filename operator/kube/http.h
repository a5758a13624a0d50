// The interface between the API client and the network.
#ifndef SLUICE_OPERATOR_KUBE_HTTP_H_
#define SLUICE_OPERATOR_KUBE_HTTP_H_

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"

namespace sluice::kube {

// A request of the API client. The transport adds server, credentials and user agent.
struct HttpRequest {
  std::string method;  // "GET", "POST", "PUT", "PATCH", "DELETE"
  std::string target;  // path and query, encoded
  std::string content_type;
  std::string body;
  // From the start to the last byte (Do), or to the head of the answer (Stream).
  absl::Duration timeout = absl::Seconds(30);
  // Stream: after this time without data, the connection counts as dead.
  absl::Duration idle_timeout = absl::Seconds(150);
};

// The server's answer, whatever its code.
struct HttpResponse {
  int code = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// Sends requests to one API server, with its credentials. Any thread; calls run concurrently.
//
// Every answer of the server, whatever its code, is a response. A status means that there is none.
// Unavailable: not connected, connection broken, or TLS failed; DeadlineExceeded: too slow;
// ResourceExhausted: a body above the transport's bound; Cancelled.
class HttpTransport {
 public:
  virtual ~HttpTransport() = default;

  // Blocks until the answer is complete, at most `request.timeout`.
  virtual absl::StatusOr<HttpResponse> Do(const HttpRequest& request) = 0;

  // Receives a piece of the body of a 200; an error ends the stream with that error.
  using BodySink = std::function<absl::Status(absl::string_view)>;

  // Blocks until the body ends, the connection breaks, or `cancellation` is cancelled. Pieces of a
  // body whose code is 200 go to `sink`, on this thread; for other codes the (bounded) body is in
  // the response. After a normal end, the response has an empty body.
  virtual absl::StatusOr<HttpResponse> Stream(const HttpRequest& request, const BodySink& sink,
                                              Cancellation* cancellation) = 0;
};

}  // namespace sluice::kube

#endif  // SLUICE_OPERATOR_KUBE_HTTP_H_
