#include "services/worker/models/operator_releases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/version.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace sluice {
namespace {

// Major and minor.
std::pair<int, int> Number(absl::string_view release) {
  const std::vector<std::string> parts = absl::StrSplit(release, '.');
  std::pair<int, int> number;
  EXPECT_GE(parts.size(), 2u) << release;
  EXPECT_TRUE(absl::SimpleAtoi(parts[0], &number.first)) << release;
  EXPECT_TRUE(absl::SimpleAtoi(parts[1], &number.second)) << release;
  return number;
}

TEST(OperatorReleasesTest, LinkedLibTorchHasTheOperatorsOfItsReleaseAndNoLaterOnes) {
  std::set<std::string> present;
  for (const auto& op : torch::jit::getAllOperators()) present.insert(op->schema().name());
  const std::pair<int, int> linked = {TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR};
  ASSERT_FALSE(OperatorReleases().empty());
  for (const OperatorRelease& known : OperatorReleases()) {
    if (known.release.empty()) continue;
    EXPECT_EQ(present.count(std::string(known.op)) != 0, Number(known.release) <= linked)
        << known.op << " of " << known.release << " in LibTorch " << TORCH_VERSION;
  }
}

TEST(OperatorReleasesTest, OperatorHasItsFirstReleaseAndRemedy) {
  EXPECT_EQ(ReleaseOf("aten::scaled_dot_product_attention").release, "2.0");
  EXPECT_EQ(ReleaseOf("aten::rms_norm").release, "2.4");
  EXPECT_THAT(std::string(ReleaseOf("aten::_upsample_lanczos2d_aa").remedy),
              ::testing::HasSubstr("torch.jit.trace"));
}

TEST(OperatorReleasesTest, UnknownOrOlderOperatorsHaveNoReleaseAndNoRemedy) {
  for (const absl::string_view op : {"aten::linear", "aten::linear_of_tomorrow", ""}) {
    EXPECT_EQ(ReleaseOf(op).release, "") << op;
    EXPECT_EQ(ReleaseOf(op).remedy, "") << op;
  }
}

}  // namespace
}  // namespace sluice
