#include "services/common/arithmetic/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32cTest, MatchesExamplesOfRfc) {
  std::string ascending(32, '\0');
  for (size_t i = 0; i < ascending.size(); ++i) ascending[i] = static_cast<char>(i);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(Crc32c(""), 0U);
}

TEST(Crc32cTest, ExtendingByPartsEqualsWholeWithAndWithoutInstruction) {
  std::string bytes(1000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i + 3 * i);
  const absl::string_view view(bytes);
  const uint32_t whole = Crc32c(view);
  for (size_t cut : {0, 1, 7, 8, 9, 500, 1000}) {
    EXPECT_EQ(ExtendCrc32c(Crc32c(view.substr(0, cut)), view.substr(cut)), whole);
    EXPECT_EQ(ExtendCrc32cPortable(Crc32c(view.substr(0, cut)), view.substr(cut)), whole);
  }
  absl::Cord cord(view.substr(0, 123));
  cord.Append(absl::MakeCordFromExternal(view.substr(123), [] {}));
  EXPECT_EQ(Crc32c(cord), whole);
}

}  // namespace
}  // namespace sluice
