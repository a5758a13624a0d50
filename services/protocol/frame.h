#ifndef SLUICE_SERVICES_PROTOCOL_FRAME_H_
#define SLUICE_SERVICES_PROTOCOL_FRAME_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/protocol/frame_wire.h"

namespace sluice {

// Frames that go out as one gRPC message. Small payloads are copied next to their headers; the
// chunks of larger ones are sent from where they lie, and are held (a reference on the Cord) as
// long as this or the message.
class OutgoingFrames {
 public:
  OutgoingFrames() = default;
  OutgoingFrames(const v1::Header& header, const absl::Cord& payload);
  // One whose payload lies in shared memory.
  OutgoingFrames(const v1::Header& header, const v1::SharedPayload& place);

  size_t count() const { return count_; }
  // Of the frames, without what a batch adds to each.
  size_t bytes() const { return bytes_; }

  // Takes the frames of `next` behind its own; `next` has none then.
  void Append(OutgoingFrames&& next);

  // One frame: exactly that. Several: a batch.
  grpc::ByteBuffer Message() const;

 private:
  // Of each frame: what precedes it in a batch, then its own slices.
  std::vector<grpc::Slice> slices_;
  size_t count_ = 0;
  size_t bytes_ = 0;
};

// The frames of a received message; errors as DecodeFrames of frame_wire.h. The payloads' chunks
// are the received slices themselves (those of at least a few KiB; smaller ones are copied), of ~64
// KiB each and not aligned to anything: each keeps its receive buffer alive, so drop payloads
// early.
absl::StatusOr<std::vector<DecodedFrame>> DecodeFrames(const grpc::ByteBuffer& message,
                                                       const FrameLimits& limits = {},
                                                       SharedPayloads* shared = nullptr);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_FRAME_H_
