// v1::CODEC_TOP_K: only the elements of the largest magnitude of each block, unchanged; all others
// are decoded as 0. Meant for error feedback.
//
//   uint32 k | k indices, uint32, ascending | k values, float32
//
// Sends k = ceil(fraction * n) of n elements; among equal magnitudes, those with the lower index;
// non-finite elements count as the largest. A decoder accepts any k of at most n.
//
// A. F. Aji, K. Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017;
// with error feedback: S. U. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory",
// NeurIPS 2018.
//
// `fraction`: above 0, at most 0.5 (where it would save nothing).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/protocol/codec/float_codec.h"
#include "services/protocol/codec/registry.h"

namespace sluice {
namespace {

constexpr size_t kHead = sizeof(uint32_t);
constexpr size_t kEntry = sizeof(uint32_t) + sizeof(float);

template <typename T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void Store(T value, char* to) {
  std::memcpy(to, &value, sizeof(T));
}

// Bits of the magnitude. They are ordered like magnitudes, with infinity above all numbers and NaN
// above infinity.
uint32_t Magnitude(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffffu;
}

class TopK final : public FloatCodec {
 public:
  explicit TopK(double fraction) : FloatCodec(v1::CODEC_TOP_K), fraction_(fraction) {}

 private:
  size_t Kept(size_t count) const {
    const auto kept = static_cast<size_t>(std::ceil(fraction_ * static_cast<double>(count)));
    return std::min(count, kept);
  }

  size_t MostBytes(size_t count) const override { return kHead + Kept(count) * kEntry; }

  size_t EncodeFloats(absl::Span<const float> values, char* to) const override {
    const size_t k = Kept(values.size());
    Store(static_cast<uint32_t>(k), to);
    if (k == 0) return kHead;

    std::vector<uint32_t> magnitudes(values.size());
    std::transform(values.begin(), values.end(), magnitudes.begin(), Magnitude);
    const auto last = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(magnitudes.begin(), last, magnitudes.end(), std::greater<>());
    const uint32_t lowest = *last;

    // How many elements of the lowest kept magnitude fit beside the larger ones.
    size_t ties = k - static_cast<size_t>(std::count_if(magnitudes.begin(), last,
                                                        [&](uint32_t m) { return m > lowest; }));

    char* index = to + kHead;
    char* value = index + k * sizeof(uint32_t);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint32_t magnitude = Magnitude(values[i]);
      if (magnitude < lowest || (magnitude == lowest && ties == 0)) continue;
      if (magnitude == lowest) --ties;
      Store(static_cast<uint32_t>(i), index);
      Store(values[i], value);
      index += sizeof(uint32_t);
      value += sizeof(float);
    }
    return kHead + k * kEntry;
  }

  absl::Status Check(absl::string_view payload, size_t count) const override {
    const auto fail = [](auto... what) {
      return absl::InvalidArgumentError(absl::StrCat("CODEC_TOP_K: ", what...));
    };

    if (payload.size() < kHead) return fail("a payload of ", payload.size(), " bytes");
    const auto k = size_t{Load<uint32_t>(payload.data())};
    if (k > count) return fail(k, " values for a block of ", count);
    if (payload.size() != kHead + k * kEntry) {
      return fail("a payload of ", payload.size(), " bytes for ", k, " values, which take ",
                  kHead + k * kEntry);
    }

    uint64_t next = 0;
    for (size_t i = 0; i < k; ++i) {
      const auto index = Load<uint32_t>(payload.data() + kHead + i * sizeof(uint32_t));
      if (index >= count) return fail("index ", index, " in a block of ", count);
      if (index < next) return fail("index ", index, " is not above the one before it");
      next = uint64_t{index} + 1;
    }
    return absl::OkStatus();
  }

  void DecodeFloats(absl::string_view payload, absl::Span<float> to) const override {
    std::fill(to.begin(), to.end(), 0.0f);
    const size_t k = Load<uint32_t>(payload.data());
    const char* index = payload.data() + kHead;
    const char* value = index + k * sizeof(uint32_t);
    for (size_t i = 0; i < k; ++i) {
      to[Load<uint32_t>(index + i * sizeof(uint32_t))] = Load<float>(value + i * sizeof(float));
    }
  }

  const double fraction_;
};

}  // namespace

std::unique_ptr<const Codec> MakeTopK(double fraction) { return std::make_unique<TopK>(fraction); }

}  // namespace sluice
