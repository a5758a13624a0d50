// Compares every update rule with LibTorch's over 100 steps of random gradients. The learning rate
// changes, and the gradients are sums that have to be scaled.

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "services/ps/optimizer/optimizer.h"
#include "torch/optim.h"

namespace sluice {
namespace {

using Spec = v1::OptimizerSpec;
using Tensors = std::vector<torch::Tensor>;

constexpr int kSteps = 100;
constexpr int64_t kSize = 259;
constexpr double kLearningRate = 0.05;

struct Case {
  std::string name;
  Spec spec;
  std::function<std::unique_ptr<torch::optim::Optimizer>(const Tensors&)> make;
};

std::string Number(const char* name, double value) {
  return value == 0 ? "" : std::string("_") + name;
}

void AddSgdCases(std::vector<Case>& cases) {
  const struct {
    double momentum, dampening;
    bool nesterov;
  } kVariants[] = {{0, 0, false}, {0.9, 0, false}, {0.9, 0.3, false}, {0.9, 0, true}};
  for (const auto& v : kVariants) {
    for (const double decay : {0.0, 0.02}) {
      Spec spec;
      spec.set_name(Spec::SGD);
      spec.set_momentum(v.momentum);
      spec.set_dampening(v.dampening);
      spec.set_nesterov(v.nesterov);
      spec.set_weight_decay(decay);
      cases.push_back({"sgd" + Number("momentum", v.momentum) + Number("dampening", v.dampening) +
                           Number("nesterov", v.nesterov) + Number("decay", decay),
                       spec, [v, decay](const Tensors& tensors) {
                         return std::make_unique<torch::optim::SGD>(
                             tensors, torch::optim::SGDOptions(kLearningRate)
                                          .momentum(v.momentum)
                                          .dampening(v.dampening)
                                          .nesterov(v.nesterov)
                                          .weight_decay(decay));
                       }});
    }
  }
}

void AddAdagradCases(std::vector<Case>& cases) {
  for (const double lr_decay : {0.0, 0.05}) {
    for (const double initial : {0.0, 0.3}) {
      for (const double decay : {0.0, 0.02}) {
        Spec spec;
        spec.set_name(Spec::ADAGRAD);
        spec.set_lr_decay(lr_decay);
        spec.set_initial_accumulator_value(initial);
        spec.set_weight_decay(decay);
        spec.set_eps(1e-10);
        cases.push_back({"adagrad" + Number("lr_decay", lr_decay) + Number("initial", initial) +
                             Number("decay", decay),
                         spec, [=](const Tensors& tensors) {
                           return std::make_unique<torch::optim::Adagrad>(
                               tensors, torch::optim::AdagradOptions(kLearningRate)
                                            .lr_decay(lr_decay)
                                            .initial_accumulator_value(initial)
                                            .weight_decay(decay)
                                            .eps(1e-10));
                         }});
      }
    }
  }
}

void AddRmspropCases(std::vector<Case>& cases) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) {
      for (const double decay : {0.0, 0.02}) {
        Spec spec;
        spec.set_name(Spec::RMS_PROP);
        spec.set_alpha(0.95);
        spec.set_eps(1e-6);
        spec.set_momentum(momentum);
        spec.set_centered(centered);
        spec.set_weight_decay(decay);
        cases.push_back({"rmsprop" + Number("momentum", momentum) + Number("centered", centered) +
                             Number("decay", decay),
                         spec, [=](const Tensors& tensors) {
                           return std::make_unique<torch::optim::RMSprop>(
                               tensors, torch::optim::RMSpropOptions(kLearningRate)
                                            .alpha(0.95)
                                            .eps(1e-6)
                                            .momentum(momentum)
                                            .centered(centered)
                                            .weight_decay(decay));
                         }});
      }
    }
  }
}

template <typename TorchOptimizer, typename TorchOptions>
void AddAdamCases(const char* name, Spec::Name id, std::vector<Case>& cases) {
  for (const bool amsgrad : {false, true}) {
    for (const double decay : {0.0, 0.02}) {
      for (const double eps : {1e-8, 0.1}) {
        Spec spec;
        spec.set_name(id);
        spec.set_beta1(0.8);
        spec.set_beta2(0.95);
        spec.set_eps(eps);
        spec.set_weight_decay(decay);
        spec.set_amsgrad(amsgrad);
        cases.push_back({name + Number("amsgrad", amsgrad) + Number("decay", decay) +
                             Number("large_eps", eps == 0.1),
                         spec, [=](const Tensors& tensors) {
                           return std::make_unique<TorchOptimizer>(
                               tensors, TorchOptions(kLearningRate)
                                            .betas(std::make_tuple(0.8, 0.95))
                                            .eps(eps)
                                            .weight_decay(decay)
                                            .amsgrad(amsgrad));
                         }});
      }
    }
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  AddSgdCases(cases);
  AddAdagradCases(cases);
  AddRmspropCases(cases);
  AddAdamCases<torch::optim::Adam, torch::optim::AdamOptions>("adam", Spec::ADAM, cases);
  AddAdamCases<torch::optim::AdamW, torch::optim::AdamWOptions>("adamw", Spec::ADAM_W, cases);
  return cases;
}

template <typename T>
torch::Tensor TensorOf(const std::vector<T>& values) {
  return torch::from_blob(const_cast<T*>(values.data()), {static_cast<int64_t>(values.size())},
                          c10::CppTypeToScalarType<T>::value)
      .clone();
}

// Ours: one tensor with its state, updated in place.
template <typename T>
class Ours {
 public:
  Ours(const Spec& spec, std::vector<T> parameters)
      : optimizer_(*MakeOptimizer(spec)), parameters_(std::move(parameters)) {
    for (const SlotSpec& slot : optimizer_->slots()) {
      slots_.emplace_back(parameters_.size(), static_cast<T>(slot.initial_value));
    }
  }

  void Step(const StepArguments& arguments, const std::vector<T>& gradient) {
    StepRange<T> range;
    range.parameters = parameters_;
    range.gradient = gradient;
    range.parameters_out = absl::MakeSpan(parameters_);
    for (size_t i = 0; i < slots_.size(); ++i) {
      range.slots[i] = slots_[i];
      range.slots_out[i] = absl::MakeSpan(slots_[i]);
    }
    optimizer_->Step(arguments, range);
  }

  const std::vector<T>& parameters() const { return parameters_; }

 private:
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<T> parameters_;
  std::vector<std::vector<T>> slots_;
};

template <typename T>
std::vector<T> Normal(std::mt19937_64& random) {
  std::vector<T> values(kSize);
  for (T& value : values) value = static_cast<T>(std::normal_distribution<double>()(random));
  return values;
}

// `tolerance` returns the allowed difference from a value of LibTorch.
template <typename T>
void Compare(const Case& test, double (*tolerance)(double)) {
  std::mt19937_64 random(7);
  std::vector<T> start = Normal<T>(random);
  const Tensors theirs = {TensorOf(start)};
  const auto optimizer = test.make(theirs);
  Ours<T> ours(test.spec, start);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<T> sum = Normal<T>(random);
    if (step % 10 == 3) std::fill(sum.begin(), sum.begin() + kSize / 2, T{0});
    StepArguments arguments;
    arguments.learning_rate = kLearningRate * (1 + std::cos(step * 0.05)) / 2;
    arguments.count = static_cast<uint64_t>(step) + 1;
    arguments.gradient_scale = 1.0 / 32;
    ours.Step(arguments, sum);
    theirs[0].mutable_grad() = TensorOf(sum).mul(arguments.gradient_scale);
    optimizer->param_groups()[0].options().set_lr(arguments.learning_rate);
    optimizer->step();
  }
  for (int64_t i = 0; i < kSize; ++i) {
    const double expected = theirs[0][i].item<T>();
    const double actual = ours.parameters()[static_cast<size_t>(i)];
    ASSERT_NE(actual, start[static_cast<size_t>(i)]);
    ASSERT_NEAR(actual, expected, tolerance(expected)) << "element " << i;
  }
}

class LibTorchTest : public testing::TestWithParam<Case> {};

TEST_P(LibTorchTest, Float64AgreesToOnePartInATrillion) {
  Compare<double>(GetParam(), [](double w) { return 1e-12 * std::fabs(w); });
}

TEST_P(LibTorchTest, Float32AgreesToTheFifthDigit) {
  Compare<float>(GetParam(), [](double w) { return 1e-5 * std::max(1.0, std::fabs(w)); });
}

INSTANTIATE_TEST_SUITE_P(AllOptions, LibTorchTest, testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sluice
