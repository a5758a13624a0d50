#include "services/common/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Utf8Test, WhatFitsStays) {
  EXPECT_EQ(TruncateUtf8("", 0), "");
  EXPECT_EQ(TruncateUtf8("läuft", 6), "läuft");
}

TEST(Utf8Test, NoCharacterIsCut) {
  const std::string text = "a€😀b";  // of 1, 3, 4 and 1 bytes
  const std::string expected[] = {"", "a", "a", "a", "a€", "a€", "a€", "a€", "a€😀", text};
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    EXPECT_EQ(TruncateUtf8(text, bytes), expected[bytes]) << bytes;
  }
}

TEST(Utf8Test, BytesThatAreNoTextAreCutAnywhere) {
  const std::string bytes(10, '\x80');
  EXPECT_EQ(TruncateUtf8(bytes, 7), bytes.substr(0, 7));
}

TEST(Utf8Test, TextThatIsUtf8StaysAsItIs) {
  for (const char* text : {"", "plain", "läuft", "a€😀b", "\xEF\xBF\xBD"}) {
    EXPECT_TRUE(IsUtf8(text));
    EXPECT_EQ(ToUtf8(text), text);
  }
  EXPECT_TRUE(IsUtf8(std::string("a\0b", 3)));
}

TEST(Utf8Test, BytesOfNoCharacterAreReplaced) {
  EXPECT_EQ(ToUtf8("caf\xE9"), "caf\uFFFD");
  EXPECT_EQ(ToUtf8("\xC0\x80 overlong"), "\uFFFD\uFFFD overlong");
  EXPECT_EQ(ToUtf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD") << "a surrogate";
  EXPECT_EQ(ToUtf8("\xF4\x90\x80\x80"), "\uFFFD\uFFFD\uFFFD\uFFFD") << "beyond U+10FFFF";
  EXPECT_EQ(ToUtf8("€ cut: \xE2\x82"), "€ cut: \uFFFD\uFFFD");
}

}  // namespace
}  // namespace sluice
