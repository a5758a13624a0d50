// v1::CODEC_INT8: elements rounded to 255 levels between the largest magnitude of each group of 256
// elements and its negative.
//
//   of each group: scale, float32 | an int8 for each element
//
// scale = max |x| / 127; an element is round(x / scale), ties to even, and is decoded as that times
// scale: off by half a scale at most. A group with a non-finite element has the scale NaN.
//
// T. Dettmers, "8-bit approximations for parallelism in deep learning", ICLR 2016 (which also
// describes finer codes than this linear one).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "services/protocol/codec/checks.h"
#include "services/protocol/codec/float_codec.h"
#include "services/protocol/codec/registry.h"

namespace sluice {
namespace {

constexpr size_t kGroup = 256;
constexpr float kLevels = 127;
// Adding this to a number of at most 2^22 and subtracting it again rounds to nearest, ties to even.
// Unlike calls of rint, this is vectorized.
constexpr float kRounder = 12582912.0f;  // 1.5 * 2^23

float ScaleOf(absl::Span<const float> group) {
  float largest = 0;
  for (float value : group) {
    if (!std::isfinite(value)) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::abs(value));
  }
  return largest / kLevels;
}

class Int8 final : public FloatCodec {
 public:
  Int8() : FloatCodec(v1::CODEC_INT8) {}

 private:
  size_t MostBytes(size_t count) const override {
    return count + (count + kGroup - 1) / kGroup * sizeof(float);
  }

  size_t EncodeFloats(absl::Span<const float> values, char* to) const override {
    for (size_t begin = 0; begin < values.size(); begin += kGroup) {
      const absl::Span<const float> group = values.subspan(begin, kGroup);
      const float scale = ScaleOf(group);
      std::memcpy(to, &scale, sizeof(scale));
      to += sizeof(scale);

      if (!(scale > 0)) {  // only zeros, or NaN
        std::memset(to, 0, group.size());
      } else {
        for (size_t i = 0; i < group.size(); ++i) {
          const float level = (group[i] / scale + kRounder) - kRounder;
          to[i] =
              static_cast<char>(static_cast<int8_t>(std::min(kLevels, std::max(-kLevels, level))));
        }
      }
      to += group.size();
    }
    return MostBytes(values.size());
  }

  absl::Status Check(absl::string_view payload, size_t count) const override {
    return CheckPayload(*this, payload.size(), MostBytes(count));
  }

  void DecodeFloats(absl::string_view payload, absl::Span<float> to) const override {
    const char* from = payload.data();
    for (size_t begin = 0; begin < to.size(); begin += kGroup) {
      const absl::Span<float> group = to.subspan(begin, kGroup);
      float scale;
      std::memcpy(&scale, from, sizeof(scale));
      from += sizeof(scale);

      for (size_t i = 0; i < group.size(); ++i) {
        group[i] = static_cast<float>(static_cast<int8_t>(from[i])) * scale;
      }
      from += group.size();
    }
  }
};

}  // namespace

std::unique_ptr<const Codec> MakeInt8() { return std::make_unique<Int8>(); }

}  // namespace sluice
