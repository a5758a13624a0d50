#include "services/ps/optimizer/schedule.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "google/protobuf/util/json_util.h"
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

v1::Schedule From(const std::string& json) {
  v1::Schedule schedule;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(json, &schedule).ok()) << json;
  return schedule;
}

constexpr char kCycle[] = R"({"type":"ONE_CYCLE","total_steps":10,"increasing_fraction":0.3,
    "initial_divisor":4,"final_divisor":2,"linear_anneal":true,
    "cycle_momentum":{"lowest":0.5,"highest":0.9}})";

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
      // Where PyTorch's cosine rises again, this one stays.
      {Cosine(10, 0.2), 15, 0.2},
      {From(R"({"total_steps":5,"start_factor":0.25})"), 4, 0.25},
      {From(R"({"total_steps":5,"start_factor":0.25})"), 5, 1},
      {From(R"({"total_steps":5,"start_factor":0.25,"warmup_steps":2})"), 0, 0.5},
      {From(R"({"total_steps":5,"start_factor":0.25,"warmup_steps":2})"), 4, 0.25},
      {From(R"({"total_steps":5,"start_factor":0.25,"warmup_steps":2})"), 5, 1},
      {From(R"({"type":"LINEAR","start_factor":0.3,"end_factor":1,"total_steps":7})"), 0, 0.3},
      {From(R"({"type":"LINEAR","start_factor":0.3,"end_factor":1,"total_steps":7})"), kFar, 1},
      // A milestone that is there twice counts twice.
      {From(R"({"type":"MULTI_STEP","gamma":0.5,"milestones":[3,3,8]})"), 2, 1},
      {From(R"({"type":"MULTI_STEP","gamma":0.5,"milestones":[3,3,8]})"), 3, 0.25},
      {From(R"({"type":"MULTI_STEP","gamma":0.5,"milestones":[3,3,8]})"), kFar, 0.125},
      {From(R"({"type":"POLYNOMIAL","power":2,"total_steps":4})"), 2, 0.25},
      {From(R"({"type":"POLYNOMIAL","power":2,"total_steps":4})"), kFar, 0},
      {From(R"({"type":"EXPONENTIAL","gamma":0.5})"), 3, 0.125},
      {From(R"({"type":"COSINE_RESTARTS","restart_steps":2,"restart_multiple":2})"), 1, 0.5},
      {From(R"({"type":"COSINE_RESTARTS","restart_steps":2,"restart_multiple":2})"), 2, 1},
      {From(R"({"type":"COSINE_RESTARTS","restart_steps":2,"restart_multiple":2})"), 4, 0.5},
      {From(R"({"type":"COSINE_RESTARTS","restart_steps":2,"restart_multiple":2})"), 6, 1},
      {From(R"({"type":"COSINE_RESTARTS","restart_steps":2,"restart_multiple":1})"), kFar + 1, 0.5},
      {From(kCycle), 0, 0.25},
      {From(kCycle), 1, 0.625},
      {From(kCycle), 2, 1},
      {From(kCycle), 9, 0.125},
      // Where PyTorch's cycle raises an error, this one stays.
      {From(kCycle), 10, 0.125},
      {From(kCycle), kFar, 0.125},
      {From(R"({"type":"POINTS","points":[{"step":4,"factor":2},{"step":8,"factor":1}]})"), 0, 2},
      {From(R"({"type":"POINTS","points":[{"step":4,"factor":2},{"step":8,"factor":1}]})"), 6, 1.5},
      {From(R"({"type":"POINTS","points":[{"step":4,"factor":2},{"step":8,"factor":1}]})"), kFar,
       1},
      // Two points of one step are a jump; so PyTorch skips a part between equal milestones.
      {From(R"({"type":"POINTS","points":[{"factor":1},{"step":4,"factor":1},
                {"step":4,"factor":0.25},{"step":8,"factor":0.75}]})"),
       3, 1},
      {From(R"({"type":"POINTS","points":[{"factor":1},{"step":4,"factor":1},
                {"step":4,"factor":0.25},{"step":8,"factor":0.75}]})"),
       4, 0.25},
      {From(R"({"type":"SEQUENTIAL","milestones":[4,4],"parts":[{},
                {"type":"EXPONENTIAL","gamma":0.5},{"type":"EXPONENTIAL","gamma":0.25}]})"),
       5, 0.25},
      // The second part begins at its milestone with its own first step.
      {From(R"({"type":"SEQUENTIAL","milestones":[4],"parts":[{"warmup_steps":4},
                {"type":"STEP","step_size":2,"gamma":0.5}]})"),
       3, 1},
      {From(R"({"type":"SEQUENTIAL","milestones":[4],"parts":[{"warmup_steps":4},
                {"type":"STEP","step_size":2,"gamma":0.5}]})"),
       5, 1},
      {From(R"({"type":"SEQUENTIAL","milestones":[4],"parts":[{"warmup_steps":4},
                {"type":"STEP","step_size":2,"gamma":0.5}]})"),
       6, 0.5},
      {From(R"({"type":"CHAINED","parts":[{"warmup_steps":4},
                {"type":"STEP","step_size":2,"gamma":0.5}]})"),
       2, 0.375},
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

TEST(Schedule, MomentumMovesAgainstTheFactor) {
  const v1::Schedule cycle = From(kCycle);
  EXPECT_EQ(ScheduleMomentum(cycle, 0), 0.9);
  EXPECT_NEAR(*ScheduleMomentum(cycle, 1), 0.7, 1e-15);
  EXPECT_EQ(ScheduleMomentum(cycle, 2), 0.5);
  EXPECT_EQ(ScheduleMomentum(cycle, 9), 0.9);
  EXPECT_EQ(ScheduleMomentum(cycle, uint64_t{1} << 62), 0.9);
  v1::Schedule fixed = cycle;
  fixed.clear_cycle_momentum();
  EXPECT_EQ(ScheduleMomentum(fixed, 1), std::nullopt);
  EXPECT_EQ(ScheduleMomentum(Cosine(10, 0), 1), std::nullopt);
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
      {From(R"({"total_steps":3,"start_factor":1.5})"),
       "optimizer.schedule.startFactor is 1.5, must be from 0 to 1"},
      {From(R"({"type":"LINEAR","total_steps":3,"end_factor":-1})"),
       "optimizer.schedule.endFactor is -1, must be from 0 to 1"},
      {From(R"({"type":"LINEAR"})"),
       "optimizer.schedule.totalSteps is 0, must be greater than warmupSteps, which is 0"},
      {From(R"({"type":"MULTI_STEP","gamma":1})"),
       "optimizer.schedule.milestones is empty, must have at least one"},
      {From(R"({"type":"MULTI_STEP","gamma":1,"milestones":[5,3]})"),
       "optimizer.schedule.milestones[1] is 3, must not be less than the one before it"},
      {From(R"({"type":"EXPONENTIAL"})"),
       "optimizer.schedule.gamma is 0, must be a number greater than 0"},
      {From(R"({"type":"POLYNOMIAL","total_steps":4})"),
       "optimizer.schedule.power is 0, must be a number greater than 0"},
      {From(R"({"type":"COSINE_RESTARTS","restart_steps":4})"),
       "optimizer.schedule.restartMultiple is 0, must be at least 1"},
      {From(R"({"type":"ONE_CYCLE","total_steps":4,"increasing_fraction":2})"),
       "optimizer.schedule.increasingFraction is 2, must be from 0 to 1"},
      {From(R"({"type":"ONE_CYCLE","total_steps":4,"initial_divisor":2})"),
       "optimizer.schedule.finalDivisor is 0, must be a number greater than 0"},
      {From(R"({"type":"ONE_CYCLE","total_steps":4,"initial_divisor":2,"final_divisor":2,
                "cycle_momentum":{"lowest":0.9,"highest":0.8}})"),
       "optimizer.schedule.cycleMomentum.highest is 0.8, must be at least `lowest` and less than "
       "1"},
      {From(R"({"type":"POINTS","points":[{"step":4,"factor":1},{"step":3,"factor":2}]})"),
       "optimizer.schedule.points[1] is at step 3, must not be before the previous one"},
      {From(R"({"type":"POINTS","points":[{"factor":-1}]})"),
       "optimizer.schedule.points[0] has the factor -1, must be a number of at least 0"},
      {From(R"({"type":"CHAINED"})"), "optimizer.schedule.parts is empty, must have at least one"},
      {From(R"({"type":"CHAINED","parts":[{},{"type":"CHAINED","parts":[{}]}]})"),
       "optimizer.schedule.parts[1].type is Sequential or Chained, and parts have no parts"},
      {From(R"({"type":"CHAINED","parts":[{"type":"EXPONENTIAL"}]})"),
       "optimizer.schedule.parts[0].gamma is 0, must be a number greater than 0"},
      {From(R"({"type":"CHAINED","parts":[{"type":"ONE_CYCLE","cycle_momentum":{}}]})"),
       "optimizer.schedule.parts[0].cycleMomentum is set, which parts do not have"},
      {From(R"({"type":"SEQUENTIAL","parts":[{},{}]})"),
       "optimizer.schedule.milestones has 0 items, must have 1: where each part after the first "
       "one "
       "begins"},
      {From(R"({"type":"SEQUENTIAL","parts":[{},{},{}],"milestones":[5,4]})"),
       "optimizer.schedule.milestones[1] is 4, must not be less than the one before it"},
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
