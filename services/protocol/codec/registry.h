// The codecs behind MakeCodec, one source file each, which says what the codec does and how its
// payload is laid out. Options have been checked.
#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_REGISTRY_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_REGISTRY_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

std::unique_ptr<const Codec> MakeRaw();
std::unique_ptr<const Codec> MakeFloat16();
std::unique_ptr<const Codec> MakeBFloat16();
std::unique_ptr<const Codec> MakeTopK(double fraction);
std::unique_ptr<const Codec> MakeInt8();
std::unique_ptr<const Codec> MakeOneBit();
std::unique_ptr<const Codec> MakeSignThreshold(float threshold);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_REGISTRY_H_
