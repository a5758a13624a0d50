#include "services/checkpoint/state_dict_extras.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/common.pb.h"
#include "services/checkpoint/safetensors.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

SafetensorsArray Array(const std::string& name, const std::string& bytes) {
  return {name, v1::FLOAT32, {static_cast<int64_t>(bytes.size()) / 4}, absl::Cord(bytes)};
}

SafetensorsArray Mask(const std::string& name) {
  SafetensorsArray mask;
  mask.name = name;
  mask.dtype = v1::DATA_TYPE_UNSPECIFIED;
  mask.other_type = "BOOL";
  mask.shape = {2};
  mask.bytes = absl::Cord(std::string("\1\0", 2));
  return mask;
}

TEST(StateDictExtrasTest, ReadsBackAliasesAndConstants) {
  StateDictExtras extras;
  extras.aliases = {{"head.weight", "tokens.weight"}};
  extras.constants = {Mask("mask"), Array("none", "")};
  const auto read = ReadStateDictExtras(WriteStateDictExtras(extras));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->aliases, ElementsAre(Pair("head.weight", "tokens.weight")));
  ASSERT_EQ(read->constants.size(), 2u);
  EXPECT_EQ(read->constants[0].name, "mask");
  EXPECT_EQ(read->constants[0].other_type, "BOOL");
  EXPECT_EQ(read->constants[0].bytes, std::string("\1\0", 2));
  EXPECT_THAT(read->constants[1].shape, ElementsAre(0));
}

TEST(StateDictExtrasTest, RejectsEveryTruncationAndFlippedBit) {
  StateDictExtras extras;
  extras.aliases = {{"b", "a"}};
  extras.constants = {Mask("mask")};
  const std::string whole(WriteStateDictExtras(extras));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(ReadStateDictExtras(absl::Cord(whole.substr(0, size))).ok()) << size;
  }
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(ReadStateDictExtras(absl::Cord(damaged)).ok()) << bit;
  }
}

TEST(StateDictExtrasTest, AliasHasTrainedValue) {
  StateDictExtras extras;
  extras.aliases = {{"head.weight", "tokens.weight"}};
  extras.constants = {Mask("mask")};
  std::vector<SafetensorsArray> tensors = {Array("tokens.weight", "abcd")};
  ASSERT_TRUE(AddExtras(extras, &tensors).ok());
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[1].name, "mask");
  EXPECT_EQ(tensors[2].name, "head.weight");
  EXPECT_EQ(tensors[2].bytes, "abcd");
}

TEST(StateDictExtrasTest, RejectsExtrasOfAnotherModelByName) {
  std::vector<SafetensorsArray> tensors = {Array("a", "abcd")};
  StateDictExtras missing;
  missing.aliases = {{"c", "b"}};
  EXPECT_THAT(std::string(AddExtras(missing, &tensors).message()), HasSubstr("second name of 'b'"));
  StateDictExtras trained;
  trained.constants = {Mask("a")};
  EXPECT_THAT(std::string(AddExtras(trained, &tensors).message()), HasSubstr("'a' is a tensor"));
  EXPECT_EQ(tensors.size(), 1u);
}

}  // namespace
}  // namespace sluice
