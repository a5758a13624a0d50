#include "services/ps/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"

namespace sluice {
namespace {

constexpr double kPi = 3.14159265358979323846;

// total_steps, without the warm-up.
uint64_t Length(const v1::Schedule& schedule) {
  return schedule.total_steps() - schedule.warmup_steps();
}

// How much of `length` steps is over, up to 1.
double Progress(uint64_t step, uint64_t length) {
  return static_cast<double>(std::min(step, length)) / static_cast<double>(length);
}

double LinearFactor(const v1::Schedule& schedule, uint64_t step) {
  if (step >= Length(schedule)) return schedule.end_factor();
  return schedule.start_factor() +
         (schedule.end_factor() - schedule.start_factor()) * Progress(step, Length(schedule));
}

double CosineFactor(double min_factor, double angle) {
  return min_factor + (1 - min_factor) * (1 + std::cos(angle)) / 2;
}

double CosineRestartsFactor(const v1::Schedule& schedule, uint64_t step) {
  const bool equal = schedule.restart_multiple() == 1;  // cycles
  auto at = static_cast<double>(equal ? step % schedule.restart_steps() : step);
  auto length = static_cast<double>(schedule.restart_steps());
  while (at >= length) {
    at -= length;
    length *= static_cast<double>(schedule.restart_multiple());
  }
  return CosineFactor(schedule.min_factor(), kPi * at / length);
}

// Where a step is in a cycle: in a phase that takes a value from one level to another.
struct CyclePlace {
  enum Level { kInitial, kPeak, kFinal };
  Level from;
  Level to;
  double progress;
};

CyclePlace PlaceInCycle(const v1::Schedule& schedule, uint64_t step) {
  const uint64_t length = Length(schedule);
  const double last = static_cast<double>(length) - 1;
  const double at = static_cast<double>(std::min(step, length - 1));
  const double rise = schedule.increasing_fraction() * static_cast<double>(length) - 1;

  const auto place = [at](CyclePlace::Level from, CyclePlace::Level to, double begin, double end) {
    // A phase without a step is over.
    return CyclePlace{from, to, end > begin ? (at - begin) / (end - begin) : 1};
  };

  if (at <= rise) return place(CyclePlace::kInitial, CyclePlace::kPeak, 0, rise);
  if (!schedule.three_phases()) {
    return place(CyclePlace::kPeak, CyclePlace::kFinal, rise, last);
  }
  const double fall = 2 * schedule.increasing_fraction() * static_cast<double>(length) - 2;
  if (at <= fall) return place(CyclePlace::kPeak, CyclePlace::kInitial, rise, fall);
  return place(CyclePlace::kInitial, CyclePlace::kFinal, fall, last);
}

double Anneal(const v1::Schedule& schedule, double from, double to, double progress) {
  if (schedule.linear_anneal()) return (to - from) * progress + from;
  return to + (from - to) / 2 * (std::cos(kPi * progress) + 1);
}

double OneCycleFactor(const v1::Schedule& schedule, uint64_t step) {
  const CyclePlace place = PlaceInCycle(schedule, step);
  const double initial = 1 / schedule.initial_divisor();
  const double levels[] = {initial, 1, initial / schedule.final_divisor()};
  return Anneal(schedule, levels[place.from], levels[place.to], place.progress);
}

double PointsFactor(const v1::Schedule& schedule, uint64_t step) {
  const auto& points = schedule.points();
  const auto after =
      std::upper_bound(points.begin(), points.end(), step,
                       [](uint64_t at, const auto& point) { return at < point.step(); });
  if (after == points.begin()) return after->factor();
  const auto before = after - 1;
  if (after == points.end() || before->step() == step) return before->factor();
  return before->factor() + (after->factor() - before->factor()) *
                                Progress(step - before->step(), after->step() - before->step());
}

// How many milestones are at most `step`.
int MilestonesUpTo(const v1::Schedule& schedule, uint64_t step) {
  const auto& milestones = schedule.milestones();
  return static_cast<int>(std::upper_bound(milestones.begin(), milestones.end(), step) -
                          milestones.begin());
}

double SequentialFactor(const v1::Schedule& schedule, uint64_t step) {
  const int part = MilestonesUpTo(schedule, step);
  const uint64_t begin = part == 0 ? 0 : schedule.milestones(part - 1);
  return ScheduleFactor(schedule.parts(part), step - begin);
}

double ChainedFactor(const v1::Schedule& schedule, uint64_t step) {
  double factor = 1;
  for (const v1::Schedule& part : schedule.parts()) factor *= ScheduleFactor(part, step);
  return factor;
}

// ---------------------------------------------------------------- validation

// Names a field below a path.
class Invalid {
 public:
  explicit Invalid(absl::string_view path) : path_(path) {}
  template <typename... Parts>
  absl::Status operator()(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ".", parts...));
  }

 private:
  const std::string path_;
};

absl::Status CheckPositive(const Invalid& invalid, absl::string_view field, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return invalid(field, " is ", value, ", must be a number greater than 0");
}

absl::Status CheckFraction(const Invalid& invalid, absl::string_view field, double value) {
  if (value >= 0 && value <= 1) return absl::OkStatus();
  return invalid(field, " is ", value, ", must be from 0 to 1");
}

absl::Status CheckCount(const Invalid& invalid, absl::string_view field, uint64_t value) {
  return value > 0 ? absl::OkStatus() : invalid(field, " is 0, must be at least 1");
}

absl::Status CheckLength(const Invalid& invalid, const v1::Schedule& schedule) {
  if (schedule.total_steps() > schedule.warmup_steps()) return absl::OkStatus();
  return invalid("totalSteps is ", schedule.total_steps(),
                 ", must be greater than warmupSteps, which is ", schedule.warmup_steps());
}

absl::Status CheckOneCycle(const Invalid& invalid, const v1::Schedule& schedule) {
  RETURN_IF_ERROR(CheckLength(invalid, schedule));
  RETURN_IF_ERROR(CheckFraction(invalid, "increasingFraction", schedule.increasing_fraction()));
  RETURN_IF_ERROR(CheckPositive(invalid, "initialDivisor", schedule.initial_divisor()));
  RETURN_IF_ERROR(CheckPositive(invalid, "finalDivisor", schedule.final_divisor()));
  if (!schedule.has_cycle_momentum()) return absl::OkStatus();
  const v1::Schedule::Momentum& momentum = schedule.cycle_momentum();
  RETURN_IF_ERROR(CheckPositive(invalid, "cycleMomentum.lowest", momentum.lowest()));
  if (momentum.highest() >= momentum.lowest() && momentum.highest() < 1) return absl::OkStatus();
  return invalid("cycleMomentum.highest is ", momentum.highest(),
                 ", must be at least `lowest` and less than 1");
}

absl::Status CheckMilestones(const Invalid& invalid, const v1::Schedule& schedule) {
  for (int i = 1; i < schedule.milestones_size(); ++i) {
    if (schedule.milestones(i) >= schedule.milestones(i - 1)) continue;
    return invalid("milestones[", i, "] is ", schedule.milestones(i),
                   ", must not be less than the one before it");
  }
  return absl::OkStatus();
}

absl::Status CheckMultiStep(const Invalid& invalid, const v1::Schedule& schedule) {
  if (schedule.milestones().empty()) return invalid("milestones is empty, must have at least one");
  RETURN_IF_ERROR(CheckMilestones(invalid, schedule));
  return CheckPositive(invalid, "gamma", schedule.gamma());
}

absl::Status CheckPoints(const Invalid& invalid, const v1::Schedule& schedule) {
  if (schedule.points().empty()) return invalid("points is empty, must have at least one");
  for (int i = 0; i < schedule.points_size(); ++i) {
    const v1::Schedule::Point& point = schedule.points(i);
    if (i > 0 && point.step() < schedule.points(i - 1).step()) {
      return invalid("points[", i, "] is at step ", point.step(),
                     ", must not be before the previous one");
    }
    if (!std::isfinite(point.factor()) || point.factor() < 0) {
      return invalid("points[", i, "] has the factor ", point.factor(),
                     ", must be a number of at least 0");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckParts(const Invalid& invalid, const v1::Schedule& schedule,
                        absl::string_view path) {
  if (schedule.parts().empty()) return invalid("parts is empty, must have at least one");
  for (int i = 0; i < schedule.parts_size(); ++i) {
    const v1::Schedule& part = schedule.parts(i);
    const std::string part_path = absl::StrCat(path, ".parts[", i, "]");
    if (part.type() == v1::Schedule::SEQUENTIAL || part.type() == v1::Schedule::CHAINED) {
      return Invalid(part_path)("type is Sequential or Chained, and parts have no parts");
    }
    if (part.has_cycle_momentum()) {
      return Invalid(part_path)("cycleMomentum is set, which parts do not have");
    }
    RETURN_IF_ERROR(ValidateSchedule(part, part_path));
  }
  return absl::OkStatus();
}

absl::Status CheckSequential(const Invalid& invalid, const v1::Schedule& schedule,
                             absl::string_view path) {
  RETURN_IF_ERROR(CheckParts(invalid, schedule, path));
  if (schedule.milestones_size() != schedule.parts_size() - 1) {
    return invalid("milestones has ", schedule.milestones_size(), " items, must have ",
                   schedule.parts_size() - 1, ": where each part after the first one begins");
  }
  return CheckMilestones(invalid, schedule);
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
    case v1::Schedule::MULTI_STEP:
      return std::pow(schedule.gamma(), MilestonesUpTo(schedule, step));
    case v1::Schedule::EXPONENTIAL:
      return std::pow(schedule.gamma(), static_cast<double>(step));
    case v1::Schedule::LINEAR:
      return LinearFactor(schedule, step);
    case v1::Schedule::POLYNOMIAL:
      return std::pow(1 - Progress(step, Length(schedule)), schedule.power());
    case v1::Schedule::COSINE:
      return CosineFactor(schedule.min_factor(), kPi * Progress(step, Length(schedule)));
    case v1::Schedule::COSINE_RESTARTS:
      return CosineRestartsFactor(schedule, step);
    case v1::Schedule::ONE_CYCLE:
      return OneCycleFactor(schedule, step);
    case v1::Schedule::POINTS:
      return PointsFactor(schedule, step);
    case v1::Schedule::SEQUENTIAL:
      return SequentialFactor(schedule, step);
    case v1::Schedule::CHAINED:
      return ChainedFactor(schedule, step);
    default:
      if (schedule.total_steps() == 0) return 1;
      return step < Length(schedule) ? schedule.start_factor() : 1;
  }
}

std::optional<double> ScheduleMomentum(const v1::Schedule& schedule, uint64_t step) {
  if (schedule.type() != v1::Schedule::ONE_CYCLE || !schedule.has_cycle_momentum()) {
    return std::nullopt;
  }
  const double lowest = schedule.cycle_momentum().lowest();
  const double highest = schedule.cycle_momentum().highest();
  const CyclePlace place = PlaceInCycle(schedule, step - std::min(step, schedule.warmup_steps()));
  return Anneal(schedule, place.from == CyclePlace::kPeak ? lowest : highest,
                place.to == CyclePlace::kPeak ? lowest : highest, place.progress);
}

absl::Status ValidateSchedule(const v1::Schedule& schedule, absl::string_view path) {
  const Invalid invalid(path);
  switch (schedule.type()) {
    case v1::Schedule::CONSTANT:
      if (schedule.total_steps() == 0) return absl::OkStatus();
      RETURN_IF_ERROR(CheckLength(invalid, schedule));
      return CheckFraction(invalid, "startFactor", schedule.start_factor());
    case v1::Schedule::STEP:
      RETURN_IF_ERROR(CheckCount(invalid, "stepSize", schedule.step_size()));
      return CheckPositive(invalid, "gamma", schedule.gamma());
    case v1::Schedule::MULTI_STEP:
      return CheckMultiStep(invalid, schedule);
    case v1::Schedule::EXPONENTIAL:
      return CheckPositive(invalid, "gamma", schedule.gamma());
    case v1::Schedule::LINEAR:
      RETURN_IF_ERROR(CheckLength(invalid, schedule));
      RETURN_IF_ERROR(CheckFraction(invalid, "startFactor", schedule.start_factor()));
      return CheckFraction(invalid, "endFactor", schedule.end_factor());
    case v1::Schedule::POLYNOMIAL:
      RETURN_IF_ERROR(CheckLength(invalid, schedule));
      return CheckPositive(invalid, "power", schedule.power());
    case v1::Schedule::COSINE:
      RETURN_IF_ERROR(CheckLength(invalid, schedule));
      return CheckFraction(invalid, "minFactor", schedule.min_factor());
    case v1::Schedule::COSINE_RESTARTS:
      RETURN_IF_ERROR(CheckCount(invalid, "restartSteps", schedule.restart_steps()));
      RETURN_IF_ERROR(CheckCount(invalid, "restartMultiple", schedule.restart_multiple()));
      return CheckFraction(invalid, "minFactor", schedule.min_factor());
    case v1::Schedule::ONE_CYCLE:
      return CheckOneCycle(invalid, schedule);
    case v1::Schedule::POINTS:
      return CheckPoints(invalid, schedule);
    case v1::Schedule::SEQUENTIAL:
      return CheckSequential(invalid, schedule, path);
    case v1::Schedule::CHAINED:
      return CheckParts(invalid, schedule, path);
    default:
      return invalid("type is ", schedule.type(), ", which is not a schedule type");
  }
}

}  // namespace sluice
