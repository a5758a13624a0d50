#include "services/coordinator/core/evaluation/decisions.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

v1::Evaluation LossAt(uint64_t step, double loss) {
  v1::Evaluation evaluation;
  evaluation.set_step(step);
  evaluation.set_loss(loss);
  return evaluation;
}

v1::JobSpec Plateau(double factor, uint64_t patience) {
  v1::JobSpec job;
  v1::OptimizerSpec::Plateau& plateau = *job.mutable_optimizer()->mutable_plateau();
  plateau.set_metric("loss");
  plateau.set_factor(factor);
  plateau.set_patience(patience);
  return job;
}

v1::JobSpec Stopping(uint64_t patience, double min_delta = 0) {
  v1::JobSpec job;
  v1::TrainingSpec::Stopping& stopping = *job.mutable_training()->mutable_stopping();
  stopping.set_metric("loss");
  stopping.set_patience(patience);
  stopping.set_min_delta(min_delta);
  return job;
}

// The decisions after evaluations at steps 100, 200, ...
v1::EvaluationDecisions After(const v1::JobSpec& job, const std::vector<double>& losses) {
  v1::EvaluationDecisions decisions;
  uint64_t step = 0;
  for (const double loss : losses) {
    decisions = DecideAfter(job, decisions, LossAt(step += 100, loss));
  }
  return decisions;
}

// The learning rates of torch.optim.lr_scheduler.ReduceLROnPlateau (PyTorch 2.15, eps 0) with an
// optimizer whose learning rate is 1.
struct TorchCase {
  bool maximize;
  bool relative;
  double threshold, factor;
  uint64_t patience, cooldown;
  double min_factor;
  std::vector<double> values, expected;
};

const std::vector<TorchCase>& TorchCases() {
  static const auto* const cases = new std::vector<TorchCase>{
      {false,
       true,
       0.0001,
       0.1,
       0,
       0,
       0.0,
       {1.94,     1.8818,   1.825346, 1.770586, 1.717468, 1.665944, 1.665944, 1.813665,
        1.759255, 1.706477, 1.706477, 1.619983, 1.571384, 1.524242, 1.524242, 1.457018,
        1.413307, 1.370908, 1.45238,  1.45238,  1.408809, 1.408809, 1.408809, 1.366545},
       {1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        0.1,
        0.010000000000000002,
        0.0010000000000000002,
        0.00010000000000000003,
        1.0000000000000004e-05,
        1.0000000000000004e-05,
        1.0000000000000004e-05,
        1.0000000000000004e-05,
        1.0000000000000004e-06,
        1.0000000000000004e-06,
        1.0000000000000004e-06,
        1.0000000000000004e-06,
        1.0000000000000005e-07,
        1.0000000000000005e-08,
        1.0000000000000005e-09,
        1.0000000000000006e-10,
        1.0000000000000006e-11,
        1.0000000000000006e-11}},
      {false,
       true,
       0.02,
       0.5,
       2,
       1,
       0.01,
       {1.886192, 1.829606, 1.774718, 1.938517, 1.880361, kNaN,     1.984814, 1.92527,
        1.867512, kInf,     1.761196, 1.636398, 1.636398, 1.670144, 1.670144, 1.62004,
        1.558465, 1.511711, 1.456017, 1.515617, 1.515617, 1.470148, 1.470148, 1.426044},
       {1.0,  1.0,  1.0,   1.0,   1.0,   0.5,   0.5,   0.5,   0.5,   0.25,   0.25,   0.25,
        0.25, 0.25, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.0625, 0.0625, 0.0625}},
      {false,
       false,
       0.01,
       0.3,
       1,
       0,
       0.0,
       {1.94,     1.94,     1.8818,   1.911351, 1.911351, 1.911351, 2.085353, 2.192013,
        2.126253, 2.062465, 2.002568, 1.942491, 1.884216, 1.884216, 1.82769,  1.772859,
        1.719673, 1.719673, 1.668083, 1.668083, 1.705057, 1.653905, 1.794222, 1.740395},
       {1.0,
        1.0,
        1.0,
        1.0,
        0.3,
        0.3,
        0.09,
        0.09,
        0.027,
        0.027,
        0.0081,
        0.0081,
        0.00243,
        0.00243,
        0.00243,
        0.00243,
        0.00243,
        0.00243,
        0.00243,
        0.00243,
        0.0007289999999999999,
        0.0007289999999999999,
        0.0007289999999999999,
        0.00021869999999999998}},
      {true,
       true,
       0.0001,
       0.7,
       1,
       2,
       0.2,
       {1.92672,  1.76418,  1.76418,  1.781822, 1.79964,  1.637151, 1.653523, 1.670058,
        1.582325, 1.598148, 1.614129, 1.58887,  1.58887,  1.604759, 1.604759, 1.713378,
        1.713378, 1.730512, 1.747817, 1.765295, 1.782948, 1.782948, 1.657873, 1.674452},
       {1.0,
        1.0,
        0.7,
        0.7,
        0.7,
        0.7,
        0.48999999999999994,
        0.48999999999999994,
        0.48999999999999994,
        0.48999999999999994,
        0.3429999999999999,
        0.3429999999999999,
        0.3429999999999999,
        0.3429999999999999,
        0.24009999999999992,
        0.24009999999999992,
        0.24009999999999992,
        0.24009999999999992,
        0.2,
        0.2,
        0.2,
        0.2,
        0.2,
        0.2}},
      {true,
       false,
       0.05,
       0.5,
       3,
       0,
       0.0,
       {1.981262, 2.001075, 2.021086, 2.041297, 2.036463, kNaN,     1.970862, 1.831525,
        2.010424, -kInf,    2.050833, 1.984582, 1.984582, 2.09652,  2.117485, 2.238615,
        2.261001, 2.283611, 2.306447, 2.329511, 2.424774, 2.417832, 2.44201,  2.46643},
       {1.0,  1.0,  1.0,  1.0,  1.0,  1.0,  1.0,  0.5,  0.5,  0.5,  0.5,  0.25,
        0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25}},
      {false,
       false,
       0.0,
       0.5,
       0,
       3,
       0.125,
       {2.178219, 2.112872, 2.049486, 2.049486, 1.988001, 2.056246, 2.18648,  2.120886,
        2.057259, 2.116534, 2.053038, 1.991447, 2.128012, 2.064172, 2.002247, 1.94218,
        1.883915, 1.827398, 1.772576, 1.891913, 1.835156, 1.905415, 1.848253, 1.792805},
       {1.0,   1.0,   1.0,   0.5,   0.5,   0.5,   0.5,   0.25,  0.25,  0.25,  0.25,  0.125,
        0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125}},
      {true,
       true,
       0.0,
       0.1,
       2,
       0,
       0.001,
       {2.112149, 2.13327,  2.154603, 2.207924, 2.230003, 2.252303, 2.274826, 2.274826,
        2.248014, 2.270494, 2.354937, 2.378486, 2.378486, 2.24826,  2.24826,  2.24826,
        2.105067, 1.909573, 1.863857, 1.882496, 1.901321, 2.054637, 2.054637, 1.963628},
       {1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        0.1,
        0.1,
        0.1,
        0.1,
        0.1,
        0.010000000000000002,
        0.010000000000000002,
        0.010000000000000002,
        0.0010000000000000002,
        0.0010000000000000002,
        0.0010000000000000002,
        0.001,
        0.001,
        0.001,
        0.001}},
  };
  return *cases;
}

TEST(EvaluationDecisions, FactorHasTheBitsOfPyTorchForPositiveValues) {
  for (size_t i = 0; i < TorchCases().size(); ++i) {
    const TorchCase& c = TorchCases()[i];
    v1::JobSpec job = Plateau(c.factor, c.patience);
    v1::OptimizerSpec::Plateau& plateau = *job.mutable_optimizer()->mutable_plateau();
    plateau.set_direction(c.maximize ? v1::MAXIMIZE : v1::MINIMIZE);
    plateau.set_relative_threshold(c.relative);
    plateau.set_threshold(c.threshold);
    plateau.set_cooldown(c.cooldown);
    plateau.set_min_factor(c.min_factor);
    v1::EvaluationDecisions decisions;
    for (size_t step = 0; step < c.values.size(); ++step) {
      decisions = DecideAfter(job, decisions, LossAt(step + 1, c.values[step]));
      EXPECT_EQ(LearningRateFactor(decisions), c.expected[step])
          << "case " << i << ", value " << step;
    }
  }
}

// PyTorch's bound for a negative best value is better * (1 - threshold): worse values count as
// improvements, and the learning rate is never reduced.
TEST(EvaluationDecisions, NegativeValueMustBecomeBetterByTheThreshold) {
  v1::JobSpec job = Plateau(0.5, 0);
  job.mutable_optimizer()->mutable_plateau()->set_relative_threshold(true);
  job.mutable_optimizer()->mutable_plateau()->set_threshold(0.1);
  EXPECT_EQ(LearningRateFactor(After(job, {-2, -1.9})), 0.5);
  EXPECT_EQ(LearningRateFactor(After(job, {-2, -2.1})), 0.5);
  EXPECT_EQ(LearningRateFactor(After(job, {-2, -2.3})), 1);
  job.mutable_optimizer()->mutable_plateau()->set_direction(v1::MAXIMIZE);
  EXPECT_EQ(LearningRateFactor(After(job, {-2, -1.9})), 0.5);
  EXPECT_EQ(LearningRateFactor(After(job, {-2, -1.7})), 1);
}

TEST(EvaluationDecisions, TieNaNAndInfinityAreNoImprovement) {
  for (const double value : {1.0, kNaN, kInf, -kInf}) {
    const v1::EvaluationDecisions decisions = After(Stopping(2), {1, value});
    EXPECT_EQ(decisions.stopping().without_improvement(), 1) << value;
    EXPECT_EQ(decisions.stopping().best(), 1);
    EXPECT_EQ(decisions.stopping().best_step(), 100);
  }
  EXPECT_FALSE(IsBetter(kInf, 1, true));
  EXPECT_FALSE(IsBetter(kNaN, 1, false));
}

TEST(EvaluationDecisions, StopsAfterPatienceAndSaysWhy) {
  EXPECT_EQ(After(Stopping(3), {0.5, 0.0321, 0.04, 0.05}).stop_reason(), "");
  EXPECT_EQ(After(Stopping(3), {0.5, 0.0321, 0.04, 0.05, 0.0321}).stop_reason(),
            "stopped at step 500: loss has not improved on 0.0321 (step 200) for 3 evaluations");
  EXPECT_EQ(After(Stopping(1), {0.5, kNaN}).stop_reason(),
            "stopped at step 200: loss has not improved on 0.5 (step 100) for 1 evaluation; it is "
            "nan at step 200");
  EXPECT_EQ(After(Stopping(2), {kNaN, kNaN}).stop_reason(),
            "stopped at step 200: loss has had no finite value in 2 evaluations; it is nan at step "
            "200");
}

TEST(EvaluationDecisions, MinDeltaIsExclusive) {
  EXPECT_EQ(After(Stopping(1, 0.25), {1, 0.75}).stopping().without_improvement(), 1);
  EXPECT_EQ(After(Stopping(1, 0.25), {1, 0.7}).stopping().without_improvement(), 0);
}

TEST(EvaluationDecisions, EvaluationOfKnownVersionChangesNothing) {
  const v1::JobSpec job = Stopping(2);
  const v1::EvaluationDecisions once = After(job, {1, 2});
  const v1::EvaluationDecisions again = DecideAfter(job, once, LossAt(200, 2));
  EXPECT_EQ(again.SerializeAsString(), once.SerializeAsString());
  EXPECT_EQ(DecideAfter(job, once, LossAt(100, 0)).SerializeAsString(), once.SerializeAsString());
}

TEST(EvaluationDecisions, AccuracyRisesAndOwnMetricHasItsDirection) {
  EXPECT_TRUE(Maximizes("accuracy", v1::DIRECTION_UNSPECIFIED));
  EXPECT_FALSE(Maximizes("accuracy", v1::MINIMIZE));
  EXPECT_FALSE(Maximizes("perplexity", v1::DIRECTION_UNSPECIFIED));
  v1::JobSpec job = Stopping(1);
  job.mutable_training()->mutable_stopping()->set_metric("auc");
  job.mutable_training()->mutable_stopping()->set_direction(v1::MAXIMIZE);
  v1::EvaluationDecisions decisions;
  for (const uint64_t step : {1, 2}) {
    v1::Evaluation evaluation = LossAt(step, 1);
    v1::Metric& auc = *evaluation.add_metrics();
    auc.set_name("auc");
    auc.set_value(0.5 + 0.1 * static_cast<double>(step));
    decisions = DecideAfter(job, decisions, evaluation);
    EXPECT_EQ(decisions.stop_reason(), "");
  }
  EXPECT_THAT(DecideAfter(job, decisions, LossAt(3, 0)).stop_reason(),
              HasSubstr("auc has not improved on 0.7 (step 2)"))
      << "an evaluation without the metric is no improvement";
}

TEST(EvaluationDecisions, SaysWhatIsNew) {
  const v1::JobSpec job = Plateau(0.1, 2);
  const v1::EvaluationDecisions before = After(job, {1, 2, 3});
  EXPECT_THAT(NewDecisions(job, {}, before), IsEmpty());
  EXPECT_THAT(
      NewDecisions(job, before, DecideAfter(job, before, LossAt(400, 1))),
      ElementsAre("learning rate × 0.1 from step 400: loss has not improved on 1 (step 100) "
                  "for 3 evaluations; its factor is now 0.1"));
}

TEST(EvaluationDecisions, LargerPatienceContinuesAndSmallerStops) {
  const v1::EvaluationDecisions stopped = After(Stopping(2), {1, 2, 3});
  ASSERT_NE(stopped.stop_reason(), "");
  const v1::EvaluationDecisions longer = DecideAgain(Stopping(5), stopped);
  EXPECT_EQ(longer.stop_reason(), "");
  EXPECT_EQ(longer.stopping().without_improvement(), 2);
  EXPECT_EQ(DecideAgain(Stopping(2), stopped).stop_reason(), stopped.stop_reason());
  EXPECT_EQ(DecideAgain(Stopping(1), longer).stop_reason(),
            "stopped at step 300: loss has not improved on 1 (step 100) for 2 evaluations");
  EXPECT_FALSE(DecideAgain(v1::JobSpec(), stopped).has_stopping());
}

TEST(EvaluationDecisions, AnotherMetricBeginsWithoutTheHistoryOfTheOldOne) {
  v1::JobSpec job = Stopping(2);
  *job.mutable_optimizer() = Plateau(0.5, 1).optimizer();
  v1::CheckpointIndex index;
  *index.mutable_decisions() = After(job, {1, 2, 3});
  NoteComparedMetrics(job, &index);
  EXPECT_EQ(DecisionsOf(job, index).SerializeAsString(), index.decisions().SerializeAsString());

  job.mutable_training()->mutable_stopping()->set_metric("accuracy");
  v1::EvaluationDecisions decisions = DecisionsOf(job, index);
  EXPECT_FALSE(decisions.has_stopping());
  EXPECT_TRUE(decisions.has_plateau());
  EXPECT_EQ(DecideAgain(job, decisions).stop_reason(), "");

  job.mutable_optimizer()->mutable_plateau()->set_direction(v1::MAXIMIZE);
  decisions = DecisionsOf(job, index);
  EXPECT_FALSE(decisions.has_plateau());
  EXPECT_EQ(LearningRateFactor(decisions), 0.5) << "a reduction stays";
}

TEST(EvaluationDecisions, NamesFieldThatNeedsSamples) {
  v1::Ready ready;
  EXPECT_EQ(MissingSamples(v1::JobSpec(), ready), "");
  EXPECT_THAT(MissingSamples(Stopping(1), ready),
              HasSubstr("spec.training.stopping needs held-out samples"));
  EXPECT_THAT(MissingSamples(Plateau(0.1, 1), ready), HasSubstr("spec.optimizer.plateau needs"));
  ready.set_evaluation_samples(10);
  EXPECT_EQ(MissingSamples(Stopping(1), ready), "");
}

}  // namespace
}  // namespace sluice::coordinator
