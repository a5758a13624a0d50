#include "services/common/text/wide_encoding.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

// `size` bytes for each character, the last one first if `big`.
std::string Wide(const std::string& text, size_t size, bool big) {
  std::string wide;
  for (const char c : text) {
    std::string unit(size, '\0');
    unit[big ? size - 1 : 0] = c;
    wide += unit;
  }
  return wide;
}

TEST(WideEncodingTest, RecognizesTextWithAndWithoutAByteOrderMark) {
  for (const bool big : {false, true}) {
    EXPECT_EQ(WideEncoding(Wide("x,y\n1,2\n", 2, big)), "UTF-16") << big;
    EXPECT_EQ(WideEncoding(Wide("x,y\n1,2\n", 4, big)), "UTF-32") << big;
  }
  EXPECT_EQ(WideEncoding("\xFF\xFE" + Wide("x", 2, false)), "UTF-16");
  EXPECT_EQ(WideEncoding("\xFE\xFF" + Wide("x", 2, true)), "UTF-16");
  EXPECT_EQ(WideEncoding(std::string("\xFF\xFE\0\0", 4) + Wide("x", 4, false)), "UTF-32");
  EXPECT_EQ(WideEncoding(std::string("\0\0\xFE\xFF", 4) + Wide("x", 4, true)), "UTF-32");
}

TEST(WideEncodingTest, AnyOtherTextIsNotWide) {
  for (const char* text : {"", "x", "xy", "x,y", "x,y\n1,2\n", "\xEF\xBB\xBFx,y\n", "caf\xE9"}) {
    EXPECT_EQ(WideEncoding(text), "") << text;
  }
  EXPECT_EQ(WideEncoding(std::string("a\0b", 3)), "");
  EXPECT_EQ(WideEncoding(std::string("ab\0\0", 4)), "");
  EXPECT_EQ(WideEncoding(std::string(8, '\0')), "");
}

TEST(WideEncodingTest, MessageNamesTheEncodingAndTheRemedy) {
  EXPECT_THAT(WideEncodingMessage("\xFF\xFEx"), HasSubstr("is UTF-16: should be UTF-8"));
  EXPECT_THAT(WideEncodingMessage("\xFF\xFEx"), HasSubstr("iconv -f UTF-16 -t UTF-8"));
}

}  // namespace
}  // namespace sluice
