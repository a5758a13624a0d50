#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_FLOAT_CODEC_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_FLOAT_CODEC_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "services/protocol/codec/codec.h"

namespace sluice {

// Base of the codecs that reduce gradients to a few bits; they work on float32. float64 blocks are
// rounded to float32 first (beyond its range to infinity), and decoded values are float32 numbers.
//
// A payload is much smaller than its block, so it is made contiguous before it is read.
class FloatCodec : public Codec {
 public:
  explicit FloatCodec(v1::Codec id) : id_(id) {}

  v1::Codec id() const final { return id_; }
  absl::Status Supports(v1::DataType dtype) const final;
  absl::StatusOr<size_t> EncodedBytes(size_t count, v1::DataType dtype) const final;
  absl::StatusOr<size_t> Encode(ConstElements values, absl::Span<char> to) const final;
  absl::Status Validate(const absl::Cord& payload, v1::DataType dtype, size_t count) const final;
  absl::Status Decode(const absl::Cord& payload, Elements to) const final;
  absl::Status DecodeAdd(const absl::Cord& payload, v1::DataType dtype,
                         Elements accumulator) const final;

 private:
  // The subclass's format. MostBytes: the size of the buffer for `count` elements. Any thread.
  virtual size_t MostBytes(size_t count) const = 0;
  // `to` has room for MostBytes(values.size()). Returns the bytes written.
  virtual size_t EncodeFloats(absl::Span<const float> values, char* to) const = 0;
  // Whether DecodeFloats can read the payload.
  virtual absl::Status Check(absl::string_view payload, size_t count) const = 0;
  // `payload` has passed Check. Writes every element.
  virtual void DecodeFloats(absl::string_view payload, absl::Span<float> to) const = 0;

  const v1::Codec id_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_FLOAT_CODEC_H_
