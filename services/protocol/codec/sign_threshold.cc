// v1::CODEC_SIGN_THRESHOLD: elements above the threshold are decoded as the threshold, those below
// its negative as that, all others as 0. Introductions to parameter servers show it as compression,
// and N. Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
// INTERSPEECH 2015, made it work by error feedback. How well it trains depends on the threshold,
// for which there is no good default: it is compared with the pushed gradient, a sum over the
// samples.
//
//   threshold, float32 | 2 bits for each element, lowest first: 0, 1: +, 2: -, 3: not finite; the
//   last byte is filled with 0
//
// `threshold`: above 0 and finite.

#include <cmath>
#include <cstring>
#include <limits>

#include "services/common/status_macros.h"
#include "services/protocol/codec/checks.h"
#include "services/protocol/codec/float_codec.h"
#include "services/protocol/codec/registry.h"

namespace sluice {
namespace {

constexpr unsigned kPositive = 1;
constexpr unsigned kNegative = 2;
constexpr unsigned kNonFinite = 3;

class SignThreshold final : public FloatCodec {
 public:
  explicit SignThreshold(float threshold)
      : FloatCodec(v1::CODEC_SIGN_THRESHOLD), threshold_(threshold) {}

 private:
  unsigned CodeOf(float value) const {
    if (!std::isfinite(value)) return kNonFinite;
    return value > threshold_ ? kPositive : value < -threshold_ ? kNegative : 0;
  }

  size_t MostBytes(size_t count) const override { return sizeof(float) + (count + 3) / 4; }

  size_t EncodeFloats(absl::Span<const float> values, char* to) const override {
    const size_t bytes = MostBytes(values.size());
    std::memset(to, 0, bytes);
    std::memcpy(to, &threshold_, sizeof(threshold_));
    char* codes = to + sizeof(threshold_);
    for (size_t i = 0; i < values.size(); ++i) {
      codes[i / 4] = static_cast<char>(codes[i / 4] | (CodeOf(values[i]) << (2 * (i % 4))));
    }
    return bytes;
  }

  absl::Status Check(absl::string_view payload, size_t count) const override {
    RETURN_IF_ERROR(CheckPayload(*this, payload.size(), MostBytes(count)));
    const size_t used = 2 * (count % 4);
    if (used != 0 && (static_cast<unsigned char>(payload.back()) >> used) != 0) {
      return absl::InvalidArgumentError(
          "CODEC_SIGN_THRESHOLD: signs of more elements than the block has");
    }
    return absl::OkStatus();
  }

  void DecodeFloats(absl::string_view payload, absl::Span<float> to) const override {
    float threshold;
    std::memcpy(&threshold, payload.data(), sizeof(threshold));
    const float values[] = {0.0f, threshold, -threshold, std::numeric_limits<float>::quiet_NaN()};
    const char* codes = payload.data() + sizeof(threshold);
    for (size_t i = 0; i < to.size(); ++i) to[i] = values[(codes[i / 4] >> (2 * (i % 4))) & 3];
  }

  const float threshold_;
};

}  // namespace

std::unique_ptr<const Codec> MakeSignThreshold(float threshold) {
  return std::make_unique<SignThreshold>(threshold);
}

}  // namespace sluice
