// The lossy codecs: what they keep, and what they reject.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"
#include "services/protocol/codec/codec.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// All codecs that do not carry each element by itself.
std::vector<v1::Codec> LossyCodecs() {
  std::vector<v1::Codec> lossy;
  for (int id = 0; id < v1::Codec_ARRAYSIZE; ++id) {
    switch (id) {
      case v1::CODEC_RAW:
      case v1::CODEC_FLOAT16:
      case v1::CODEC_BFLOAT16:
      case v1::CODEC_ROWS:
        break;
      default:
        lossy.push_back(static_cast<v1::Codec>(id));
    }
  }
  return lossy;
}

std::unique_ptr<const Codec> Make(v1::Codec id, double fraction = 0.25, double threshold = 0.5) {
  CodecOptions options;
  options.fraction = fraction;
  options.threshold = threshold;
  auto codec = MakeCodec(id, options);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return *std::move(codec);
}

template <typename T>
std::string Encode(const Codec& codec, const std::vector<T>& values) {
  std::string bytes(*codec.EncodedBytes(values.size(), DataTypeOf<T>), '?');
  const auto written =
      codec.Encode(absl::MakeConstSpan(values), absl::MakeSpan(bytes.data(), bytes.size()));
  EXPECT_TRUE(written.ok()) << written.status();
  EXPECT_LE(*written, bytes.size());
  bytes.resize(*written);
  return bytes;
}

// The bytes in chunks of 7: the worst case of a transport.
absl::Cord Chopped(const std::string& bytes) {
  absl::Cord payload;
  for (size_t begin = 0; begin < bytes.size(); begin += 7) {
    auto* chunk = new std::string(bytes.substr(begin, 7));
    payload.Append(absl::MakeCordFromExternal(*chunk, [chunk] { delete chunk; }));
  }
  return payload;
}

template <typename T = float>
std::vector<T> Decode(const Codec& codec, const std::string& bytes, size_t count) {
  std::vector<T> values(count, static_cast<T>(77));
  const absl::Status status = codec.Decode(absl::Cord(bytes), absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<float> RoundTrip(const Codec& codec, const std::vector<float>& values) {
  return Decode(codec, Encode(codec, values), values.size());
}

template <typename T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

using Floats = std::vector<float>;

TEST(TopKCodec, KeepsLargestMagnitudesExactly) {
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_TOP_K, 0.25), {1, -5, 0.5, 2, 4, -3, 0, 1.5}),
            (Floats{0, -5, 0, 0, 4, 0, 0, 0}));
}

TEST(TopKCodec, KeepsTheFirstOfEqualMagnitudes) {
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_TOP_K, 0.5), {1, -1, 3, 1, -1, 0.5}),
            (Floats{1, -1, 3, 0, 0, 0}));
}

TEST(TopKCodec, KeepsAtLeastOneElement) {
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_TOP_K, 1e-9), {1, -2, 1}), (Floats{0, -2, 0}));
}

TEST(TopKCodec, KeepsNonFiniteValuesFirst) {
  const Floats decoded = RoundTrip(*Make(v1::CODEC_TOP_K, 0.5), {9, kNan, -kInf, 8});
  EXPECT_EQ(decoded[0], 0);
  EXPECT_TRUE(std::isnan(decoded[1]));
  EXPECT_EQ(decoded[2], -kInf);
}

TEST(TopKCodec, TakesEightBytesPerKeptElement) {
  const auto codec = Make(v1::CODEC_TOP_K, 0.01);
  EXPECT_EQ(Encode(*codec, Floats(1000, 1.0f)).size(), 4u + 8 * 10);
  EXPECT_EQ(Encode(*codec, Floats(1001, 1.0f)).size(), 4u + 8 * 11);
}

TEST(TopKCodec, RejectsIndicesOutOfRangeOrNotAscending) {
  const auto codec = Make(v1::CODEC_TOP_K);
  const auto validate = [&](const std::vector<uint32_t>& numbers, int values) {
    std::string bytes;
    for (uint32_t number : numbers) Append(number, &bytes);
    for (int i = 0; i < values; ++i) Append(1.0f, &bytes);
    return std::string(codec->Validate(Chopped(bytes), v1::FLOAT32, 4).message());
  };
  EXPECT_EQ(validate({2, 0, 3}, 2), "");
  EXPECT_EQ(validate({0}, 0), "");
  EXPECT_EQ(validate({2, 0, 4}, 2), "CODEC_TOP_K: index 4 in a block of 4");
  EXPECT_EQ(validate({2, 3, 3}, 2), "CODEC_TOP_K: index 3 is not above the one before it");
  EXPECT_EQ(validate({5, 0, 1, 2, 3, 4}, 5), "CODEC_TOP_K: 5 values for a block of 4");
  EXPECT_EQ(validate({1, 0}, 2), "CODEC_TOP_K: a payload of 16 bytes for 1 values, which take 12");
  EXPECT_EQ(validate({}, 0), "CODEC_TOP_K: a payload of 0 bytes");
}

TEST(Int8Codec, RoundsToNearestOf255Levels) {
  Floats values = {127, -127, 0, 1.5, 2.5, -0.4, 126.6};
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_INT8), values), (Floats{127, -127, 0, 2, 2, 0, 127}));
}

TEST(Int8Codec, ScalesEachGroupOf256Separately) {
  Floats values(300, 1.0f);
  values[7] = 1270;
  values[299] = 0.25;
  const Floats decoded = RoundTrip(*Make(v1::CODEC_INT8), values);
  EXPECT_EQ(decoded[0], 0);
  EXPECT_EQ(decoded[7], 1270);
  EXPECT_EQ(decoded[256], 1);
  EXPECT_NEAR(decoded[299], 0.25, 0.5 / 127);
  EXPECT_EQ(Encode(*Make(v1::CODEC_INT8), values).size(), 300u + 2 * 4);
}

TEST(Int8Codec, MakesGroupWithNonFiniteValueNaN) {
  Floats values(300, 1.0f);
  values[3] = kInf;
  const Floats decoded = RoundTrip(*Make(v1::CODEC_INT8), values);
  EXPECT_TRUE(std::all_of(decoded.begin(), decoded.begin() + 256,
                          [](float value) { return std::isnan(value); }));
  EXPECT_EQ(decoded[256], 1);
}

RC_GTEST_PROP(Int8Codec, ErrorIsAtMostHalfAScale, ()) {
  const auto numbers = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-1000000, 1000000));
  Floats values(numbers.begin(), numbers.end());
  const Floats decoded = RoundTrip(*Make(v1::CODEC_INT8), values);
  for (size_t begin = 0; begin < values.size(); begin += 256) {
    const size_t end = std::min(values.size(), begin + 256);
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(values[i]));
    for (size_t i = begin; i < end; ++i) {
      RC_ASSERT(std::abs(values[i] - decoded[i]) <= largest / 127 * 0.5001f);
    }
  }
}

TEST(OneBitCodec, SendsMeanOfEachSign) {
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_ONE_BIT), {1, -2, 3, -4, 0, -0.0f}),
            (Floats{1, -3, 1, -3, 1, 1}));
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_ONE_BIT), {-2, -4}), (Floats{-3, -3}));
}

TEST(OneBitCodec, TakesOneBitPerElementAndTwoMeansPer512) {
  EXPECT_EQ(Encode(*Make(v1::CODEC_ONE_BIT), Floats(512, 1.0f)).size(), 8u + 64);
  EXPECT_EQ(Encode(*Make(v1::CODEC_ONE_BIT), Floats(513, 1.0f)).size(), 8u + 64 + 8 + 1);
}

TEST(OneBitCodec, CarriesNonFiniteValues) {
  const Floats decoded = RoundTrip(*Make(v1::CODEC_ONE_BIT), {1, kNan, -kInf, -1});
  EXPECT_TRUE(std::isnan(decoded[0]));
  EXPECT_EQ(decoded[2], -kInf);
}

RC_GTEST_PROP(OneBitCodec, KeepsSumOfEveryGroup, ()) {
  const auto numbers = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-1000, 1000));
  const Floats values(numbers.begin(), numbers.end());
  const Floats decoded = RoundTrip(*Make(v1::CODEC_ONE_BIT), values);
  double before = 0, after = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    before += values[i];
    after += decoded[i];
    RC_ASSERT((values[i] < 0) == (decoded[i] < 0));
  }
  RC_ASSERT(std::abs(before - after) <= 1e-3 * static_cast<double>(values.size() + 1));
}

TEST(SignThresholdCodec, SendsSignOfValuesBeyondThreshold) {
  EXPECT_EQ(RoundTrip(*Make(v1::CODEC_SIGN_THRESHOLD, 0.25, 0.5), {1, -1, 0.5, -0.5, 0, 0.51f}),
            (Floats{0.5, -0.5, 0, 0, 0, 0.5}));
  EXPECT_EQ(Encode(*Make(v1::CODEC_SIGN_THRESHOLD), Floats(9, 1.0f)).size(), 4u + 3);
}

TEST(SignThresholdCodec, TurnsNonFiniteValuesIntoNaN) {
  const Floats decoded = RoundTrip(*Make(v1::CODEC_SIGN_THRESHOLD), {kInf, kNan, 0});
  EXPECT_TRUE(std::isnan(decoded[0]));
  EXPECT_TRUE(std::isnan(decoded[1]));
  EXPECT_EQ(decoded[2], 0);
}

TEST(LossyCodecs, RejectSignsOfMoreElementsThanBlockHas) {
  for (const v1::Codec id : {v1::CODEC_ONE_BIT, v1::CODEC_SIGN_THRESHOLD}) {
    const auto codec = Make(id);
    std::string bytes = Encode(*codec, Floats(3, 1.0f));
    bytes.back() = static_cast<char>(bytes.back() | 0x80);
    const absl::Status status = codec->Validate(absl::Cord(bytes), v1::FLOAT32, 3);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), v1::Codec_Name(id) + ": signs of more elements than the block has");
  }
}

TEST(LossyCodecs, RejectUnsupportedTypes) {
  for (const v1::Codec id : LossyCodecs()) {
    for (const v1::DataType dtype : {v1::BFLOAT16, v1::FLOAT16, v1::INT64}) {
      const std::string message = v1::Codec_Name(id) + ": a block of " + v1::DataType_Name(dtype) +
                                  ", only FLOAT32 and FLOAT64 are carried";
      EXPECT_EQ(Make(id)->Supports(dtype).message(), message);
      EXPECT_EQ(Make(id)->EncodedBytes(1, dtype).status().message(), message);
      EXPECT_EQ(Make(id)->Validate(absl::Cord(), dtype, 1).message(), message);
    }
  }
}

TEST(LossyCodecs, RejectTooSmallBufferAndWriteNothing) {
  for (const v1::Codec id : LossyCodecs()) {
    std::string buffer(3, '-');
    const Floats values(4, 1.0f);
    EXPECT_EQ(Make(id)
                  ->Encode(absl::MakeConstSpan(values), absl::MakeSpan(buffer.data(), 3))
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(buffer, "---");
  }
}

TEST(LossyCodecs, RejectOptionsOutOfRange) {
  for (const double fraction : {0.0, -1.0, 0.51, std::nan("")}) {
    EXPECT_FALSE(MakeCodec(v1::CODEC_TOP_K, {fraction, 1}).ok()) << fraction;
  }
  for (const double threshold : {0.0, -1.0, 1e60, std::nan("")}) {
    EXPECT_FALSE(MakeCodec(v1::CODEC_SIGN_THRESHOLD, {0.1, threshold}).ok()) << threshold;
  }
}

// Any numbers, including special ones.
std::vector<float> AnyFloats() {
  const auto bits = *rc::gen::container<std::vector<uint32_t>>(rc::gen::oneOf(
      rc::gen::arbitrary<uint32_t>(), rc::gen::element<uint32_t>(0x7f800000, 0xff800000, 0x7fc00000,
                                                                 0, 0x80000000, 1, 0x7f7fffff)));
  std::vector<float> values(bits.size());
  if (!bits.empty()) std::memcpy(values.data(), bits.data(), bits.size() * 4);
  return values;
}

RC_GTEST_PROP(LossyCodecs, DecodeWhatTheyEncodedForAnyNumbers, ()) {
  const std::vector<float> values = AnyFloats();
  const auto codec = Make(*rc::gen::elementOf(LossyCodecs()));
  const std::string bytes = Encode(*codec, values);
  RC_ASSERT(bytes == Encode(*codec, values));
  RC_ASSERT(codec->Validate(Chopped(bytes), v1::FLOAT32, values.size()).ok());
  std::vector<float> decoded(values.size()), sums(values.size(), 1.0f);
  RC_ASSERT(codec->Decode(Chopped(bytes), absl::MakeSpan(decoded)).ok());
  RC_ASSERT(codec->DecodeAdd(Chopped(bytes), v1::FLOAT32, absl::MakeSpan(sums)).ok());
  bool finite = true;
  for (size_t i = 0; i < values.size(); ++i) {
    finite = finite && std::isfinite(decoded[i]);
    const bool same =
        sums[i] == 1.0f + decoded[i] || (std::isnan(sums[i]) && std::isnan(decoded[i]));
    RC_ASSERT(same);
  }
  const bool was_finite =
      std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  if (!was_finite) RC_ASSERT(!finite);
}

RC_GTEST_PROP(LossyCodecs, TreatFloat64AsItsNearestFloat32, ()) {
  const auto numbers = *rc::gen::container<std::vector<int>>(rc::gen::inRange(-1000, 1000));
  const std::vector<double> wide(numbers.begin(), numbers.end());
  const std::vector<float> narrow(numbers.begin(), numbers.end());
  const auto codec = Make(*rc::gen::elementOf(LossyCodecs()));
  const std::string bytes = Encode(*codec, wide);
  RC_ASSERT(bytes == Encode(*codec, narrow));
  std::vector<double> sums(wide.size());
  RC_ASSERT(codec->DecodeAdd(absl::Cord(bytes), v1::FLOAT64, absl::MakeSpan(sums)).ok());
  const std::vector<float> decoded = Decode(*codec, bytes, wide.size());
  for (size_t i = 0; i < sums.size(); ++i) RC_ASSERT(sums[i] == decoded[i]);
}

// Any bytes of a peer are decoded whole, or rejected without a write.
RC_GTEST_PROP(LossyCodecs, RejectOrDecodeAnyBytes, ()) {
  const auto codec = Make(*rc::gen::elementOf(LossyCodecs()));
  const size_t count = *rc::gen::inRange<size_t>(0, 40);
  std::string bytes = Encode(*codec, Floats(count, 1.5f));
  const auto changes = *rc::gen::container<std::vector<std::pair<uint8_t, uint8_t>>>(
      rc::gen::pair(rc::gen::arbitrary<uint8_t>(), rc::gen::arbitrary<uint8_t>()));
  for (const auto& [place, value] : changes) {
    if (!bytes.empty()) bytes[place % bytes.size()] = static_cast<char>(value);
  }
  bytes.resize(bytes.size() + *rc::gen::inRange<size_t>(0, 3), '\1');
  std::vector<float> values(count, 77.0f);
  const bool valid = codec->Validate(Chopped(bytes), v1::FLOAT32, count).ok();
  const absl::Status decoded = codec->Decode(Chopped(bytes), absl::MakeSpan(values));
  RC_ASSERT(decoded.ok() == valid);
  if (!valid) RC_ASSERT(values == std::vector<float>(count, 77.0f));
}

}  // namespace
}  // namespace sluice
