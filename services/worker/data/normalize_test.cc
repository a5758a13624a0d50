#include "services/worker/data/normalize.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;

v1::DataSpec::Normalize Spec(const std::vector<double>& mean, const std::vector<double>& std) {
  v1::DataSpec::Normalize spec;
  for (double value : mean) spec.add_mean(value);
  for (double value : std) spec.add_std(value);
  return spec;
}

TEST(NormalizerTest, WithoutMeanAndStdValuesAreUnchanged) {
  EXPECT_EQ(Normalizer::Create(Spec({}, {}), {1, 28, 28})->Apply(700, 0.25), 0.25f);
}

TEST(NormalizerTest, OneNumberAppliesToEveryChannel) {
  const Normalizer normalizer = *Normalizer::Create(Spec({1}, {2}), {3, 2});
  EXPECT_EQ(normalizer.Apply(0, 5), 2.0f);
  EXPECT_EQ(normalizer.Apply(5, 5), 2.0f);
}

TEST(NormalizerTest, EachChannelHasItsOwnNumbers) {
  const Normalizer normalizer = *Normalizer::Create(Spec({1, 2, 3}, {1, 2, 4}), {3, 2});
  EXPECT_EQ(normalizer.Apply(1, 5), 4.0f);
  EXPECT_EQ(normalizer.Apply(2, 5), 1.5f);
  EXPECT_EQ(normalizer.Apply(5, 5), 0.5f);
}

TEST(NormalizerTest, RejectsImpossibleNumbersByName) {
  const struct {
    v1::DataSpec::Normalize spec;
    const char* message;
  } kCases[] = {
      {Spec({1, 2}, {}), "data.normalize.mean has 2 numbers: should have 1, or 3"},
      {Spec({}, {1, 0, 1}), "data.normalize.std holds 0: should be above 0"},
      {Spec({}, {-1}), "data.normalize.std holds -1: should be above 0"},
      {Spec({NAN}, {}), "data.normalize.mean holds nan: should be finite"},
  };
  for (const auto& c : kCases) {
    const absl::StatusOr<Normalizer> result = Normalizer::Create(c.spec, {3, 2});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace sluice
