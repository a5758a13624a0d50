#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_CODEC_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_CODEC_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/common.pb.h"
#include "services/protocol/elements.h"

namespace sluice {

// Options of encoding; decoding needs none.
struct CodecOptions {
  // TopK: the fraction of a block's elements that is sent, rounded up to whole elements. Above 0,
  // at most 0.5.
  double fraction = 0.01;
  // SignThreshold: smaller magnitudes are sent as 0. Above 0, finite.
  double threshold = 1;
};

// How the elements of one block become the bytes of a payload, and back. Used by workers (encode
// gradients, decode parameters) and shards (the reverse).
//
// A codec is a pure function of its arguments: the same values give the same bytes on every
// machine. It is stateless and shared: all calls are thread-safe and none blocks. The caller of a
// lossy codec keeps the residual (GradientEncoder in services/worker/core).
//
// A non-finite value is decoded as a non-finite value, so that the job's policy sees it.
//
// INVALID_ARGUMENT names the codec and the error; a failed call has written nothing. Payloads may
// be anything that a peer sends.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual v1::Codec id() const = 0;

  // Whether the codec supports blocks of `dtype`.
  virtual absl::Status Supports(v1::DataType dtype) const = 0;

  // The most bytes that `count` elements of `dtype` take: the size of the buffer that Encode needs.
  virtual absl::StatusOr<size_t> EncodedBytes(size_t count, v1::DataType dtype) const = 0;

  // Writes the encoded values to the front of `to` and returns their size in bytes, at most
  // EncodedBytes.
  virtual absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<char> to) const = 0;

  // Checks that the payload encodes a block of `count` elements of `dtype`: then Decode and
  // DecodeAdd accept it.
  virtual absl::Status Validate(const absl::Cord& payload, v1::DataType dtype,
                                size_t count) const = 0;

  // Writes the payload's values to `to`, the whole block.
  virtual absl::Status Decode(const absl::Cord& payload, Elements to) const = 0;

  // Adds the values of a payload that was encoded from a block of `dtype` to the accumulator, which
  // covers the whole block and is of ComputeDataType(dtype), straight from the payload's chunks.
  virtual absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                                 Elements accumulator) const = 0;
};

// The codec with this id, which is never destroyed; it decodes everything and encodes with the
// default options. INVALID_ARGUMENT for an unknown id.
absl::StatusOr<const Codec*> FindCodec(v1::Codec id);

// A codec that encodes with these options. INVALID_ARGUMENT also for options out of range.
absl::StatusOr<std::unique_ptr<const Codec>> MakeCodec(v1::Codec id, const CodecOptions& options);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_CODEC_H_
