#include "services/worker/data/file.h"

#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/data/testing/data_files.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string Message(const absl::StatusOr<std::string>& result) {
  return std::string(result.status().message());
}

std::string Compressed(const std::string& directory, const std::string& content) {
  // A name that does not end in .gz leaves a file as it is, so the compressed bytes can be read
  // back.
  const std::string path = WriteTestFile(directory, "scratch.gz", content);
  FILE* file = fopen(path.c_str(), "rb");
  std::string bytes(1 << 20, '\0');
  bytes.resize(fread(&bytes[0], 1, bytes.size(), file));
  fclose(file);
  return bytes;
}

TEST(ReadFileTest, ReadsPlainAndCompressedContentRegardlessOfTheName) {
  const std::string directory = MakeTestDirectory();
  const std::string content(3'000'000, 'x');
  EXPECT_EQ(*ReadFile(WriteTestFile(directory, "plain", content)), content);
  EXPECT_EQ(*ReadFile(WriteTestFile(directory, "compressed.gz", content)), content);
  EXPECT_EQ(*ReadFile(WriteTestFile(directory, "misnamed", Compressed(directory, content))),
            content);
  EXPECT_EQ(*ReadFile(WriteTestFile(directory, "empty", "")), "");
}

TEST(ReadFileTest, NamesMissingFile) {
  const absl::StatusOr<std::string> result = ReadFile("/nowhere/images");
  EXPECT_EQ(result.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(result), StartsWith("/nowhere/images: cannot be read"));
}

TEST(ReadFileTest, DirectoryIsNotAFile) {
  const absl::StatusOr<std::string> result = ReadFile(MakeTestDirectory());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ReadFileTest, DetectsATruncatedCompressedFile) {
  const std::string directory = MakeTestDirectory();
  std::string content;
  for (int i = 0; i < 100'000; ++i) content += std::to_string(i);
  const std::string bytes = Compressed(directory, content);
  for (size_t size : {bytes.size() / 2, bytes.size() - 1, size_t{15}}) {
    const absl::StatusOr<std::string> result =
        ReadFile(WriteTestFile(directory, "truncated", bytes.substr(0, size)));
    EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_THAT(Message(result), HasSubstr("truncated"));
  }
}

TEST(ReadFileTest, DetectsADamagedCompressedFile) {
  const std::string directory = MakeTestDirectory();
  std::string bytes = Compressed(directory, "some content");
  bytes[bytes.size() - 6] ^= 1;  // in the checksum
  const absl::StatusOr<std::string> result = ReadFile(WriteTestFile(directory, "damaged", bytes));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(result), HasSubstr("damaged"));
}

}  // namespace
}  // namespace sluice
