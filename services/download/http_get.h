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

  // Takes the next piece of the body. `total`: bytes that there will be, 0 where the server does
  // not say. An error ends the request with it.
  using Sink = std::function<absl::Status(absl::string_view piece, uint64_t total)>;

  // Blocks until the whole body went to `sink`, on this thread, or `cancelled` says yes, which is
  // asked every second at least. Any thread.
  //
  // NotFound, PermissionDenied: what the server says; FailedPrecondition: its other refusals.
  // Unavailable: not reached, cut, or the server is in trouble: worth another try.
  // DeadlineExceeded: it has sent nothing for too long. Cancelled. Messages begin with the URL.
  virtual absl::Status Get(const std::string& url, const Sink& sink,
                           const std::function<bool()>& cancelled) = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_DOWNLOAD_HTTP_GET_H_
