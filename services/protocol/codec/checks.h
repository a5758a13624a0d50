#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_CHECKS_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_CHECKS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "proto/common.pb.h"
#include "services/protocol/codec/codec.h"

namespace sluice {

// Checks that every codec makes before it writes anything. INVALID_ARGUMENT says what is wrong.

// A buffer of `have` bytes has room for the `need` bytes that encoding may write.
absl::Status CheckRoom(const Codec& codec, size_t have, size_t need);

// A payload has exactly the `need` bytes of the block.
absl::Status CheckPayload(const Codec& codec, size_t have, size_t need);

// An accumulator is of the type in which blocks of `dtype` are summed.
absl::Status CheckAccumulator(const Codec& codec, v1::DataType dtype, v1::DataType accumulator);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_CHECKS_H_
