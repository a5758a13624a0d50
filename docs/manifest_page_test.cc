// docs/manifest.md is up to date with the table of fields.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "services/manifest/print/print.h"

namespace sluice::api {
namespace {

TEST(ManifestPage, MatchesTableOfFields) {
  std::ifstream file("docs/manifest.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), ReferenceMarkdown())
      << "regenerate it: bazel run //docs:testing/print_manifest_reference > docs/manifest.md";
}

}  // namespace
}  // namespace sluice::api
