#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "services/manifest/manifest.h"
#include "services/manifest/print/print.h"

namespace sluice::api {
namespace {

std::vector<std::string> Examples() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator("examples")) {
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

TEST(Examples, AreAllValid) {
  const std::vector<std::string> examples = Examples();
  EXPECT_GE(examples.size(), 10);
  for (const std::string& path : examples) {
    const absl::StatusOr<TrainingJob> job = ReadManifest(path);
    EXPECT_TRUE(job.ok()) << job.status();
  }
}

TEST(Examples, HaveUniqueNamesSoAllCanRunAtTheSameTime) {
  std::set<std::string> names;
  for (const std::string& path : Examples()) {
    const absl::StatusOr<TrainingJob> job = ReadManifest(path);
    ASSERT_TRUE(job.ok());
    EXPECT_TRUE(names.insert(job->spec.name()).second) << path;
  }
}

TEST(Examples, NormalFormIsTheSameJob) {
  for (const std::string& path : Examples()) {
    const absl::StatusOr<TrainingJob> job = ReadManifest(path);
    ASSERT_TRUE(job.ok());
    const ParsedManifest again = ParseManifest(ToManifestYaml(*job), {});
    ASSERT_TRUE(again.ok()) << again.problems[0].ToString(path);
    EXPECT_EQ(again.job.spec.SerializeAsString().size(), job->spec.SerializeAsString().size());
    EXPECT_EQ(ToManifestYaml(again.job), ToManifestYaml(*job));
  }
}

}  // namespace
}  // namespace sluice::api
