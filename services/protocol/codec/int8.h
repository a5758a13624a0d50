#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_INT8_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_INT8_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// v1::CODEC_INT8: elements rounded to 255 levels between the largest magnitude of each group of 256
// elements and its negative.
//
//   of each group: scale, float32 | an int8 for each element
//
// scale = max |x| / 127; an element is round(x / scale), ties to even, and is decoded as that times
// scale: off by half a scale at most. A group with a non-finite element has the scale NaN.
//
// T. Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (which also looks
// at finer codes than this linear one).
std::unique_ptr<const Codec> MakeInt8();

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_INT8_H_
