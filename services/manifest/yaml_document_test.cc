#include "services/manifest/yaml_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace sluice::api {
namespace {

using ::testing::HasSubstr;
using Kind = YamlNode::Kind;

std::string FirstProblem(const std::string& text) {
  const YamlDocument document = YamlDocument::Parse(text);
  return document.problems().empty() ? "" : document.problems()[0].ToString("f");
}

TEST(YamlDocument, RecordsThePlaceOfEveryNode) {
  const YamlDocument document = YamlDocument::Parse("a: 1\nb:\n  - x\n  -  {c: 2}\n");
  ASSERT_EQ(document.roots().size(), 1);
  const YamlNode::Entry* b = document.roots()[0]->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->key_place.line, 2);
  ASSERT_EQ(b->value->items.size(), 2);
  const YamlNode::Entry* c = b->value->items[1]->Find("c");
  EXPECT_EQ(c->key_place.line, 4);
  EXPECT_EQ(c->key_place.column, 7);
}

TEST(YamlDocument, ReadsJson) {
  const YamlDocument document = YamlDocument::Parse("{\"a\": [1, \"2\", null, true]}");
  const YamlNode& list = *document.roots().at(0)->Find("a")->value;
  ASSERT_EQ(list.items.size(), 4);
  EXPECT_EQ(list.items[0]->kind, Kind::kInteger);
  EXPECT_EQ(list.items[1]->kind, Kind::kString);
  EXPECT_EQ(list.items[2]->kind, Kind::kNull);
  EXPECT_EQ(list.items[3]->kind, Kind::kBoolean);
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
  for (const YamlNode* item : document.roots().at(0)->items) EXPECT_EQ(item->kind, Kind::kString);
}

TEST(YamlDocument, IgnoresEmptyDocuments) {
  EXPECT_EQ(YamlDocument::Parse("---\n---\na: 1\n---\n# only this\n").roots().size(), 1);
  EXPECT_TRUE(YamlDocument::Parse("").roots().empty());
}

TEST(YamlDocument, AliasesAndMergeKeysRepeatValues) {
  const YamlDocument document =
      YamlDocument::Parse("base: &b {x: 1, y: 2}\nsame: *b\nmerged:\n  <<: *b\n  y: 3\n");
  ASSERT_TRUE(document.problems().empty());
  const YamlNode& root = *document.roots().at(0);
  EXPECT_EQ(root.Find("same")->value, root.Find("base")->value);
  EXPECT_EQ(root.Find("merged")->value->Find("x")->value->text, "1");
  EXPECT_EQ(root.Find("merged")->value->Find("y")->value->text, "3");
  EXPECT_EQ(root.Find("merged")->value->entries.size(), 2);
}

TEST(YamlDocument, ABillionLaughsCreateOneNodePerLevel) {
  std::string text = "a0: &a0 [x]\n";
  for (int i = 1; i < 30; ++i) {
    absl::StrAppend(&text, "a", i, ": &a", i, " [");
    for (int k = 0; k < 9; ++k) absl::StrAppend(&text, "*a", i - 1, ", ");
    absl::StrAppend(&text, "*a", i - 1, "]\n");
  }
  const YamlDocument document = YamlDocument::Parse(text);
  EXPECT_TRUE(document.problems().empty());
  EXPECT_EQ(document.roots().size(), 1);
}

TEST(YamlDocument, RejectsDeepLargeAndCircularTextsWithTheirPlace) {
  EXPECT_THAT(FirstProblem(std::string(33, '[') + std::string(33, ']')),
              HasSubstr("f:1:33: nested deeper than 32"));
  EXPECT_THAT(FirstProblem(std::string(100000, '{')), HasSubstr("nested deeper"));
  std::string many = "[";
  for (size_t i = 0; i <= kMaxYamlNodes; ++i) many += "1,";
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
                .roots()
                .size(),
            1);
}

}  // namespace
}  // namespace sluice::api
