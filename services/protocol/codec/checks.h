#ifndef SLUICE_SERVICES_PROTOCOL_CODEC_CHECKS_H_
#define SLUICE_SERVICES_PROTOCOL_CODEC_CHECKS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "proto/frame.pb.h"
#include "services/protocol/codec/codec.h"

namespace sluice {

// What every codec checks before it writes anything. INVALID_ARGUMENT tells what is wrong.

// A buffer of `have` bytes takes the `need` that encoding may write.
absl::Status CheckRoom(const Codec& codec, size_t have, size_t need);

// A payload of `have` bytes is the `need` that the block takes.
absl::Status CheckPayload(const Codec& codec, size_t have, size_t need);

// An accumulator is of the type in which blocks of `dtype` are summed.
absl::Status CheckAccumulator(const Codec& codec, v1::DataType dtype, v1::DataType accumulator);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_CODEC_CHECKS_H_
