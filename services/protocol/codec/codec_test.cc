#include "services/protocol/codec/codec.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const Codec& Find(v1::Codec id) {
  const auto codec = FindCodec(id);
  EXPECT_TRUE(codec.ok()) << codec.status();
  return **codec;
}

// The payload of a block in chunks of 7 bytes at odd addresses: the worst case of a transport.
absl::Cord Encoded(const Codec& codec, ConstElements values) {
  const auto room = codec.EncodedBytes(values.count(), values.dtype());
  EXPECT_TRUE(room.ok()) << room.status();
  auto* buffer = new std::string(*room + 1, '\0');
  const auto bytes = codec.Encode(values, absl::MakeSpan(buffer->data() + 1, *room));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LE(*bytes, *room);
  const absl::Cord whole = absl::MakeCordFromExternal(absl::string_view(buffer->data() + 1, *bytes),
                                                      [buffer] { delete buffer; });
  absl::Cord payload;
  for (size_t begin = 0; begin < *bytes; begin += 7) payload.Append(whole.Subcord(begin, 7));
  return payload;
}

template <typename T>
std::vector<T> RoundTrip(v1::Codec id, const std::vector<T>& values) {
  std::vector<T> decoded(values.size());
  const Codec& codec = Find(id);
  const absl::Status status =
      codec.Decode(Encoded(codec, absl::MakeConstSpan(values)), absl::MakeSpan(decoded));
  EXPECT_TRUE(status.ok()) << status;
  return decoded;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> Patterns(size_t count) {
  std::vector<T> values(count);
  auto* bytes = reinterpret_cast<unsigned char*>(values.data());
  for (size_t i = 0; i < count * sizeof(T); ++i) bytes[i] = static_cast<unsigned char>(i * 37 + 11);
  return values;
}

template <typename T>
void ExpectRawKeepsBits() {
  for (const size_t count : {0, 1, 5, 5000}) {
    const std::vector<T> values = Patterns<T>(count);
    EXPECT_EQ(Bytes(RoundTrip(v1::CODEC_RAW, values)), Bytes(values));
  }
}

TEST(RawCodec, KeepsEveryBitOfEveryType) {
  ExpectRawKeepsBits<float>();
  ExpectRawKeepsBits<double>();
  ExpectRawKeepsBits<BFloat16>();
  ExpectRawKeepsBits<Float16>();
  ExpectRawKeepsBits<int64_t>();
}

// Encodes and decodes values with a half-precision codec, where they fit into T.
template <typename T>
void ExpectHalves(v1::Codec id, const std::vector<std::pair<double, double>>& cases) {
  std::vector<T> values, expected;
  for (const auto& [value, half] : cases) {
    values.push_back(static_cast<T>(value));
    expected.push_back(static_cast<T>(half));
  }
  const std::vector<T> decoded = RoundTrip(id, values);
  for (size_t i = 0; i < cases.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(decoded[i]));
    } else {
      EXPECT_EQ(decoded[i], expected[i]) << "of " << cases[i].first;
      EXPECT_EQ(std::signbit(decoded[i]), std::signbit(expected[i])) << "of " << cases[i].first;
    }
  }
}

TEST(HalfPrecisionCodec, RoundsToFloat16) {
  const std::vector<std::pair<double, double>> cases = {
      {1, 1},
      {-0.0, -0.0},
      {0.1, 0.0999755859375},
      {2049, 2048},  // ties go to the even one
      {2051, 2052},
      {65504, 65504},
      {65519, 65504},
      {65520, kInf},
      {-1e30, -kInf},
      {kInf, kInf},
      {-kInf, -kInf},
      {kNan, kNan},
      {0x1p-14, 0x1p-14},    // smallest normal
      {0x1p-24, 0x1p-24},    // smallest subnormal
      {0x1.8p-24, 0x1p-23},  // ties to even
      {0x1p-25, 0},          // ties to even: none
      {-0x1.1p-25, -0x1p-24},
      {0x3ffp-24, 0x3ffp-24},  // largest subnormal
      {1e-30, 0},
  };
  ExpectHalves<float>(v1::CODEC_FLOAT16, cases);
  ExpectHalves<double>(v1::CODEC_FLOAT16, cases);
}

TEST(HalfPrecisionCodec, RoundsToBFloat16) {
  const std::vector<std::pair<double, double>> cases = {
      {1, 1},
      {-0.0, -0.0},
      {257, 256},
      {259, 260},
      {1e30, 0x1.94p99},
      {0x1.fep127, 0x1.fep127},
      {kInf, kInf},
      {-kInf, -kInf},
      {kNan, kNan},
      {0x1p-126, 0x1p-126},
      {0x1p-133, 0x1p-133},  // smallest subnormal
      {0x1p-134, 0},
      {-0x1.8p-133, -0x1p-132},
  };
  ExpectHalves<float>(v1::CODEC_BFLOAT16, cases);
  ExpectHalves<double>(v1::CODEC_BFLOAT16, cases);
}

TEST(HalfPrecisionCodec, TakesTwoBytesPerElement) {
  for (const v1::Codec id : {v1::CODEC_FLOAT16, v1::CODEC_BFLOAT16}) {
    EXPECT_EQ(*Find(id).EncodedBytes(1000, v1::FLOAT32), 2000u);
    EXPECT_EQ(*Find(id).EncodedBytes(1000, v1::FLOAT64), 2000u);
  }
}

// T is a type of elements that the codec supports.
template <typename T>
void ExpectDecodeAddIsDecodeAndAdd(v1::Codec id) {
  using Compute = ComputeType<T>;
  constexpr size_t kCount = 3001;
  std::vector<T> values(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const float value = static_cast<float>(i) / 7 - 100;
    if constexpr (std::is_same_v<T, BFloat16>) {
      values[i] = ToBFloat16(value);
    } else if constexpr (std::is_same_v<T, Float16>) {
      values[i] = ToFloat16(value);
    } else {
      values[i] = static_cast<T>(value);
    }
  }
  const Codec& codec = Find(id);
  const std::vector<T> decoded = RoundTrip(id, values);
  std::vector<Compute> sums(kCount);
  for (int round = 0; round < 2; ++round) {
    const absl::Status status = codec.DecodeAdd(Encoded(codec, absl::MakeConstSpan(values)),
                                                DataTypeOf<T>, absl::MakeSpan(sums));
    ASSERT_TRUE(status.ok()) << status;
  }
  for (size_t i = 0; i < kCount; ++i) {
    Compute value;
    if constexpr (sizeof(T) == 2) {
      value = ToFloat(decoded[i]);
    } else {
      value = decoded[i];
    }
    ASSERT_EQ(sums[i], value + value) << i;
  }
}

TEST(Codecs, DecodeAddAddsWhatDecodeWrites) {
  ExpectDecodeAddIsDecodeAndAdd<float>(v1::CODEC_RAW);
  ExpectDecodeAddIsDecodeAndAdd<double>(v1::CODEC_RAW);
  ExpectDecodeAddIsDecodeAndAdd<BFloat16>(v1::CODEC_RAW);
  ExpectDecodeAddIsDecodeAndAdd<Float16>(v1::CODEC_RAW);
  ExpectDecodeAddIsDecodeAndAdd<float>(v1::CODEC_FLOAT16);
  ExpectDecodeAddIsDecodeAndAdd<double>(v1::CODEC_FLOAT16);
  ExpectDecodeAddIsDecodeAndAdd<float>(v1::CODEC_BFLOAT16);
  ExpectDecodeAddIsDecodeAndAdd<double>(v1::CODEC_BFLOAT16);
}

TEST(Codecs, AreFoundById) {
  for (const v1::Codec id : {v1::CODEC_RAW, v1::CODEC_FLOAT16, v1::CODEC_BFLOAT16}) {
    EXPECT_EQ(Find(id).id(), id);
  }
  const absl::Status status = FindCodec(static_cast<v1::Codec>(42)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a payload in codec 42, which this build does not know");
}

void ExpectInvalid(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), message);
}

TEST(Codecs, RejectUnsupportedDataTypes) {
  std::vector<int64_t> integers(2);
  std::vector<BFloat16> halves(2);
  std::vector<float> sums(2);
  std::vector<char> buffer(100);
  const absl::Cord payload(std::string(4, '\1'));
  const Codec& half = Find(v1::CODEC_FLOAT16);
  const std::string message =
      "CODEC_FLOAT16: a block of BFLOAT16, only FLOAT32 and FLOAT64 are carried in half precision";
  ExpectInvalid(half.Supports(v1::BFLOAT16), message);
  ExpectInvalid(half.EncodedBytes(1, v1::BFLOAT16).status(), message);
  ExpectInvalid(half.Encode(absl::MakeConstSpan(halves), absl::MakeSpan(buffer)).status(), message);
  ExpectInvalid(half.Decode(payload, absl::MakeSpan(halves)), message);
  ExpectInvalid(half.DecodeAdd(payload, v1::BFLOAT16, absl::MakeSpan(sums)), message);
  ExpectInvalid(
      Find(v1::CODEC_BFLOAT16).Decode(payload, absl::MakeSpan(integers)),
      "CODEC_BFLOAT16: a block of INT64, only FLOAT32 and FLOAT64 are carried in half precision");
  ExpectInvalid(Find(v1::CODEC_RAW)
                    .DecodeAdd(absl::Cord(std::string(16, '\1')), v1::INT64, absl::MakeSpan(sums)),
                "CODEC_RAW: a gradient of INT64, only floating point is summed");
  ExpectInvalid(Find(v1::CODEC_RAW).Supports(static_cast<v1::DataType>(9)),
                "CODEC_RAW: a block of data type 9, which is unknown");
}

TEST(Codecs, RejectAccumulatorOfAnotherType) {
  std::vector<float> sums(2);
  const absl::Cord payload(std::string(16, '\1'));
  const std::string rest = ": blocks of FLOAT64 are summed in FLOAT64, not in FLOAT32";
  ExpectInvalid(Find(v1::CODEC_RAW).DecodeAdd(payload, v1::FLOAT64, absl::MakeSpan(sums)),
                "CODEC_RAW" + rest);
  ExpectInvalid(Find(v1::CODEC_FLOAT16).DecodeAdd(payload, v1::FLOAT64, absl::MakeSpan(sums)),
                "CODEC_FLOAT16" + rest);
}

TEST(Codecs, RejectPayloadsAndBuffersOfWrongSizeAndWriteNothing) {
  std::vector<float> values = {1, 2, 3};
  const absl::Cord payload(std::string(8, '\1'));
  ExpectInvalid(Find(v1::CODEC_RAW).Decode(payload, absl::MakeSpan(values)),
                "CODEC_RAW: a payload of 8 bytes for a block that takes 12");
  ExpectInvalid(Find(v1::CODEC_RAW).DecodeAdd(payload, v1::FLOAT32, absl::MakeSpan(values)),
                "CODEC_RAW: a payload of 8 bytes for a block that takes 12");
  ExpectInvalid(Find(v1::CODEC_FLOAT16).Decode(payload, absl::MakeSpan(values)),
                "CODEC_FLOAT16: a payload of 8 bytes for a block that takes 6");
  ExpectInvalid(Find(v1::CODEC_BFLOAT16).DecodeAdd(payload, v1::FLOAT32, absl::MakeSpan(values)),
                "CODEC_BFLOAT16: a payload of 8 bytes for a block that takes 6");
  EXPECT_EQ(values, (std::vector<float>{1, 2, 3}));

  std::string buffer(5, '-');
  ExpectInvalid(Find(v1::CODEC_RAW)
                    .Encode(absl::MakeConstSpan(values), absl::MakeSpan(&buffer[0], 5))
                    .status(),
                "CODEC_RAW: a buffer of 5 bytes for a payload of up to 12");
  ExpectInvalid(Find(v1::CODEC_FLOAT16)
                    .Encode(absl::MakeConstSpan(values), absl::MakeSpan(&buffer[0], 5))
                    .status(),
                "CODEC_FLOAT16: a buffer of 5 bytes for a payload of up to 6");
  EXPECT_EQ(buffer, "-----");
}

}  // namespace
}  // namespace sluice
