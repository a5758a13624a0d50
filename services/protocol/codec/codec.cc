#include "services/protocol/codec/codec.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/registry.h"
#include "services/protocol/codec/rows.h"

namespace sluice {
namespace {

absl::Status Check(v1::Codec id, const CodecOptions& options) {
  if (id == v1::CODEC_TOP_K && !(options.fraction > 0 && options.fraction <= 0.5)) {
    return absl::InvalidArgumentError(absl::StrCat("CODEC_TOP_K: a fraction of ", options.fraction,
                                                   ", must be above 0 and at most 0.5"));
  }
  if (id == v1::CODEC_SIGN_THRESHOLD &&
      !(options.threshold > 0 && std::isfinite(static_cast<float>(options.threshold)))) {
    return absl::InvalidArgumentError(absl::StrCat("CODEC_SIGN_THRESHOLD: a threshold of ",
                                                   options.threshold, ", must be above 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Codec>> MakeCodec(v1::Codec id, const CodecOptions& options) {
  RETURN_IF_ERROR(Check(id, options));
  switch (id) {
    case v1::CODEC_RAW:
      return MakeRaw();
    case v1::CODEC_FLOAT16:
      return MakeFloat16();
    case v1::CODEC_BFLOAT16:
      return MakeBFloat16();
    case v1::CODEC_TOP_K:
      return MakeTopK(options.fraction);
    case v1::CODEC_INT8:
      return MakeInt8();
    case v1::CODEC_ONE_BIT:
      return MakeOneBit();
    case v1::CODEC_SIGN_THRESHOLD:
      return MakeSignThreshold(static_cast<float>(options.threshold));
    case v1::CODEC_ROWS:
      return MakeRows();
    default:
      return absl::InvalidArgumentError(absl::StrCat("a payload in codec ", static_cast<int>(id),
                                                     ", which this build does not know"));
  }
}

absl::StatusOr<const Codec*> FindCodec(v1::Codec id) {
  static const auto& codecs = *[] {
    auto* made = new std::array<std::unique_ptr<const Codec>, v1::Codec_ARRAYSIZE>();
    for (int i = 0; i < v1::Codec_ARRAYSIZE; ++i) {
      auto codec = MakeCodec(static_cast<v1::Codec>(i), CodecOptions());
      if (codec.ok()) (*made)[i] = *std::move(codec);
    }
    return made;
  }();

  const auto index = static_cast<size_t>(id);
  if (index < codecs.size() && codecs[index] != nullptr) return codecs[index].get();
  return MakeCodec(id, CodecOptions()).status();
}

}  // namespace sluice
