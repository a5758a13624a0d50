#include "services/transport/frames/payload_sharing.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "services/transport/frames/batching.h"

namespace sluice::internal {
namespace {

// Smaller payloads are copied next to their headers anyway.
constexpr size_t kLeastShared = 4096;

}  // namespace

bool IsLoopback(absl::string_view address) {
  if (absl::StartsWith(address, "unix:")) return true;
  if (!absl::ConsumePrefix(&address, "ipv4:")) absl::ConsumePrefix(&address, "ipv6:");
  for (const absl::string_view prefix : {"127.", "localhost:", "[::1]:", "%5B::1%5D:"}) {
    if (absl::StartsWith(address, prefix)) return true;
  }
  return false;
}

std::unique_ptr<PayloadSharing> PayloadSharing::OfClient(const std::string& address,
                                                         size_t half_bytes) {
  std::shared_ptr<SharedMemory> memory;
  if (half_bytes > 0 && IsLoopback(address)) {
    // If the system provides none, payloads go through the socket.
    if (auto created = SharedMemory::Create(half_bytes); created.ok()) memory = *std::move(created);
  }
  return std::unique_ptr<PayloadSharing>(
      new PayloadSharing(std::move(memory), /*takes_offers=*/false));
}

std::unique_ptr<PayloadSharing> PayloadSharing::OfServer(const std::string& peer) {
  return std::unique_ptr<PayloadSharing>(new PayloadSharing(nullptr, IsLoopback(peer)));
}

OutgoingFrames PayloadSharing::Encode(const v1::Header& header, const absl::Cord& payload) {
  if (header.has_hello() || header.has_hello_reply()) {
    v1::Header greeting = header;
    Batching::Greet(&greeting);

    if (greeting.has_hello() && memory_ != nullptr) {
      *greeting.mutable_hello()->mutable_shared_memory() = memory_->Offer();
    }
    if (greeting.has_hello_reply() && active_.load(std::memory_order_acquire)) {
      greeting.mutable_hello_reply()->set_shared_memory_taken(true);
    }
    return OutgoingFrames(greeting, payload);
  }

  if (payload.size() > kLeastShared && active_.load(std::memory_order_acquire)) {
    if (const auto place = memory_->Put(payload)) return OutgoingFrames(header, *place);
  }
  return OutgoingFrames(header, payload);
}

void PayloadSharing::OnReceived(const v1::Header& header) {
  if (takes_offers_) {
    if (!header.has_hello() || !header.hello().has_shared_memory() || memory_ != nullptr) return;
    auto opened = SharedMemory::Open(header.hello().shared_memory());
    if (!opened.ok()) return;  // all goes through the socket

    memory_ = *std::move(opened);
    active_.store(true, std::memory_order_release);
  } else if (header.has_hello_reply() && memory_ != nullptr) {
    memory_->CloseDescriptor();
    if (header.hello_reply().shared_memory_taken()) {
      active_.store(true, std::memory_order_release);
    }
  }
}

absl::StatusOr<absl::Cord> PayloadSharing::Take(const v1::SharedPayload& place) {
  // A client that has offered memory may receive data in it with the same message as the reply.
  if (memory_ != nullptr) return memory_->Take(place);
  return absl::InvalidArgumentError("a payload in shared memory, but none was agreed on");
}

}  // namespace sluice::internal
