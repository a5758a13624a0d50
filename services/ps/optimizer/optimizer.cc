#include "services/ps/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/arithmetic/kernels.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/ps/optimizer/registry.h"

namespace sluice {
namespace {

template <typename T>
void CheckSizes(const StepRange<T>& range, size_t slots) {
  const size_t count = range.parameters.size();
  SLUICE_CHECK(range.gradient.size() == count, "spans of a step range have one size");
  SLUICE_CHECK(range.parameters_out.size() == count, "spans of a step range have one size");
  for (size_t i = 0; i < slots; ++i) {
    SLUICE_CHECK(range.slots[i].size() == count, "spans of a step range have one size");
    SLUICE_CHECK(range.slots_out[i].size() == count, "spans of a step range have one size");
  }
}

// The inputs of a sub-range, with parameters in float. The caller sets the outputs.
template <typename Half>
StepRange<float> Part(const StepRange<Half>& range, size_t slots, size_t begin, size_t count) {
  StepRange<float> part;
  part.gradient = range.gradient.subspan(begin, count);
  for (size_t i = 0; i < slots; ++i) {
    part.slots[i] = range.slots[i].subspan(begin, count);
    part.slots_out[i] = range.slots_out[i].subspan(begin, count);
  }
  return part;
}

absl::Status CheckNotNegative(absl::string_view field, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", value, ", must be a number of at least 0"));
}

absl::Status CheckBeta(absl::string_view field, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", field, " is ", value, ", must be at least 0 and less than 1"));
}

absl::Status Check(std::initializer_list<absl::Status> statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckSgd(const v1::OptimizerSpec& spec) {
  RETURN_IF_ERROR(Check({CheckNotNegative("momentum", spec.momentum()),
                         CheckNotNegative("weightDecay", spec.weight_decay())}));

  if (!std::isfinite(spec.dampening())) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.dampening is ", spec.dampening(), ", must be a number"));
  }

  if (spec.nesterov() && (spec.momentum() == 0 || spec.dampening() != 0)) {
    return absl::InvalidArgumentError(
        "optimizer.nesterov needs a momentum greater than 0 and a dampening of 0");
  }
  return absl::OkStatus();
}

absl::Status CheckAdam(const v1::OptimizerSpec& spec) {
  return Check({CheckBeta("betas[0]", spec.beta1()), CheckBeta("betas[1]", spec.beta2()),
                CheckNotNegative("eps", spec.eps()),
                CheckNotNegative("weightDecay", spec.weight_decay())});
}

absl::Status CheckSpec(const v1::OptimizerSpec& spec) {
  switch (spec.name()) {
    case v1::OptimizerSpec::SGD:
      return CheckSgd(spec);
    case v1::OptimizerSpec::ADAGRAD:
      return Check({CheckNotNegative("lrDecay", spec.lr_decay()),
                    CheckNotNegative("weightDecay", spec.weight_decay()),
                    CheckNotNegative("initialAccumulatorValue", spec.initial_accumulator_value()),
                    CheckNotNegative("eps", spec.eps())});
    case v1::OptimizerSpec::N_ADAM:
      return Check({CheckAdam(spec), CheckNotNegative("momentumDecay", spec.momentum_decay())});
    case v1::OptimizerSpec::ADAM:
    case v1::OptimizerSpec::ADAM_W:
    case v1::OptimizerSpec::R_ADAM:
    case v1::OptimizerSpec::ADAMAX:
    case v1::OptimizerSpec::LION:  // has no eps
      return CheckAdam(spec);
    case v1::OptimizerSpec::ADADELTA:
      if (!(spec.rho() >= 0 && spec.rho() <= 1)) {
        return absl::InvalidArgumentError(
            absl::StrCat("optimizer.rho is ", spec.rho(), ", must be from 0 to 1"));
      }
      return Check({CheckNotNegative("eps", spec.eps()),
                    CheckNotNegative("weightDecay", spec.weight_decay())});
    case v1::OptimizerSpec::RMS_PROP:
      return Check({CheckNotNegative("alpha", spec.alpha()), CheckNotNegative("eps", spec.eps()),
                    CheckNotNegative("momentum", spec.momentum()),
                    CheckNotNegative("weightDecay", spec.weight_decay())});
    case v1::OptimizerSpec::ADD:
    case v1::OptimizerSpec::PLUGIN:  // the library checks the rest
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer.name is ", spec.name(), ", which is not an optimizer"));
  }
}

}  // namespace

void Optimizer::Step(const StepArguments& arguments, const StepRange<float>& range) const {
  CheckSizes(range, slots().size());
  DoStep(arguments, range);
}

void Optimizer::Step(const StepArguments& arguments, const StepRange<double>& range) const {
  CheckSizes(range, slots().size());
  DoStep(arguments, range);
}

template <typename Half>
void Optimizer::StepHalf(const StepArguments& arguments, const StepRange<Half>& range) const {
  const size_t slot_count = slots().size();
  CheckSizes(range, slot_count);

  constexpr size_t kPart = 2048;  // 8 KiB of floats: fits in the L1 cache
  alignas(64) float parameters[kPart];
  for (size_t begin = 0; begin < range.parameters.size(); begin += kPart) {
    const size_t count = std::min(kPart, range.parameters.size() - begin);
    const absl::Span<float> wide = absl::MakeSpan(parameters, count);
    Convert(range.parameters.subspan(begin, count), wide);

    StepRange<float> part = Part(range, slot_count, begin, count);
    part.parameters = wide;
    part.parameters_out = wide;
    DoStep(arguments, part);
    Convert(absl::MakeConstSpan(wide), range.parameters_out.subspan(begin, count));
  }
}

void Optimizer::Step(const StepArguments& arguments, const StepRange<BFloat16>& range) const {
  StepHalf(arguments, range);
}

void Optimizer::Step(const StepArguments& arguments, const StepRange<Float16>& range) const {
  StepHalf(arguments, range);
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(const v1::OptimizerSpec& spec,
                                                         const OptimizerLibraries& libraries) {
  RETURN_IF_ERROR(Check({CheckNotNegative("learningRate", spec.learning_rate()), CheckSpec(spec)}));
  switch (spec.name()) {
    case v1::OptimizerSpec::ADAGRAD:
      return optimizer_internal::MakeAdagrad(spec);
    case v1::OptimizerSpec::ADAM:
    case v1::OptimizerSpec::ADAM_W:
      return optimizer_internal::MakeAdam(spec);
    case v1::OptimizerSpec::RMS_PROP:
      return optimizer_internal::MakeRmsprop(spec);
    case v1::OptimizerSpec::N_ADAM:
      return optimizer_internal::MakeNadam(spec);
    case v1::OptimizerSpec::R_ADAM:
      return optimizer_internal::MakeRadam(spec);
    case v1::OptimizerSpec::ADAMAX:
      return optimizer_internal::MakeAdamax(spec);
    case v1::OptimizerSpec::ADADELTA:
      return optimizer_internal::MakeAdadelta(spec);
    case v1::OptimizerSpec::LION:
      return optimizer_internal::MakeLion(spec);
    case v1::OptimizerSpec::ADD:
      return optimizer_internal::MakeAdd();
    case v1::OptimizerSpec::PLUGIN:
      if (libraries) return libraries(spec);
      return absl::InvalidArgumentError("optimizer.library: this process opens no libraries");
    default:  // CheckSpec rejects any other name
      return optimizer_internal::MakeSgd(spec);
  }
}

}  // namespace sluice
