#include "operator/kube/token_source.h"

#include <gtest/gtest.h>

#include "services/common/io/fake_file_system.h"

namespace sluice::kube {
namespace {

class TokenSourceTest : public ::testing::Test {
 protected:
  void Write(const std::string& token) {
    auto file = files_.Create("/token", false);
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append(token).ok());
  }

  FakeClock clock_{absl::FromUnixSeconds(1000)};
  FakeFileSystem files_;
  TokenSource source_{"/token", &files_, &clock_};
};

TEST_F(TokenSourceTest, ReadsAReplacedTokenWithinAMinute) {
  Write("first\n");
  EXPECT_EQ(*source_.Token(), "first");
  Write("second");
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(*source_.Token(), "first");
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(*source_.Token(), "second");
}

TEST_F(TokenSourceTest, ReadsAgainAtOnceAfterARefusal) {
  Write("first");
  EXPECT_EQ(*source_.Token(), "first");
  Write("second");
  source_.Refused("first");
  EXPECT_EQ(*source_.Token(), "second");
}

TEST_F(TokenSourceTest, IgnoresTheRefusalOfAnOlderToken) {
  Write("first");
  EXPECT_EQ(*source_.Token(), "first");
  Write("second");
  source_.Refused("long ago");
  EXPECT_EQ(*source_.Token(), "first");
}

TEST_F(TokenSourceTest, KeepsTheTokenIfTheFileVanishes) {
  EXPECT_TRUE(absl::IsNotFound(source_.Token().status()));
  Write("first");
  EXPECT_EQ(*source_.Token(), "first");
  ASSERT_TRUE(files_.Remove("/token").ok());
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(*source_.Token(), "first");
}

}  // namespace
}  // namespace sluice::kube
