#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_CODEC_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_CODEC_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/frame.pb.h"
#include "services/protocol/elements.h"

namespace sluice {

// How the elements of one block become the bytes of a payload, and back. Used by workers (encode
// gradients, decode parameters) and shards (the other way round).
//
// A codec is stateless and shared: all calls are thread-safe and none blocks. What a lossy codec
// with error feedback remembers from one encoding of a block to the next is its sender's: a
// residual of ResidualCount floats per block, zero at first, handed to each Encode.
//
// INVALID_ARGUMENT names the codec and what was wrong; a call that fails has written nothing.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual v1::Codec id() const = 0;

  // Whether blocks of `dtype` can be carried.
  virtual absl::Status Supports(v1::DataType dtype) const = 0;

  // The most bytes that `count` elements of `dtype` take: how large a buffer Encode needs.
  virtual absl::StatusOr<size_t> EncodedBytes(size_t count, v1::DataType dtype) const = 0;

  // Floats of error feedback that the sender keeps for a block of `count` elements; 0: none.
  virtual size_t ResidualCount(size_t count) const = 0;

  // Writes the encoded values to the front of `to` and returns how many bytes these are, at most
  // EncodedBytes. `residual` has ResidualCount elements; what was added from it and what is left
  // out this time is settled there.
  virtual absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<float> residual,
                                        absl::Span<char> to) const = 0;

  // Writes the payload's values to `to`, the whole block.
  virtual absl::Status Decode(const absl::Cord& payload, Elements to) const = 0;

  // Adds the values of a payload that was encoded from a block of `dtype` to the accumulator, which
  // covers the whole block and is of ComputeDataType(dtype), straight from the payload's chunks.
  virtual absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                                 Elements accumulator) const = 0;
};

// The codec of that id, which lives forever. INVALID_ARGUMENT for a number that is none.
absl::StatusOr<const Codec*> FindCodec(v1::Codec id);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_CODEC_H_
