// The seam between downloads and the network.
#ifndef SLUICE_SERVICES_DOWNLOAD_HTTP_GET_H_
#define SLUICE_SERVICES_DOWNLOAD_HTTP_GET_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice {

class HttpGet {
 public:
  virtual ~HttpGet() = default;

  // Takes the next piece of the body. `total`: the size of the body, 0 if the server does not say.
  // An error ends the request, which then returns it.
  using Sink = std::function<absl::Status(absl::string_view piece, uint64_t total)>;

  // Blocks until the whole body was passed to `sink`, on this thread, or `cancelled` returns true;
  // it is polled at least every second. Any thread.
  //
  // NotFound, PermissionDenied: responses of the server; FailedPrecondition: its other refusals.
  // Unavailable: the server was not reached, the connection broke, or the server has a temporary
  // failure: worth another try. DeadlineExceeded: the server has sent nothing for too long.
  // Cancelled. Messages begin with the URL.
  virtual absl::Status Get(const std::string& url, const Sink& sink,
                           const std::function<bool()>& cancelled) = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_HTTP_GET_H_
