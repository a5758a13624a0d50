#include "services/common/text/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Utf8Test, KeepsTextThatFits) {
  EXPECT_EQ(TruncateUtf8("", 0), "");
  EXPECT_EQ(TruncateUtf8("läuft", 6), "läuft");
}

TEST(Utf8Test, CutsBetweenCharacters) {
  const std::string text = "a€😀b";  // of 1, 3, 4 and 1 bytes
  const std::string expected[] = {"", "a", "a", "a", "a€", "a€", "a€", "a€", "a€😀", text};
  for (size_t bytes = 0; bytes <= text.size(); ++bytes) {
    EXPECT_EQ(TruncateUtf8(text, bytes), expected[bytes]) << bytes;
  }
}

TEST(Utf8Test, CutsInvalidBytesAnywhere) {
  const std::string bytes(10, '\x80');
  EXPECT_EQ(TruncateUtf8(bytes, 7), bytes.substr(0, 7));
}

TEST(Utf8Test, RecognizesValidCharacters) {
  for (const char* text : {"", "a", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF", "läuft €😀"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
    EXPECT_EQ(CleanUtf8(text, 100), text);
  }
  for (const char* bytes :
       {"\xff", "a\x80", "\xC1\x80", "\xC2", "\xC2g", "\xE0\x9F\x80", "\xE2\x82", "\xED\xA0\x80",
        "\xF0\x8F\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xF0\x90\x80"}) {
    EXPECT_FALSE(IsUtf8(bytes)) << bytes;
    EXPECT_TRUE(IsUtf8(CleanUtf8(bytes, 100)));
  }
}

TEST(Utf8Test, ReplacesInvalidBytesAndCutsLongText) {
  EXPECT_EQ(CleanUtf8("a\xff€b", 100), "a?€b");
  EXPECT_EQ(CleanUtf8("a€b", 3), "a");
  EXPECT_EQ(CleanUtf8("\xff\xff\xff", 2), "??");
}

}  // namespace
}  // namespace sluice
