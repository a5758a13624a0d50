#include "services/common/text/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

using ::testing::HasSubstr;

TEST(Utf8Test, AcceptsCharactersOfEveryLength) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xF4\x8F\xBF\xBF"));
}

TEST(Utf8Test, RefusesStrayBytesLongFormsSurrogatesAndCutCharacters) {
  for (const char* bad :
       {"\x80", "\xFF", "\xC0\x80", "\xC1\xBF", "\xC3", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xC3\x28"}) {
    EXPECT_EQ(Utf8Prefix(std::string("ok") + bad), 2u);
  }
}

TEST(JsonTextTest, BoundsNestingOutsideStrings) {
  EXPECT_TRUE(CheckJsonText(R"({"a": [1, {"b": "[[[[{{{{"}], "c": ["\"[[[["]})", 3).ok());
  EXPECT_THAT(CheckJsonText("[[[[]]]]", 3).message(), HasSubstr("deeper than 3"));
  EXPECT_TRUE(CheckJsonText("[[[]],[[]],[[]]]", 3).ok()) << "side by side is not nested";
  EXPECT_FALSE(CheckJsonText(std::string(200'000, '['), 64).ok());
  EXPECT_TRUE(CheckJsonText("]]]]", 1).ok()) << "the parser reports this error";
}

TEST(JsonTextTest, NamesByteThatIsNotUtf8) {
  EXPECT_THAT(CheckJsonText("{\"a\xFF\": 1}", 3).message(), HasSubstr("byte 3"));
}

}  // namespace
}  // namespace sluice
