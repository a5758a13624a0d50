#include "services/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SafetensorsArray Array(std::string name, v1::DataType dtype, std::vector<int64_t> shape,
                       size_t bytes, char fill) {
  return {std::move(name), dtype, std::move(shape), absl::Cord(std::string(bytes, fill))};
}

// A file with this header and this many bytes of data.
absl::Cord FileOf(absl::string_view header, size_t data) {
  std::string text(8, '\0');
  for (size_t i = 0; i < 8; ++i) text[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return absl::Cord(absl::StrCat(text, header, std::string(data, 'x')));
}

TEST(SafetensorsTest, ReadsBackWhatWasWritten) {
  const std::vector<SafetensorsArray> arrays = {
      Array("fc.weight", v1::FLOAT32, {2, 3}, 24, 'a'), Array("scalar", v1::INT64, {}, 8, 'b'),
      Array("empty", v1::FLOAT64, {0, 4}, 0, 'c'), Array("half", v1::BFLOAT16, {5}, 10, 'd')};
  const auto read = ReadSafetensors(WriteSafetensors(arrays, {{"format", "pt"}}));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), arrays.size());
  for (const SafetensorsArray& array : arrays) {
    const auto found = std::find_if(read->begin(), read->end(), [&](const SafetensorsArray& other) {
      return other.name == array.name;
    });
    ASSERT_NE(found, read->end()) << array.name;
    EXPECT_EQ(found->dtype, array.dtype);
    EXPECT_EQ(found->shape, array.shape);
    EXPECT_EQ(found->bytes, array.bytes);
  }
}

TEST(SafetensorsTest, DataBeginsAtMultipleOf64) {
  for (const char* name : {"a", "ab", "a-name-that-is-somewhat-longer"}) {
    const absl::Cord file = WriteSafetensors({Array(name, v1::FLOAT32, {1}, 4, 'x')}, {});
    EXPECT_EQ((file.size() - 4) % 64, 0u);
  }
}

TEST(SafetensorsTest, RejectsEveryTruncation) {
  const absl::Cord file = WriteSafetensors({Array("w", v1::FLOAT32, {4}, 16, 'x')}, {});
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(ReadSafetensors(file.Subcord(0, size)).ok()) << size;
  }
}

TEST(SafetensorsTest, RejectsFalseHeaderAndNamesArray) {
  struct Case {
    const char* header;
    const char* message;
  };
  const Case cases[] = {
      {R"([])", "not JSON"},
      {R"({"w":{"dtype":"F32","shape":[1]}})", "missing"},
      {R"({"w":{"dtype":"F8","shape":[4],"data_offsets":[0,4]}})", "unknown dtype F8"},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "does not fit"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", "outside"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "outside"},
      {R"({"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "not a list of sizes"},
      {R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})",
       "too many elements"},
      {R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", "two numbers"},
  };
  for (const Case& c : cases) {
    const auto read = ReadSafetensors(FileOf(c.header, 4));
    ASSERT_FALSE(read.ok()) << c.header;
    EXPECT_THAT(read.status().message(), HasSubstr(c.message)) << c.header;
  }
}

TEST(SafetensorsTest, AcceptsWhatTheReferenceReaderAccepts) {
  std::ifstream file("tests/vectors/safetensors.json");
  const nlohmann::json cases = nlohmann::json::parse(file)["cases"];
  ASSERT_GT(cases.size(), 100u);
  for (const auto& c : cases) {
    const auto header = c["header"].get<std::string>();
    absl::Cord content = FileOf(header, c["data"].get<size_t>());
    if (c.contains("length")) {
      const auto stated = c["length"].get<uint64_t>();
      absl::Cord prefix(absl::string_view(reinterpret_cast<const char*>(&stated), sizeof(stated)));
      prefix.Append(content.Subcord(sizeof(stated), content.size()));
      content = prefix;
    }
    const auto read = ReadSafetensors(content);
    EXPECT_EQ(read.ok(), c["accepted"].get<bool>()) << c["name"] << ": " << read.status();
  }
}

TEST(SafetensorsTest, RejectsHeaderThatIsNestedDeeplyOrNotUtf8) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& header : {deep, "{\"w\": " + deep + "}", std::string(200'000, '{')}) {
    EXPECT_THAT(ReadSafetensors(FileOf(header, 4)).status().message(), HasSubstr("nested deeper"));
  }
  EXPECT_THAT(ReadSafetensors(FileOf("{\"w\xFF\": 1}", 4)).status().message(),
              HasSubstr("not UTF-8"));
}

TEST(SafetensorsTest, ArraysAreInOrderOfTheirBytes) {
  const auto read =
      ReadSafetensors(FileOf(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
                             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                             8));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(std::vector<std::string>({(*read)[0].name, (*read)[1].name}), ElementsAre("a", "b"));
}

}  // namespace
}  // namespace sluice
