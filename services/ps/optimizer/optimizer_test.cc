#include "services/ps/optimizer/optimizer.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/arithmetic/testing/instruction_sets.h"

namespace sluice {
namespace {

using Spec = v1::OptimizerSpec;

Spec Full(Spec::Name name) {
  Spec spec;
  spec.set_name(name);
  spec.set_learning_rate(0.01);
  spec.set_momentum(0.9);
  spec.set_nesterov(true);
  spec.set_weight_decay(0.01);
  spec.set_beta1(0.9);
  spec.set_beta2(0.999);
  spec.set_eps(1e-8);
  spec.set_lr_decay(0.01);
  spec.set_initial_accumulator_value(0.1);
  spec.set_amsgrad(true);
  spec.set_momentum_decay(4e-3);
  spec.set_rho(0.9);
  spec.set_decoupled_weight_decay(true);
  return spec;
}

std::vector<Spec> AllOptimizers() {
  std::vector<Spec> specs = {Full(Spec::SGD), Full(Spec::ADAGRAD), Full(Spec::ADAM),
                             Full(Spec::ADAM_W), Full(Spec::ADD)};
  Spec heavy_ball = Full(Spec::SGD);
  heavy_ball.set_nesterov(false);
  heavy_ball.set_dampening(0.1);
  Spec plain = Full(Spec::SGD);
  plain.set_nesterov(false);
  plain.set_momentum(0);
  Spec adam = Full(Spec::ADAM);
  adam.set_amsgrad(false);
  specs.insert(specs.end(),
               {heavy_ball, plain, adam, Full(Spec::N_ADAM), Full(Spec::R_ADAM), Full(Spec::ADAMAX),
                Full(Spec::ADADELTA), Full(Spec::LION), Full(Spec::RMS_PROP)});
  return specs;
}

std::unique_ptr<Optimizer> Make(const Spec& spec) {
  auto optimizer = MakeOptimizer(spec);
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  return *std::move(optimizer);
}

float Widened(BFloat16 value) { return ToFloat(value); }
float Widened(Float16 value) { return ToFloat(value); }
void Assign(double value, float& to) { to = static_cast<float>(value); }
void Assign(double value, double& to) { to = value; }
void Assign(double value, BFloat16& to) { to = ToBFloat16(value); }
void Assign(double value, Float16& to) { to = ToFloat16(value); }

// A tensor with its optimizer state.
template <typename T>
struct Tensor {
  using Compute = ComputeType<T>;

  Tensor(const Optimizer& optimizer, size_t size)
      : parameters(size), slots(optimizer.slots().size()) {
    std::mt19937_64 random(1);
    for (T& value : parameters) Assign(std::normal_distribution<double>()(random), value);
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].assign(size, static_cast<Compute>(optimizer.slots()[i].initial_value));
    }
  }

  bool operator==(const Tensor& other) const {
    return std::memcmp(parameters.data(), other.parameters.data(), parameters.size() * sizeof(T)) ==
               0 &&
           slots == other.slots;
  }

  std::vector<T> parameters;
  std::vector<std::vector<Compute>> slots;
};

template <typename Compute>
std::vector<Compute> Gradient(size_t size, uint64_t count) {
  std::mt19937_64 random(count);
  std::vector<Compute> gradient(size);
  for (Compute& value : gradient) Assign(std::normal_distribution<double>()(random), value);
  return gradient;
}

StepArguments Arguments(uint64_t count) {
  StepArguments arguments;
  arguments.learning_rate = 0.01 / static_cast<double>(count);
  arguments.count = count;
  arguments.gradient_scale = 1.0 / 3;
  return arguments;
}

// Updates elements [begin, begin + count) of `from` and writes them to `to`, which may be the same
// tensor.
template <typename T>
void StepPart(const Optimizer& optimizer, const StepArguments& arguments,
              const std::vector<ComputeType<T>>& gradient, const Tensor<T>& from, Tensor<T>& to,
              size_t begin, size_t count) {
  StepRange<T> range;
  range.parameters = absl::MakeConstSpan(from.parameters).subspan(begin, count);
  range.gradient = absl::MakeConstSpan(gradient).subspan(begin, count);
  range.parameters_out = absl::MakeSpan(to.parameters).subspan(begin, count);
  for (size_t i = 0; i < from.slots.size(); ++i) {
    range.slots[i] = absl::MakeConstSpan(from.slots[i]).subspan(begin, count);
    range.slots_out[i] = absl::MakeSpan(to.slots[i]).subspan(begin, count);
  }
  optimizer.Step(arguments, range);
}

constexpr size_t kSize = 5003;
constexpr uint64_t kSteps = 4;

// Trains whole tensors; each version gets new buffers.
template <typename T>
Tensor<T> Trained(const Optimizer& optimizer) {
  Tensor<T> tensor(optimizer, kSize);
  for (uint64_t count = 1; count <= kSteps; ++count) {
    Tensor<T> next(optimizer, kSize);
    StepPart(optimizer, Arguments(count), Gradient<ComputeType<T>>(kSize, count), tensor, next, 0,
             kSize);
    tensor = next;
  }
  return tensor;
}

template <typename T>
class OptimizerTest : public testing::Test {};
using Types = testing::Types<float, double, BFloat16, Float16>;
TYPED_TEST_SUITE(OptimizerTest, Types);

TYPED_TEST(OptimizerTest, SteppingInPiecesGivesTheSameBits) {
  for (const Spec& spec : AllOptimizers()) {
    const auto optimizer = Make(spec);
    const Tensor<TypeParam> whole = Trained<TypeParam>(*optimizer);
    Tensor<TypeParam> tensor(*optimizer, kSize);
    for (uint64_t count = 1; count <= kSteps; ++count) {
      const auto gradient = Gradient<ComputeType<TypeParam>>(kSize, count);
      Tensor<TypeParam> next(*optimizer, kSize);
      std::mt19937_64 random(count);
      for (size_t begin = 0; begin < kSize;) {
        const size_t part = std::min<size_t>(1 + random() % 2000, kSize - begin);
        StepPart(*optimizer, Arguments(count), gradient, tensor, next, begin, part);
        begin += part;
      }
      tensor = next;
    }
    EXPECT_TRUE(tensor == whole) << spec.ShortDebugString();
  }
}

TYPED_TEST(OptimizerTest, SteppingInPlaceGivesTheSameBits) {
  for (const Spec& spec : AllOptimizers()) {
    const auto optimizer = Make(spec);
    Tensor<TypeParam> tensor(*optimizer, kSize);
    for (uint64_t count = 1; count <= kSteps; ++count) {
      const auto gradient = Gradient<ComputeType<TypeParam>>(kSize, count);
      StepPart(*optimizer, Arguments(count), gradient, tensor, tensor, 0, kSize);
    }
    EXPECT_TRUE(tensor == Trained<TypeParam>(*optimizer)) << spec.ShortDebugString();
  }
}

TYPED_TEST(OptimizerTest, EveryInstructionSetGivesTheSameBits) {
  for (const Spec& spec : AllOptimizers()) {
    const auto optimizer = Make(spec);
    const Tensor<TypeParam> best = Trained<TypeParam>(*optimizer);
    ForEachInstructionSet(
        [&] { EXPECT_TRUE(Trained<TypeParam>(*optimizer) == best) << spec.ShortDebugString(); });
  }
}

TYPED_TEST(OptimizerTest, StepIntoNewBuffersLeavesOldVersionUnchanged) {
  for (const Spec& spec : AllOptimizers()) {
    const auto optimizer = Make(spec);
    const Tensor<TypeParam> tensor(*optimizer, kSize);
    const Tensor<TypeParam> copy = tensor;
    Tensor<TypeParam> next(*optimizer, kSize);
    StepPart(*optimizer, Arguments(1), Gradient<ComputeType<TypeParam>>(kSize, 1), tensor, next, 0,
             kSize);
    EXPECT_TRUE(tensor == copy);
    EXPECT_FALSE(next == tensor) << spec.ShortDebugString();
  }
}

TYPED_TEST(OptimizerTest, AcceptsEmptyRange) {
  for (const Spec& spec : AllOptimizers()) {
    Make(spec)->Step(Arguments(1), StepRange<TypeParam>());
  }
}

// Half-precision parameters: a step widens the value to float, updates it and rounds the result.
template <typename Half>
void CheckHalfStep() {
  for (const Spec& spec : AllOptimizers()) {
    const auto optimizer = Make(spec);
    const Tensor<Half> half(*optimizer, kSize);
    Tensor<float> wide(*optimizer, kSize);
    for (size_t i = 0; i < kSize; ++i) wide.parameters[i] = Widened(half.parameters[i]);
    const auto gradient = Gradient<float>(kSize, 1);
    Tensor<Half> half_next(*optimizer, kSize);
    Tensor<float> wide_next(*optimizer, kSize);
    StepPart(*optimizer, Arguments(1), gradient, half, half_next, 0, kSize);
    StepPart(*optimizer, Arguments(1), gradient, wide, wide_next, 0, kSize);
    std::vector<Half> rounded(kSize);
    Convert(absl::MakeConstSpan(wide_next.parameters), absl::MakeSpan(rounded));
    EXPECT_TRUE(half_next.parameters == rounded) << spec.ShortDebugString();
    EXPECT_TRUE(half_next.slots == wide_next.slots) << spec.ShortDebugString();
  }
}

TEST(Optimizer, EveryOptimizerIsTested) {
  std::set<int> tested = {Spec::PLUGIN};  // a library's, tested in services/ps/plugins
  for (const Spec& spec : AllOptimizers()) tested.insert(spec.name());
  EXPECT_EQ(tested.size(), static_cast<size_t>(Spec::Name_descriptor()->value_count()));
}

TEST(Optimizer, UpdatesHalfPrecisionParametersInFloatAndRounds) {
  CheckHalfStep<BFloat16>();
  CheckHalfStep<Float16>();
}

TEST(Optimizer, AddSumsIntegersExactly) {
  Spec spec;
  spec.set_name(Spec::ADD);
  const auto optimizer = Make(spec);
  Tensor<float> tensor(*optimizer, 3);
  tensor.parameters = {1, 2, 3};
  StepArguments arguments;  // scale 1; Add needs no learning rate
  for (int step = 0; step < 100; ++step) {
    StepPart(*optimizer, arguments, {1, -2, 1000}, tensor, tensor, 0, 3);
  }
  EXPECT_EQ(tensor.parameters, (std::vector<float>{101, -198, 100003}));
}

// A step with a schedule's momentum is that of an optimizer with this momentum (beta1).
TEST(Optimizer, ScheduledMomentumReplacesTheOptimizers) {
  const auto after = [](Spec spec, double momentum, std::optional<double> scheduled) {
    spec.set_momentum(momentum);
    spec.set_beta1(momentum);
    const auto optimizer = Make(spec);
    Tensor<double> tensor(*optimizer, 100);
    for (uint64_t count = 1; count <= kSteps; ++count) {
      StepArguments arguments = Arguments(count);
      arguments.momentum = scheduled;
      StepPart(*optimizer, arguments, Gradient<double>(100, count), tensor, tensor, 0, 100);
    }
    return tensor;
  };
  for (const auto name : {Spec::SGD, Spec::RMS_PROP, Spec::ADAM, Spec::ADAM_W, Spec::R_ADAM,
                          Spec::ADAMAX, Spec::LION}) {
    Spec spec = Full(name);
    spec.set_alpha(0.9);
    spec.set_beta2(0.9);
    EXPECT_TRUE(after(spec, 0.9, 0.7) == after(spec, 0.7, std::nullopt)) << name;
    EXPECT_FALSE(after(spec, 0.9, 0.7) == after(spec, 0.9, std::nullopt)) << name;
  }
}

// PyTorch's state mu_product, after many updates, with settings that end the table of products for
// either reason.
TEST(Optimizer, NadamsProductIsRightAfterManyUpdates) {
  const struct {
    double beta1;
    double momentum_decay;
  } kCases[] = {{0.9, 4e-3}, {0.9999, 1.0}, {0.999999, 100.0}, {0.9999, 0.2}, {0.5, 0.0}};
  for (const auto& test : kCases) {
    Spec spec = Full(Spec::N_ADAM);
    spec.set_beta1(test.beta1);
    spec.set_momentum_decay(test.momentum_decay);
    spec.set_weight_decay(0);
    const auto optimizer = Make(spec);
    const auto mu = [&](uint64_t count) {
      return test.beta1 *
             (1 - 0.5 * std::pow(0.96, static_cast<double>(count) * test.momentum_decay));
    };
    double product = 1;
    for (uint64_t count = 1; count <= 20'000; ++count) {
      product *= mu(count);
      if (count % 997 != 1) continue;
      // With zero averages and a gradient of 1 the step has a closed form.
      Tensor<double> tensor(*optimizer, 1);
      tensor.parameters[0] = 0;
      StepArguments arguments;
      arguments.learning_rate = 1;
      arguments.count = count;
      StepPart(*optimizer, arguments, {1}, tensor, tensor, 0, 1);
      const double correction = 1 - std::pow(0.999, static_cast<double>(count));
      const double divisor = std::sqrt(0.001 / correction) + 1e-8;
      const double gradient_step = (1 - mu(count)) / (1 - product);
      const double average_step = mu(count + 1) / (1 - product * mu(count + 1));
      const double wanted = -(gradient_step + average_step * (1 - test.beta1)) / divisor;
      EXPECT_NEAR(tensor.parameters[0] / wanted, 1, 1e-9) << count << " " << test.beta1;
    }
  }
}

TEST(Optimizer, SpansOfUnequalSizeEndProcess) {
  const auto optimizer = Make(Full(Spec::ADAM));
  Tensor<float> tensor(*optimizer, 8);
  const std::vector<float> gradient(8);
  StepRange<float> range;
  range.parameters = tensor.parameters;
  range.parameters_out = absl::MakeSpan(tensor.parameters);
  range.gradient = gradient;
  EXPECT_DEATH(optimizer->Step(Arguments(1), range), "spans of a step range have one size");
}

TEST(Optimizer, SlotsHaveTheirNamesInPyTorch) {
  const auto names = [](const Spec& spec) {
    std::string names;
    const auto optimizer = Make(spec);
    for (const SlotSpec& slot : optimizer->slots()) {
      names += std::string(slot.name) + "=" + std::to_string(slot.initial_value) + " ";
    }
    return names;
  };
  const std::vector<Spec> specs = AllOptimizers();
  EXPECT_EQ(names(specs[0]), "momentum_buffer=0.000000 ");
  EXPECT_EQ(names(specs[1]), "sum=0.100000 ");
  EXPECT_EQ(names(specs[2]), "exp_avg=0.000000 exp_avg_sq=0.000000 max_exp_avg_sq=0.000000 ");
  EXPECT_EQ(names(specs[3]), "exp_avg=0.000000 exp_avg_sq=0.000000 max_exp_avg_sq=0.000000 ");
  EXPECT_EQ(names(specs[4]), "");
  EXPECT_EQ(names(specs[5]), "momentum_buffer=0.000000 ");
  EXPECT_EQ(names(specs[6]), "");
  EXPECT_EQ(names(specs[7]), "exp_avg=0.000000 exp_avg_sq=0.000000 ");
  EXPECT_EQ(names(specs[8]), "exp_avg=0.000000 exp_avg_sq=0.000000 ");
  EXPECT_EQ(names(specs[9]), "exp_avg=0.000000 exp_avg_sq=0.000000 ");
  EXPECT_EQ(names(specs[10]), "exp_avg=0.000000 exp_inf=0.000000 ");
  EXPECT_EQ(names(specs[11]), "square_avg=0.000000 acc_delta=0.000000 ");
  EXPECT_EQ(names(specs[12]), "exp_avg=0.000000 ");
  EXPECT_EQ(names(specs[13]), "square_avg=0.000000 momentum_buffer=0.000000 ");
}

TEST(Optimizer, RefusesValuesThatPyTorchRefusesAndNamesThem) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const struct {
    Spec::Name name;
    void (*set)(Spec&);
    const char* message;
  } kCases[] = {
      {Spec::SGD, [](Spec& s) { s.set_learning_rate(-1); }, "optimizer.learningRate is -1"},
      {Spec::ADAM, [](Spec& s) { s.set_learning_rate(kNan); }, "optimizer.learningRate is nan"},
      {Spec::SGD, [](Spec& s) { s.set_momentum(-0.1); }, "optimizer.momentum is -0.1"},
      {Spec::SGD, [](Spec& s) { s.set_weight_decay(-1); }, "optimizer.weightDecay is -1"},
      {Spec::SGD, [](Spec& s) { s.set_momentum(0); }, "optimizer.nesterov needs a momentum"},
      {Spec::SGD, [](Spec& s) { s.set_dampening(0.5); }, "optimizer.nesterov needs a momentum"},
      {Spec::SGD, [](Spec& s) { s.set_dampening(kNan); }, "optimizer.dampening is nan"},
      {Spec::ADAGRAD, [](Spec& s) { s.set_lr_decay(-1); }, "optimizer.lrDecay is -1"},
      {Spec::ADAGRAD, [](Spec& s) { s.set_initial_accumulator_value(-1); },
       "optimizer.initialAccumulatorValue is -1"},
      {Spec::ADAGRAD, [](Spec& s) { s.set_eps(-1); }, "optimizer.eps is -1"},
      {Spec::ADAM, [](Spec& s) { s.set_beta1(1); }, "optimizer.betas[0] is 1"},
      {Spec::ADAM_W, [](Spec& s) { s.set_beta2(-0.5); }, "optimizer.betas[1] is -0.5"},
      {Spec::ADAM_W, [](Spec& s) { s.set_beta2(kNan); }, "optimizer.betas[1] is nan"},
      {Spec::ADAM, [](Spec& s) { s.set_eps(-1e-8); }, "optimizer.eps is -1e-08"},
      {Spec::ADAM_W, [](Spec& s) { s.set_weight_decay(-1); }, "optimizer.weightDecay is -1"},
      {Spec::N_ADAM, [](Spec& s) { s.set_momentum_decay(-1); }, "optimizer.momentumDecay is -1"},
      {Spec::R_ADAM, [](Spec& s) { s.set_beta1(1); }, "optimizer.betas[0] is 1"},
      {Spec::ADAMAX, [](Spec& s) { s.set_eps(kNan); }, "optimizer.eps is nan"},
      {Spec::ADADELTA, [](Spec& s) { s.set_rho(1.5); }, "optimizer.rho is 1.5"},
      {Spec::LION, [](Spec& s) { s.set_beta2(1); }, "optimizer.betas[1] is 1"},
      {Spec::SGD, [](Spec& s) { s.set_name(static_cast<Spec::Name>(99)); }, "optimizer.name is 99"},
  };
  for (const auto& test : kCases) {
    Spec spec = Full(test.name);
    ASSERT_TRUE(MakeOptimizer(spec).ok());
    test.set(spec);
    const absl::Status status = MakeOptimizer(spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.message;
    EXPECT_EQ(std::string(status.message()).find(test.message), 0u) << status;
  }
}

TEST(Optimizer, IgnoresOptionsOfOtherOptimizers) {
  Spec spec = Full(Spec::ADAM);
  spec.set_momentum(-1);
  spec.set_lr_decay(-1);
  EXPECT_TRUE(MakeOptimizer(spec).ok());
}

}  // namespace
}  // namespace sluice
