#include "services/ps/core/base/staleness.h"

#include <vector>

#include "gtest/gtest.h"

namespace sluice::ps {
namespace {

using Staleness = v1::TrainingSpec::Staleness;

Staleness Rule(Staleness::Rule name, double factor = 0, double lambda = 0) {
  Staleness rule;
  rule.set_rule(name);
  rule.set_factor(factor);
  rule.set_lambda(lambda);
  return rule;
}

TEST(StalenessTest, WithoutRuleThereIsNoEffect) {
  const StalenessEffect effect = EffectOf(Staleness(), 7);
  EXPECT_EQ(effect.learning_rate_factor, 1);
  EXPECT_EQ(effect.momentum_taken_off, 0);
  EXPECT_EQ(effect.delay_compensation, 0);
}

TEST(StalenessTest, DampedDividesTheLearningRateByOnePlusFactorTimesStaleness) {
  const Staleness rule = Rule(Staleness::DAMPED, 0.1);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 0).learning_rate_factor, 1);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 1).learning_rate_factor, 1 / 1.1);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 10).learning_rate_factor, 0.5);
}

TEST(StalenessTest, InverseDividesTheLearningRateByTheStaleness) {
  const Staleness rule = Rule(Staleness::INVERSE);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 0).learning_rate_factor, 1);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 1).learning_rate_factor, 1);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 4).learning_rate_factor, 0.25);
}

TEST(StalenessTest, MomentumCorrectionSubtractsTheMomentumThatStalenessAdds) {
  const Staleness rule = Rule(Staleness::MOMENTUM_CORRECTION);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 0).momentum_taken_off, 0);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 1).momentum_taken_off, 0.5);
  EXPECT_DOUBLE_EQ(EffectOf(rule, 3).momentum_taken_off, 0.75);
}

TEST(StalenessTest, DelayCompensationCorrectsTheGradientForChangedParameters) {
  EXPECT_DOUBLE_EQ(EffectOf(Rule(Staleness::DELAY_COMPENSATION, 0, 0.04), 3).delay_compensation,
                   0.04);
  const std::vector<double> now = {3, 1, 5};
  const std::vector<double> then = {1, 1, 7};
  std::vector<double> gradient = {2, 2, -1};
  CompensateDelay<double>(0.5, now, then, absl::MakeSpan(gradient));
  EXPECT_EQ(gradient, (std::vector<double>{2 + 0.5 * 4 * 2, 2, -1 + 0.5 * 1 * -2}));
}

TEST(StalenessTest, DelayCompensationOfBFloat16IsComputedInFloat) {
  const std::vector<BFloat16> now = {ToBFloat16(3.0f)};
  const std::vector<BFloat16> then = {ToBFloat16(1.0f)};
  std::vector<float> gradient = {2};
  CompensateDelay<BFloat16>(0.25, now, then, absl::MakeSpan(gradient));
  EXPECT_EQ(gradient, (std::vector<float>{4}));
}

}  // namespace
}  // namespace sluice::ps
