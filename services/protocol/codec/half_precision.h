#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_HALF_PRECISION_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_HALF_PRECISION_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// v1::CODEC_FLOAT16 and v1::CODEC_BFLOAT16: float32 and float64 blocks rounded to 16 bits (half.h).
// Beyond 65504 float16 overflows to infinity, which
// the job's non-finite policy then sees; bfloat16 has float's range.
std::unique_ptr<const Codec> MakeFloat16();
std::unique_ptr<const Codec> MakeBFloat16();

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_HALF_PRECISION_H_
