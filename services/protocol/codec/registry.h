// The codecs behind MakeCodec, one source file each, which says what the codec does and how its
// payload is laid out. Options have been checked.
#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_REGISTRY_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_REGISTRY_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// The elements as in memory: lossless, for every data type.
std::unique_ptr<const Codec> MakeRaw();
// Elements rounded to 16 bits: float16 is more precise, bfloat16 has the range of float.
std::unique_ptr<const Codec> MakeFloat16();
std::unique_ptr<const Codec> MakeBFloat16();
// The elements of the largest magnitude, with their indices; the others become 0.
std::unique_ptr<const Codec> MakeTopK(double fraction);
// 255 levels between the largest magnitude of each group of elements and its negative.
std::unique_ptr<const Codec> MakeInt8();
// The sign of each element; decoded as the mean of its group's elements of that sign.
std::unique_ptr<const Codec> MakeOneBit();
// The threshold, with the element's sign, for each element of a larger magnitude; the others become
// 0.
std::unique_ptr<const Codec> MakeSignThreshold(float threshold);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_REGISTRY_H_
