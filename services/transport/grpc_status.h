#ifndef SLUICE_SERVICES_TRANSPORT_GRPC_STATUS_H_
#define SLUICE_SERVICES_TRANSPORT_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace sluice {

// The one mapping between the two kinds of status. Codes are the same numbers; messages are kept,
// but cut to 4 KiB on the way out, so that they fit in trailers. A code unknown to absl becomes
// UNKNOWN.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_GRPC_STATUS_H_
