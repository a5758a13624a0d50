#ifndef SLUICE_SERVICES_TRANSPORT_FRAMES_FRAME_H_
#define SLUICE_SERVICES_TRANSPORT_FRAMES_FRAME_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/transport/frames/frame_wire.h"

namespace sluice {

// Frames that are sent as one gRPC message. Small payloads are copied next to their headers. The
// chunks of larger ones are sent without a copy, and are referenced (by the Cord) as long as this
// or the message exists.
class OutgoingFrames {
 public:
  OutgoingFrames() = default;
  OutgoingFrames(const v1::Header& header, const absl::Cord& payload);
  // A frame whose payload is in shared memory.
  OutgoingFrames(const v1::Header& header, const v1::SharedPayload& place);

  size_t count() const { return count_; }
  // Bytes of the frames, without the bytes that a batch adds to each.
  size_t bytes() const { return bytes_; }

  // Appends the frames of `next`, which is empty afterwards.
  void Append(OutgoingFrames&& next);

  // One frame: exactly that. Several: a batch.
  grpc::ByteBuffer Message() const;

 private:
  // For each frame: its prefix in a batch, then its own slices.
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

#endif  // SLUICE_SERVICES_TRANSPORT_FRAMES_FRAME_H_
