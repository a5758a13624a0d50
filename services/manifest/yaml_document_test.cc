#include "services/manifest/yaml_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace sluice::api {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Kind = YamlKind;

std::string FirstProblem(const std::string& text) {
  const YamlDocument document = YamlDocument::Parse(text);
  return document.problems.empty() ? "" : document.problems[0].ToString("f");
}

TEST(YamlDocument, RecordsThePlaceOfEveryValue) {
  const YamlDocument document = YamlDocument::Parse("a: 1\nb:\n  - x\n  -  {c: 0x2}\n");
  ASSERT_EQ(document.roots.size(), 1);
  const YamlTokens& tokens = document.tokens;
  const YamlToken b = tokens.Find(document.roots[0].token, "b");
  EXPECT_EQ(b.name.line, 2);
  const YamlToken c = tokens.Find(tokens.Find(b, "[1]"), "c");
  EXPECT_EQ(c.name.line, 4);
  EXPECT_EQ(c.name.column, 7);
  EXPECT_EQ(c.place.column, 10);
  EXPECT_EQ(c.text, "0x2");

  const YamlToken missing = tokens.Find(tokens.Find(b, "[2]"), "c");
  EXPECT_EQ(missing.name.line, 2) << "the place of what would contain it";
  EXPECT_EQ(missing.text, "");
}

TEST(YamlDocument, ReadsJson) {
  const YamlDocument document = YamlDocument::Parse("{\"a\": [1, \"2\", null, true]}");
  EXPECT_EQ(document.roots.at(0).json, Json::parse("{\"a\": [1, \"2\", null, true]}"));
}

TEST(YamlDocument, ReadsPlainScalarsAsKubectlDoes) {
  for (const char* text : {"true", "Yes", "OFF", "no"}) {
    EXPECT_EQ(ResolvePlainScalar(text), Kind::kBoolean) << text;
  }
  for (const char* text : {"0", "-5", "+7", "010", "0x1F", "0o17"}) {
    EXPECT_EQ(ResolvePlainScalar(text), Kind::kInteger) << text;
  }
  for (const char* text : {"1.5", "1e-3", "-.5", "2.", "1E+5", ".inf", "-.Inf", ".nan"}) {
    EXPECT_EQ(ResolvePlainScalar(text), Kind::kNumber) << text;
  }
  for (const char* text :
       {"abc", "1.2.3", "1e", "e5", ".", "-", "+", "1s", "0xg", "10-3", "inf", "nan"}) {
    EXPECT_EQ(ResolvePlainScalar(text), Kind::kString) << text;
  }
  for (const char* text : {"", "~", "null"}) EXPECT_EQ(ResolvePlainScalar(text), Kind::kNull);
}

TEST(YamlDocument, QuotesAndTheStringTagMakeStrings) {
  const YamlDocument document = YamlDocument::Parse("['1', \"yes\", !!str 3]");
  EXPECT_EQ(document.roots.at(0).json, Json({"1", "yes", "3"}));
}

TEST(YamlDocument, IgnoresEmptyDocuments) {
  EXPECT_EQ(YamlDocument::Parse("---\n---\na: 1\n---\n# only this\n").roots.size(), 1);
  EXPECT_TRUE(YamlDocument::Parse("").roots.empty());
}

TEST(YamlDocument, AliasesAndMergeKeysRepeatValues) {
  const YamlDocument document =
      YamlDocument::Parse("base: &b {x: 1, y: 2}\nsame: *b\nmerged:\n  <<: *b\n  y: 3\n");
  ASSERT_TRUE(document.problems.empty());
  const YamlValue& root = document.roots.at(0);
  EXPECT_EQ(root.json["same"], root.json["base"]);
  EXPECT_EQ(root.json["merged"], Json::parse(R"({"x": 1, "y": 3})"));
  const YamlToken merged = document.tokens.Find(root.token, "merged");
  EXPECT_EQ(document.tokens.Find(merged, "x").name.line, 1);
  EXPECT_EQ(document.tokens.Find(merged, "y").name.line, 5);
  const YamlToken same = document.tokens.Find(root.token, "same");
  EXPECT_EQ(same.name.line, 2);
  EXPECT_EQ(document.tokens.Find(same, "x").name.line, 1);
}

TEST(YamlDocument, AliasesRepeatABoundedPartOfTheText) {
  std::string text = "a0: &a0 [x]\n";
  for (int i = 1; i < 30; ++i) {
    absl::StrAppend(&text, "a", i, ": &a", i, " [");
    for (int k = 0; k < 9; ++k) absl::StrAppend(&text, "*a", i - 1, ", ");
    absl::StrAppend(&text, "*a", i - 1, "]\n");
  }
  EXPECT_THAT(FirstProblem(text), HasSubstr("f:6:15: the aliases up to here repeat more than"));

  // A map that is merged counts like one that is repeated.
  text = absl::StrCat("a: &a {x: ", std::string(100000, 'x'), "}\nb: &b {<<: *a}\nc: *b\nd: *b\n");
  EXPECT_THAT(FirstProblem(text), HasSubstr("f:4:4: the aliases up to here repeat more than"));
  EXPECT_THAT(FirstProblem(text.substr(0, text.find("d:"))), "");
}

TEST(YamlDocument, RejectsDeepLargeAndCircularTextsWithTheirPlace) {
  EXPECT_THAT(FirstProblem(std::string(33, '[') + std::string(33, ']')),
              HasSubstr("f:1:33: nested deeper than 32"));
  EXPECT_THAT(FirstProblem(std::string(100000, '{')), HasSubstr("nested deeper"));
  std::string many = "[";
  for (size_t i = 0; i <= kMaxYamlValues; ++i) many += "1,";
  EXPECT_THAT(FirstProblem(many + "]"), HasSubstr("more than 100000 values"));
  EXPECT_THAT(FirstProblem("a: &x [*x]"),
              HasSubstr("f:1:8: this alias refers to a value that contains it"));
  std::string merges = "base: &b {";
  for (int i = 0; i < 900; ++i) absl::StrAppend(&merges, "k", i, ": 1, ");
  merges += "}\n";
  for (int i = 0; i < 100; ++i) absl::StrAppend(&merges, "m", i, ": {<<: *b}\n");
  EXPECT_THAT(FirstProblem(merges), HasSubstr("f:3:6: <<: merges too many names"));
}

TEST(YamlDocument, RejectsKeysThatAreNotNames) {
  EXPECT_THAT(FirstProblem("? [a]\n: 1\n"), HasSubstr("must be a name, not a list or map"));
}

TEST(YamlDocument, SkipsAByteOrderMark) {
  EXPECT_EQ(YamlDocument::Parse("\xef\xbb\xbf"
                                "a: 1")
                .roots.size(),
            1);
}

}  // namespace
}  // namespace sluice::api
