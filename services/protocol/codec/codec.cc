#include "services/protocol/codec/codec.h"

#include "absl/strings/str_cat.h"
#include "services/protocol/codec/half_precision.h"
#include "services/protocol/codec/raw.h"

namespace sluice {

absl::StatusOr<const Codec*> FindCodec(v1::Codec id) {
  switch (id) {
    case v1::CODEC_RAW:
      return &RawCodec();
    case v1::CODEC_FLOAT16:
      return &Float16Codec();
    case v1::CODEC_BFLOAT16:
      return &BFloat16Codec();
    default:
      return absl::InvalidArgumentError(absl::StrCat("a payload in codec ", static_cast<int>(id),
                                                     ", which this build does not know"));
  }
}

}  // namespace sluice
