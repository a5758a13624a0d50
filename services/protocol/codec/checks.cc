#include "services/protocol/codec/checks.h"

#include "absl/strings/str_cat.h"

namespace sluice {

absl::Status CheckRoom(const Codec& codec, size_t have, size_t need) {
  if (have >= need) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(v1::Codec_Name(codec.id()), ": a buffer of ", have,
                                                 " bytes for a payload of up to ", need));
}

absl::Status CheckPayload(const Codec& codec, size_t have, size_t need) {
  if (have == need) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(v1::Codec_Name(codec.id()), ": a payload of ",
                                                 have, " bytes for a block that takes ", need));
}

absl::Status CheckAccumulator(const Codec& codec, v1::DataType dtype, v1::DataType accumulator) {
  if (accumulator == ComputeDataType(dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      v1::Codec_Name(codec.id()), ": blocks of ", v1::DataType_Name(dtype), " are summed in ",
      v1::DataType_Name(ComputeDataType(dtype)), ", not in ", v1::DataType_Name(accumulator)));
}

}  // namespace sluice
