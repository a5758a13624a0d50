#include "services/common/arithmetic/cord_reader.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

// A cord with chunks of exactly these sizes, each starting `misalignment` bytes after an aligned
// address. (Appending small strings would merge them into one chunk.)
absl::Cord CordOfChunks(absl::string_view bytes, const std::vector<size_t>& sizes,
                        size_t misalignment) {
  absl::Cord cord;
  for (const size_t size : sizes) {
    auto* storage = new std::vector<char>(size + misalignment + 16);
    const auto address = reinterpret_cast<uintptr_t>(storage->data());
    char* start = storage->data() + (16 - address % 16) % 16 + misalignment;
    std::memcpy(start, bytes.data(), size);
    bytes.remove_prefix(size);
    cord.Append(
        absl::MakeCordFromExternal(absl::string_view(start, size), [storage] { delete storage; }));
  }
  return cord;
}

template <typename T>
absl::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
void CheckRuns(const absl::Cord& payload, const std::vector<T>& expected) {
  std::vector<T> seen;
  ASSERT_TRUE(ForEachRun<T>(payload, [&](size_t offset, absl::Span<const T> run) {
                EXPECT_EQ(offset, seen.size());
                EXPECT_FALSE(run.empty());
                EXPECT_EQ(reinterpret_cast<uintptr_t>(run.data()) % alignof(T), 0u);
                seen.insert(seen.end(), run.begin(), run.end());
              }).ok());
  EXPECT_EQ(BytesOf(seen), BytesOf(expected));
}

template <typename T>
class CordReaderTest : public testing::Test {
 protected:
  static std::vector<T> Values(size_t count) {
    std::mt19937_64 random(count);
    std::vector<T> values(count);
    for (T& value : values) {
      const uint64_t bits = random();
      std::memcpy(&value, &bits, sizeof(T));
    }
    return values;
  }
};
using Types = testing::Types<float, double, BFloat16, Float16, int64_t>;
TYPED_TEST_SUITE(CordReaderTest, Types);

TYPED_TEST(CordReaderTest, ReassemblesElementsSplitAtAnyByte) {
  const std::vector<TypeParam> values = this->Values(5);
  const size_t bytes = values.size() * sizeof(TypeParam);
  for (size_t first = 1; first < bytes; ++first) {
    for (size_t second = 1; first + second < bytes; ++second) {
      for (const size_t misalignment : {0, 1}) {
        CheckRuns(
            CordOfChunks(BytesOf(values), {first, second, bytes - first - second}, misalignment),
            values);
      }
    }
  }
}

TYPED_TEST(CordReaderTest, ReassemblesChunksOfOneByte) {
  const std::vector<TypeParam> values = this->Values(9);
  CheckRuns(CordOfChunks(BytesOf(values), std::vector<size_t>(9 * sizeof(TypeParam), 1), 0),
            values);
}

TYPED_TEST(CordReaderTest, ReassemblesChunksOfTransport) {
  const std::vector<TypeParam> values = this->Values(100'000);
  const size_t bytes = values.size() * sizeof(TypeParam);
  for (const size_t misalignment : {0, 1, 2, 4, 7}) {
    std::vector<size_t> sizes = {65'536 - 9 - misalignment};
    size_t rest = bytes - sizes[0];
    for (; rest > 65'527; rest -= 65'527) sizes.push_back(65'527);
    sizes.push_back(rest);
    CheckRuns(CordOfChunks(BytesOf(values), sizes, misalignment), values);
  }
}

TYPED_TEST(CordReaderTest, VisitsAlignedChunkInPlace) {
  const std::vector<TypeParam> values = this->Values(50'000);
  const absl::Cord payload = absl::MakeCordFromExternal(BytesOf(values), [] {});
  int runs = 0;
  ASSERT_TRUE(ForEachRun<TypeParam>(payload, [&](size_t, absl::Span<const TypeParam> run) {
                ++runs;
                EXPECT_EQ(run.data(), values.data());
                EXPECT_EQ(run.size(), values.size());
              }).ok());
  EXPECT_EQ(runs, 1);
}

TYPED_TEST(CordReaderTest, EmptyPayloadHasNoRuns) {
  EXPECT_TRUE(ForEachRun<TypeParam>(absl::Cord(), [](size_t, absl::Span<const TypeParam>) {
                ADD_FAILURE() << "an empty run";
              }).ok());
}

TYPED_TEST(CordReaderTest, RefusesPayloadThatEndsWithinElementBeforeAnyCall) {
  const absl::Status status =
      ForEachRun<TypeParam>(absl::Cord(std::string(8 * sizeof(TypeParam) + 1, 'x')),
                            [](size_t, absl::Span<const TypeParam>) { ADD_FAILURE(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), absl::StrCat("a payload of ", 8 * sizeof(TypeParam) + 1,
                                           " bytes is not a whole number of elements of ",
                                           sizeof(TypeParam), " bytes"));
}

TEST(AddPayload, AddsEachElementToItsPlace) {
  std::vector<float> values(30'000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const size_t bytes = values.size() * sizeof(float);
  std::vector<float> sums(values.size(), 0.5f);
  ASSERT_TRUE(AddPayload<float>(CordOfChunks(BytesOf(values), {65'531, bytes - 65'531}, 3),
                                absl::MakeSpan(sums))
                  .ok());
  for (size_t i = 0; i < sums.size(); ++i) ASSERT_EQ(sums[i], static_cast<float>(i) + 0.5f);
}

TEST(AddPayload, WidensHalves) {
  const std::vector<BFloat16> values = {ToBFloat16(1.5f), ToBFloat16(-2.0f)};
  std::vector<float> sums = {1, 1};
  ASSERT_TRUE(AddPayload<BFloat16>(absl::Cord(BytesOf(values)), absl::MakeSpan(sums)).ok());
  EXPECT_EQ(sums, (std::vector<float>{2.5f, -1.0f}));
}

TEST(AddPayload, RefusesWrongSizeAndAddsNothing) {
  std::vector<double> sums = {1, 2};
  const absl::Status status =
      AddPayload<double>(absl::Cord(std::string(24, '\1')), absl::MakeSpan(sums));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "a payload of 24 bytes where 2 elements of 8 bytes are expected");
  EXPECT_EQ(sums, (std::vector<double>{1, 2}));
}

TEST(CopyPayload, CopiesAllChunks) {
  std::vector<char> to(10);
  ASSERT_TRUE(CopyPayload(CordOfChunks("0123456789", {3, 6, 1}, 1), absl::MakeSpan(to)).ok());
  EXPECT_EQ(std::string(to.begin(), to.end()), "0123456789");
}

TEST(CopyPayload, RefusesWrongSizeAndWritesNothing) {
  std::vector<char> to(3, '-');
  EXPECT_EQ(CopyPayload(absl::Cord("0123"), absl::MakeSpan(to)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(to.begin(), to.end()), "---");
}

}  // namespace
}  // namespace sluice
