#ifndef SLUICE_SERVICES_PROTOCOL_FRAME_H_
#define SLUICE_SERVICES_PROTOCOL_FRAME_H_

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/protocol/frame_wire.h"

namespace sluice {

// The frame as a gRPC message: slice 0 is the header with the payload's tag and length, each
// further slice is a chunk of the payload where it lies. gRPC holds the chunks (a reference on the
// Cord) until they are sent.
grpc::ByteBuffer EncodeFrame(const v1::Header& header, const absl::Cord& payload);

// The inverse; errors as DecodeFrame of frame_wire.h. The payload's chunks are the received slices
// themselves (those of at least a few KiB; smaller ones are copied), of ~64 KiB each and not
// aligned to anything: each keeps its receive buffer alive, so drop payloads early.
absl::StatusOr<DecodedFrame> DecodeFrame(const grpc::ByteBuffer& message,
                                         const FrameLimits& limits = {});

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_FRAME_H_
