#ifndef SLUICE_SERVICES_TRANSPORT_FRAMES_PAYLOAD_SHARING_H_
#define SLUICE_SERVICES_TRANSPORT_FRAMES_PAYLOAD_SHARING_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "proto/frame.pb.h"
#include "services/transport/frames/frame.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/frames/shared_memory.h"

namespace sluice::internal {

// How one stream's payloads travel: through shared memory where both ends are processes of one
// machine, else in their frames.
//
// The client offers memory in its Hello. The server opens it and confirms that in its reply;
// without the confirmation all payloads go through the socket. Threads: Encode any; the rest the
// stream's own.
class PayloadSharing final : public SharedPayloads {
 public:
  // The client's end: offers `half_bytes` for each direction if `address` is this machine; 0:
  // offers none.
  static std::unique_ptr<PayloadSharing> OfClient(const std::string& address, size_t half_bytes);

  // The server's end: accepts the offer of a client at `peer` (gRPC's name; empty: unknown), if
  // that is this machine.
  static std::unique_ptr<PayloadSharing> OfServer(const std::string& peer);

  // The frame, ready to send. Adds to a greeting what this side accepts (also for Batching).
  OutgoingFrames Encode(const v1::Header& header, const absl::Cord& payload);

  // Reads the peer's offer or confirmation from its greeting.
  void OnReceived(const v1::Header& header);

  // SharedPayloads
  absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) override;

 private:
  PayloadSharing(std::shared_ptr<SharedMemory> offered, bool takes_offers)
      : takes_offers_(takes_offers), memory_(std::move(offered)) {}

  const bool takes_offers_;
  // The client's: constant. The server's: set before active_.
  std::shared_ptr<SharedMemory> memory_;
  std::atomic<bool> active_{false};  // both ends have the memory mapped
};

// Whether "127.0.0.1:80", "ipv6:[::1]:80" and the like are this machine.
bool IsLoopback(absl::string_view address);

}  // namespace sluice::internal

#endif  // SLUICE_SERVICES_TRANSPORT_FRAMES_PAYLOAD_SHARING_H_
