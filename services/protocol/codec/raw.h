#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_RAW_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_RAW_H_

#include <memory>

#include "services/protocol/codec/codec.h"

namespace sluice {

// v1::CODEC_RAW: the elements as in memory, little endian. Every data type; integers can be decoded
// but not added.
std::unique_ptr<const Codec> MakeRaw();

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_RAW_H_
