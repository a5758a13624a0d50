// v1::CODEC_ONE_BIT: of each element its sign; an element is decoded as the mean of its group's
// elements of that sign. Groups are 512 elements. Without error feedback it does not train.
//
//   of each group: mean of those that are not negative, float32 | mean of the negative, float32 |
//                  a bit for each element, lowest first, 1: negative; the last byte is filled with
//                  0
//
// Means are summed in double, in order; that of no elements is 0.
//
// F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, "1-bit stochastic gradient descent and its application
// to data-parallel distributed training of speech DNNs", INTERSPEECH 2014 (two means for each
// column of a matrix).

#include <cmath>
#include <cstring>
#include <limits>

#include "services/common/status_macros.h"
#include "services/protocol/codec/checks.h"
#include "services/protocol/codec/float_codec.h"
#include "services/protocol/codec/registry.h"

namespace sluice {
namespace {

constexpr size_t kGroup = 512;
constexpr size_t kMeans = 2 * sizeof(float);

size_t GroupBytes(size_t count) { return kMeans + (count + 7) / 8; }

float Mean(double sum, size_t count) {
  if (count == 0) return 0;
  const auto mean = static_cast<float>(sum / static_cast<double>(count));
  // Always the same NaN, however it was computed.
  return std::isnan(mean) ? std::numeric_limits<float>::quiet_NaN() : mean;
}

// Writes a group's means and signs; the bytes of the signs are 0 before.
void EncodeGroup(absl::Span<const float> group, char* to) {
  double sums[2] = {0, 0};
  size_t counts[2] = {0, 0};
  char* signs = to + kMeans;

  for (size_t i = 0; i < group.size(); ++i) {
    const bool negative = group[i] < 0;
    sums[negative] += static_cast<double>(group[i]);
    ++counts[negative];
    if (negative) signs[i / 8] = static_cast<char>(signs[i / 8] | (1 << (i % 8)));
  }

  const float means[2] = {Mean(sums[0], counts[0]), Mean(sums[1], counts[1])};
  std::memcpy(to, means, kMeans);
}

class OneBit final : public FloatCodec {
 public:
  OneBit() : FloatCodec(v1::CODEC_ONE_BIT) {}

 private:
  size_t MostBytes(size_t count) const override {
    const size_t rest = count % kGroup;
    return count / kGroup * GroupBytes(kGroup) + (rest > 0 ? GroupBytes(rest) : 0);
  }

  size_t EncodeFloats(absl::Span<const float> values, char* to) const override {
    const size_t bytes = MostBytes(values.size());
    std::memset(to, 0, bytes);
    for (size_t begin = 0; begin < values.size(); begin += kGroup) {
      const absl::Span<const float> group = values.subspan(begin, kGroup);
      EncodeGroup(group, to);
      to += GroupBytes(group.size());
    }
    return bytes;
  }

  absl::Status Check(absl::string_view payload, size_t count) const override {
    RETURN_IF_ERROR(CheckPayload(*this, payload.size(), MostBytes(count)));
    const size_t used = count % 8;  // only the last group may end within a byte
    if (used != 0 && (static_cast<unsigned char>(payload.back()) >> used) != 0) {
      return absl::InvalidArgumentError("CODEC_ONE_BIT: signs of more elements than the block has");
    }
    return absl::OkStatus();
  }

  void DecodeFloats(absl::string_view payload, absl::Span<float> to) const override {
    const char* from = payload.data();
    for (size_t begin = 0; begin < to.size(); begin += kGroup) {
      const absl::Span<float> group = to.subspan(begin, kGroup);
      float means[2];
      std::memcpy(means, from, kMeans);
      const char* signs = from + kMeans;
      for (size_t i = 0; i < group.size(); ++i) group[i] = means[(signs[i / 8] >> (i % 8)) & 1];
      from += GroupBytes(group.size());
    }
  }
};

}  // namespace

std::unique_ptr<const Codec> MakeOneBit() { return std::make_unique<OneBit>(); }

}  // namespace sluice
