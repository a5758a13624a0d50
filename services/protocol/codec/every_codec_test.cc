// Tests the promises of codec.h for every codec, in every data type that it supports. A new codec
// is tested without a change here.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "proto/common.pb.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"

namespace sluice {
namespace {

constexpr size_t kSizes[] = {1, 2, 255, 256, 257, 511, 512, 513, 3001};

template <typename T>
T Make(double value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
double Number(T value) {
  if constexpr (sizeof(T) == 2) {
    return ToFloat(value);
  } else {
    return static_cast<double>(value);
  }
}

template <typename T>
std::vector<T> Values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = Make<T>(static_cast<double>(random() % 2000) / 128 - 7);
  return values;
}

// The payload in a buffer of exactly the promised size, in chunks of 7 bytes.
template <typename T>
absl::Cord Encoded(const Codec& codec, const std::vector<T>& values) {
  std::string buffer(*codec.EncodedBytes(values.size(), DataTypeOf<T>), '\xee');
  const auto bytes =
      codec.Encode(absl::MakeConstSpan(values), absl::MakeSpan(&buffer[0], buffer.size()));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  absl::Cord payload;
  for (size_t begin = 0; begin < *bytes; begin += 7) {
    auto* chunk = new std::string(buffer.substr(begin, std::min<size_t>(7, *bytes - begin)));
    payload.Append(absl::MakeCordFromExternal(*chunk, [chunk] { delete chunk; }));
  }
  return payload;
}

template <typename T>
void CheckBlocks(const Codec& codec) {
  using Compute = ComputeType<T>;
  for (const size_t count : kSizes) {
    SCOPED_TRACE(testing::Message()
                 << v1::Codec_Name(codec.id()) << ", " << v1::DataType_Name(DataTypeOf<T>) << ", "
                 << count << " elements");
    const std::vector<T> values = Values<T>(count, static_cast<uint32_t>(count));
    const absl::Cord payload = Encoded(codec, values);
    EXPECT_EQ(payload, Encoded(codec, values)) << "the same values give the same bytes";
    EXPECT_TRUE(codec.Validate(payload, DataTypeOf<T>, count).ok());

    std::vector<T> decoded(count);
    ASSERT_TRUE(codec.Decode(payload, absl::MakeSpan(decoded)).ok());
    for (const T value : decoded) EXPECT_TRUE(std::isfinite(Number(value)));

    std::vector<Compute> sums(count, Compute{3});
    ASSERT_TRUE(codec.DecodeAdd(payload, DataTypeOf<T>, absl::MakeSpan(sums)).ok());
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(sums[i], Compute{3} + static_cast<Compute>(Number(decoded[i]))) << i;
    }

    // Neither a shorter payload nor a block of another size may write anything.
    const absl::Cord shorter = payload.Subcord(0, payload.size() - 1);
    EXPECT_FALSE(codec.Validate(shorter, DataTypeOf<T>, count).ok());
    std::vector<T> untouched = values;
    EXPECT_FALSE(codec.Decode(shorter, absl::MakeSpan(untouched)).ok());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(Number(untouched[i]), Number(values[i])) << i;
  }
}

template <typename T>
void CheckNonFinite(const Codec& codec) {
  for (const double odd : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    for (const size_t place : {size_t{0}, size_t{300}, size_t{599}}) {
      std::vector<T> values = Values<T>(600, 1);
      values[place] = Make<T>(odd);
      std::vector<T> decoded(values.size());
      ASSERT_TRUE(codec.Decode(Encoded(codec, values), absl::MakeSpan(decoded)).ok());
      EXPECT_FALSE(std::isfinite(Number(decoded[place])))
          << v1::Codec_Name(codec.id()) << " hides " << odd << " at " << place;
    }
  }
}

// CODEC_ROWS encodes the rows that a caller names, and has a test of its own (rows_test.cc).
TEST(EveryCodec, KeepsItsPromisesInEveryType) {
  int checked = 0;
  for (int number = 0; v1::Codec_IsValid(number); ++number) {
    const auto id = static_cast<v1::Codec>(number);
    if (id == v1::CODEC_ROWS) continue;
    const auto codec = MakeCodec(id, {});
    ASSERT_TRUE(codec.ok()) << codec.status();
    EXPECT_EQ((*codec)->id(), id);
    for (const v1::DataType dtype : {v1::FLOAT32, v1::FLOAT64, v1::BFLOAT16, v1::FLOAT16}) {
      if (!(*codec)->Supports(dtype).ok()) continue;
      ++checked;
      VisitFloatingPoint(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        CheckBlocks<T>(**codec);
        CheckNonFinite<T>(**codec);
      });
    }
  }
  EXPECT_GE(checked, v1::Codec_ARRAYSIZE - 1) << "every codec supports a data type";
}

}  // namespace
}  // namespace sluice
