#include "services/worker/data/testing/data_files.h"

#include <zlib.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace sluice {

std::string MakeTestDirectory() {
  static std::atomic<int> number{0};
  std::string directory = absl::StrCat(::testing::TempDir(), "/data", number++);
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  return directory;
}

std::string WriteTestFile(const std::string& directory, const std::string& name,
                          absl::string_view content) {
  std::string path = absl::StrCat(directory, "/", name);
  if (absl::EndsWith(name, ".gz")) {
    gzFile file = gzopen(path.c_str(), "wb");
    EXPECT_EQ(gzwrite(file, content.data(), content.size()), static_cast<int>(content.size()));
    EXPECT_EQ(gzclose(file), Z_OK);
  } else {
    std::ofstream file(path, std::ios::binary);
    file.write(content.data(), content.size());
    file.close();
    EXPECT_TRUE(file.good()) << path;
  }
  return path;
}

std::string IdxHeader(uint8_t type, const std::vector<uint32_t>& dimensions) {
  std::string header = {0, 0, static_cast<char>(type), static_cast<char>(dimensions.size())};
  for (uint32_t dimension : dimensions) {
    for (int shift = 24; shift >= 0; shift -= 8) header.push_back(dimension >> shift & 0xFF);
  }
  return header;
}

std::string IdxOfBytes(const std::vector<uint32_t>& dimensions,
                       const std::vector<uint8_t>& values) {
  return IdxHeader(0x08, dimensions) + std::string(values.begin(), values.end());
}

std::string FindDataDirectory(absl::string_view name) {
  std::vector<std::filesystem::path> roots;
  if (const char* variable = std::getenv("SLUICE_DATA")) roots.emplace_back(variable);
  // A test runs among links to the sources; these point into the repository.
  std::error_code error;
  const auto workspace = std::filesystem::canonical("WORKSPACE", error);
  if (!error) roots.push_back(workspace.parent_path() / "../shared/data");
  roots.emplace_back("/usr/share/datasets");
  for (const std::filesystem::path& root : roots) {
    const std::filesystem::path directory = root / std::filesystem::path(name.begin(), name.end());
    if (std::filesystem::is_directory(directory, error)) return directory;
  }
  return "";
}

}  // namespace sluice
