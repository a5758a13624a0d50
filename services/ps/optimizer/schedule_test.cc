#include "services/ps/optimizer/schedule.h"

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sluice {
namespace {

v1::Schedule Step(uint64_t step_size, double gamma, uint64_t warmup = 0) {
  v1::Schedule schedule;
  schedule.set_type(v1::Schedule::STEP);
  schedule.set_step_size(step_size);
  schedule.set_gamma(gamma);
  schedule.set_warmup_steps(warmup);
  return schedule;
}

v1::Schedule Cosine(uint64_t total_steps, double min_factor, uint64_t warmup = 0) {
  v1::Schedule schedule;
  schedule.set_type(v1::Schedule::COSINE);
  schedule.set_total_steps(total_steps);
  schedule.set_min_factor(min_factor);
  schedule.set_warmup_steps(warmup);
  return schedule;
}

v1::Schedule Constant(uint64_t warmup) {
  v1::Schedule schedule;
  schedule.set_warmup_steps(warmup);
  return schedule;
}

TEST(Schedule, FollowsItsFormula) {
  constexpr uint64_t kFar = uint64_t{1} << 62;
  const struct {
    v1::Schedule schedule;
    uint64_t step;
    double factor;
  } kCases[] = {
      {Constant(0), 0, 1},
      {Constant(0), kFar, 1},
      // Warm-up: the rate of the first step is not zero.
      {Constant(4), 0, 0.25},
      {Constant(4), 2, 0.75},
      {Constant(4), 3, 1},
      {Constant(4), 4, 1},
      {Constant(1), 0, 1},
      {Step(3, 0.1), 0, 1},
      {Step(3, 0.1), 2, 1},
      {Step(3, 0.1), 3, 0.1},
      {Step(3, 0.1), 5, 0.1},
      {Step(3, 0.1), 6, 0.01},
      {Step(3, 0.1), kFar, 0},
      {Step(1, 2), 10, 1024},
      // Steps are counted from the end of the warm-up.
      {Step(3, 0.1, 5), 4, 1},
      {Step(3, 0.1, 5), 7, 1},
      {Step(3, 0.1, 5), 8, 0.1},
      {Cosine(10, 0), 0, 1},
      {Cosine(12, 0), 4, 0.75},
      {Cosine(10, 0), 5, 0.5},
      {Cosine(12, 0), 8, 0.25},
      {Cosine(10, 0), 10, 0},
      {Cosine(10, 0), kFar, 0},
      {Cosine(10, 0.2), 5, 0.6},
      {Cosine(10, 0.2), 10, 0.2},
      {Cosine(14, 0.2, 4), 1, 0.5},
      {Cosine(14, 0.2, 4), 4, 1},
      {Cosine(14, 0.2, 4), 9, 0.6},
      {Cosine(14, 0.2, 4), 14, 0.2},
  };
  for (const auto& test : kCases) {
    ASSERT_TRUE(ValidateSchedule(test.schedule).ok());
    EXPECT_NEAR(ScheduleFactor(test.schedule, test.step), test.factor, 1e-15)
        << test.schedule.ShortDebugString() << " at " << test.step;
  }
}

TEST(Schedule, StaysBetweenItsFirstAndLastValue) {
  const v1::Schedule cosine = Cosine(1000, 0.1, 100);
  double last = 0;
  for (uint64_t step = 0; step < 100; ++step) {
    EXPECT_GT(ScheduleFactor(cosine, step), last);
    last = ScheduleFactor(cosine, step);
  }
  EXPECT_EQ(last, 1);
  for (uint64_t step = 100; step < 1100; ++step) {
    EXPECT_LE(ScheduleFactor(cosine, step), last);
    EXPECT_GE(ScheduleFactor(cosine, step), 0.1);
    last = ScheduleFactor(cosine, step);
  }
}

TEST(Schedule, RefusesValuesOutOfRangeAndNamesThem) {
  v1::Schedule unknown;
  unknown.set_type(static_cast<v1::Schedule::Type>(77));
  const struct {
    v1::Schedule schedule;
    std::string message;
  } kCases[] = {
      {Step(0, 0.1), "optimizer.schedule.stepSize is 0, must be at least 1"},
      {Step(1, 0), "optimizer.schedule.gamma is 0, must be a number greater than 0"},
      {Step(1, -0.5), "optimizer.schedule.gamma is -0.5, must be a number greater than 0"},
      {Step(1, std::numeric_limits<double>::infinity()),
       "optimizer.schedule.gamma is inf, must be a number greater than 0"},
      {Cosine(10, 0, 10),
       "optimizer.schedule.totalSteps is 10, must be greater than warmupSteps, which is 10"},
      {Cosine(10, 1.5), "optimizer.schedule.minFactor is 1.5, must be from 0 to 1"},
      {Cosine(10, std::numeric_limits<double>::quiet_NaN()),
       "optimizer.schedule.minFactor is nan, must be from 0 to 1"},
      {unknown, "optimizer.schedule.type is 77, which is not a schedule type"},
  };
  for (const auto& test : kCases) {
    const absl::Status status = ValidateSchedule(test.schedule);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), test.message);
  }
}

}  // namespace
}  // namespace sluice
