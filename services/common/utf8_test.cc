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

}  // namespace
}  // namespace sluice
