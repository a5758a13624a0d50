#include "services/common/text/web_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

const std::string& Checksum() {
  static const auto& checksum = *new std::string(32, 'a');
  return checksum;
}
std::string With(const std::string& url) {
  return absl::StrCat(url, "#sha256=", Checksum(), Checksum());
}

TEST(WebAddressTest, PathsAreNotAddresses) {
  EXPECT_FALSE(IsWebAddress("/data/train.txt"));
  EXPECT_FALSE(IsWebAddress("data/a:b"));
  EXPECT_TRUE(IsWebAddress("http://a/b"));
  EXPECT_TRUE(IsWebAddress("s3://a/b"));  // meant as an address, and refused as one
}

TEST(WebAddressTest, ParsesUrlChecksumAndName) {
  const auto address = ParseWebAddress(With("https://host:81/a/train-images.gz?version=2/3"));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(address->url, "https://host:81/a/train-images.gz?version=2/3");
  EXPECT_EQ(address->sha256, Checksum() + Checksum());
  EXPECT_EQ(address->file_name, "train-images.gz");
}

TEST(WebAddressTest, SlashesInQueryAreNotDirectories) {
  EXPECT_EQ(ParseWebAddress(With("http://h/f?a=/"))->file_name, "f");
}

TEST(WebAddressTest, ChecksumsAreComparedInLowerCase) {
  const auto address = ParseWebAddress("http://h/f#sha256=" + std::string(64, 'F'));
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->sha256, std::string(64, 'f'));
}

TEST(WebAddressTest, NameStaysInItsDirectory) {
  EXPECT_EQ(ParseWebAddress(With("http://h/a/.."))->file_name, "_..");
  EXPECT_EQ(ParseWebAddress(With("http://h/%2e%2e"))->file_name, "_2e_2e");
  EXPECT_EQ(ParseWebAddress(With("http://h/" + std::string(500, 'x')))->file_name.size(), 200u);
}

TEST(WebAddressTest, ErrorNamesProblem) {
  const struct {
    std::string text;
    const char* why;
  } cases[] = {
      {With("ftp://h/f"), "not http"},
      {"http://h/f", "has no checksum"},
      {"http://h/f#md5=00", "has no checksum"},
      {"http://h/f#sha256=00", "64 hexadecimal digits"},
      {"http://h/f#sha256=" + std::string(64, 'g'), "64 hexadecimal digits"},
      {With("http://h"), "names no host or no file"},
      {With("http:///f"), "names no host or no file"},
      {With("http://h?a=/f"), "names no host or no file"},
      {With("http://h/"), "names no file"},
      {With("http://h/directory/?a=f"), "names no file"},
      {With("http://h/directory/"), "names no file"},
      {With("http://h/a b"), "has a space"},
  };
  for (const auto& c : cases) {
    const absl::Status status = ParseWebAddress(c.text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.why)) << c.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("sha256sum")) << c.text;
  }
}

}  // namespace
}  // namespace sluice
