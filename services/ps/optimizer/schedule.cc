#include "services/ps/optimizer/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr double kPi = 3.14159265358979323846;

double CosineFactor(const v1::Schedule& schedule, uint64_t step) {
  const uint64_t length = schedule.total_steps() - schedule.warmup_steps();
  const double progress = static_cast<double>(std::min(step, length)) / static_cast<double>(length);
  return schedule.min_factor() + (1 - schedule.min_factor()) * (1 + std::cos(kPi * progress)) / 2;
}

}  // namespace

double ScheduleFactor(const v1::Schedule& schedule, uint64_t step) {
  if (step < schedule.warmup_steps()) {
    return static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps());
  }
  step -= schedule.warmup_steps();
  switch (schedule.type()) {
    case v1::Schedule::STEP: {
      const uint64_t decays = step / schedule.step_size();
      return std::pow(schedule.gamma(), static_cast<double>(decays));
    }
    case v1::Schedule::COSINE:
      return CosineFactor(schedule, step);
    default:
      return 1;
  }
}

absl::Status ValidateSchedule(const v1::Schedule& schedule) {
  const auto invalid = [](auto... parts) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.schedule.", parts...));
  };

  switch (schedule.type()) {
    case v1::Schedule::CONSTANT:
      return absl::OkStatus();
    case v1::Schedule::STEP:
      if (schedule.step_size() == 0) return invalid("stepSize is 0, must be at least 1");
      if (!std::isfinite(schedule.gamma()) || schedule.gamma() <= 0) {
        return invalid("gamma is ", schedule.gamma(), ", must be a number greater than 0");
      }
      return absl::OkStatus();
    case v1::Schedule::COSINE:
      if (schedule.total_steps() <= schedule.warmup_steps()) {
        return invalid("totalSteps is ", schedule.total_steps(),
                       ", must be greater than warmupSteps, which is ", schedule.warmup_steps());
      }
      if (!(schedule.min_factor() >= 0 && schedule.min_factor() <= 1)) {
        return invalid("minFactor is ", schedule.min_factor(), ", must be from 0 to 1");
      }
      return absl::OkStatus();
    default:
      return invalid("type is ", schedule.type(), ", which is not a schedule type");
  }
}

}  // namespace sluice
