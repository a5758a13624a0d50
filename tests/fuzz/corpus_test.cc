// Every fuzz target over its seeds, its seeds with small changes, and the inputs of past findings:
// ordinary tests repeat the findings of libFuzzer.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/fuzz/fuzz_target.h"

namespace sluice::fuzz {
namespace {

// How many changed inputs to try for each seed.
constexpr int kChanges = 200;

std::vector<std::string> FilesOf(const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::is_directory(directory)) {
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> contents;
  for (const std::filesystem::path& path : paths) {
    std::ifstream file(path, std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return contents;
}

std::string Changed(const std::string& seed, uint64_t number) {
  std::string changed = seed;
  std::mt19937_64 random(number);
  switch (number % 4) {
    case 0:  // truncated
      changed.resize(random() % (changed.size() + 1));
      break;
    case 1:  // bits flipped
      for (uint64_t i = 0; i <= number % 3 && !changed.empty(); ++i) {
        changed[random() % changed.size()] ^= static_cast<char>(1 << random() % 8);
      }
      break;
    case 2: {  // a piece repeated elsewhere
      const size_t from = random() % (changed.size() + 1);
      changed.insert(random() % (changed.size() + 1), changed.substr(from, random() % 32));
      break;
    }
    default: {  // a piece removed
      const size_t from = random() % (changed.size() + 1);
      changed.erase(from, random() % 32);
    }
  }
  return changed;
}

class CorpusTest : public ::testing::TestWithParam<FuzzTarget> {
 protected:
  void SetUp() override { google::protobuf::SetLogHandler(nullptr); }

  std::vector<std::string> Seeds() {
    std::vector<std::string> seeds = FilesOf(std::string("tests/fuzz/seeds/") + GetParam().name);
    if (GetParam().seeds == nullptr) return seeds;
    for (std::string& seed : GetParam().seeds()) seeds.push_back(std::move(seed));
    return seeds;
  }
};

TEST_P(CorpusTest, AcceptsItsSeeds) {
  const std::vector<std::string> seeds = Seeds();
  EXPECT_FALSE(seeds.empty());
  for (const std::string& seed : seeds) {
    EXPECT_TRUE(GetParam().run(seed)) << absl::CHexEscape(seed.substr(0, 400));
    EXPECT_LE(seed.size(), GetParam().max_bytes);
  }
}

TEST_P(CorpusTest, KeepsItsPromisesForChangedSeeds) {
  for (const std::string& seed : Seeds()) {
    for (int i = 0; i < kChanges; ++i) {
      (void)GetParam().run(Changed(seed, static_cast<uint64_t>(i)));
    }
  }
}

TEST_P(CorpusTest, KeepsItsPromisesForPastFindings) {
  (void)GetParam().run("");
  for (const std::string& input : FilesOf(std::string("tests/fuzz/findings/") + GetParam().name)) {
    (void)GetParam().run(input);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CorpusTest, ::testing::ValuesIn(AllTargets()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sluice::fuzz
