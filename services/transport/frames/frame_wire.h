#ifndef SLUICE_SERVICES_TRANSPORT_FRAMES_FRAME_WIRE_H_
#define SLUICE_SERVICES_TRANSPORT_FRAMES_FRAME_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"

// A frame's encoding, without gRPC: exactly `message Frame { Header header = 1; bytes payload = 2;
// repeated Frame batch = 3; SharedPayload shared_payload = 4; }`, so that code generated from
// proto/frame.proto reads what this writes and vice versa. The advantage over generated code: the
// payload is a Cord and is never copied, neither when encoding nor when decoding.
//
// A message is one frame, or a batch of several: each message costs tens of microseconds on either
// side, whatever its size.

namespace sluice {

// The largest payload that Sluice puts into one frame.
inline constexpr size_t kMaxPayloadBytes = size_t{2} << 20;
// The largest header, and the room for it beside a payload in a gRPC message.
inline constexpr size_t kMaxHeaderBytes = (size_t{64} << 10) - 64;
inline constexpr size_t kMaxFrameBytes = kMaxPayloadBytes + (size_t{64} << 10);
// The most frames that Sluice accepts in one message, so that a message's memory stays in
// proportion to its bytes.
inline constexpr size_t kMaxBatchFrames = 256;
// Sluice ends a batch before it exceeds this many bytes, so that the receiver can start on it while
// the rest is under way.
inline constexpr size_t kMaxBatchBytes = size_t{256} << 10;

// The limits that a receiver sets; a frame over one of them is an error.
struct FrameLimits {
  size_t max_header_bytes = kMaxHeaderBytes;
  size_t max_payload_bytes = kMaxPayloadBytes;
  size_t max_batch_frames = kMaxBatchFrames;
};

// A frame as the receiver sees it. The payload may refer to the receive buffer, and keeps it alive.
struct DecodedFrame {
  v1::Header header;
  absl::Cord payload;
};

// The memory of payloads that are not sent with their frames.
class SharedPayloads {
 public:
  virtual ~SharedPayloads() = default;

  // The bytes at a place that the peer names, valid while a reference is held; the peer may change
  // them meanwhile. INVALID_ARGUMENT: there is no such place.
  virtual absl::StatusOr<absl::Cord> Take(const v1::SharedPayload& place) = 0;
};

// The bytes before the payload: the header field, then the payload's tag and length (omitted if the
// payload is empty).
std::string EncodeFramePrefix(const v1::Header& header, size_t payload_bytes);

// The same in two steps, into the caller's memory: first the size, then the bytes. The header must
// not change in between.
size_t FramePrefixBytes(const v1::Header& header, size_t payload_bytes);
void WriteFramePrefix(const v1::Header& header, size_t payload_bytes, uint8_t* to);

// The whole frame, with its payload in shared memory.
std::string EncodeSharedFrame(const v1::Header& header, const v1::SharedPayload& place);

// The bytes before a frame of `frame_bytes` in a batch.
std::string EncodeBatchPrefix(size_t frame_bytes);

// The whole frame; shares the payload's chunks.
absl::Cord EncodeFrameToCord(const v1::Header& header, const absl::Cord& payload);

// Decodes a frame from a peer: fields may be in any order, unknown fields are skipped, a missing
// header is an empty one. The payload shares the chunks of `wire`, or is in the memory that
// `shared` names (null: no shared memory was agreed on); a payload that is more than an array of
// numbers is copied from there. INVALID_ARGUMENT, naming the error and its byte: anything that is
// not such a message, a repeated field, a header or payload over its limit, a payload that is not
// as long as the header's blocks together (CheckPayloadSize), two payloads, and a batch.
absl::StatusOr<DecodedFrame> DecodeFrame(const absl::Cord& wire, const FrameLimits& limits = {},
                                         SharedPayloads* shared = nullptr);

// A whole message: the frames of a batch in their order, or the one frame. INVALID_ARGUMENT as for
// DecodeFrame, and for too many frames, a batch beside a header or payload, a batch within a batch.
absl::StatusOr<std::vector<DecodedFrame>> DecodeFrames(const absl::Cord& wire,
                                                       const FrameLimits& limits = {},
                                                       SharedPayloads* shared = nullptr);

// The block headers of a body; null if this kind of body has none.
const google::protobuf::RepeatedPtrField<v1::BlockHeader>* BlocksOf(const v1::Header& header);

// A payload is its header's blocks back to back (of a CopyState: a part of a file): OK if their
// sizes add up to `payload_bytes`, else INVALID_ARGUMENT.
absl::Status CheckPayloadSize(const v1::Header& header, uint64_t payload_bytes);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_FRAMES_FRAME_WIRE_H_
