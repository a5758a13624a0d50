// Compares every optimizer and schedule with what PyTorch 2.15 computes with unusual settings
// (tests/vectors/optimizer_cases.py).

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/optimizer/schedule.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Numbers = std::vector<double>;

constexpr double kTolerance = 1e-12;

Json Vectors() {
  std::ifstream file("tests/vectors/optimizers.json");
  return Json::parse(file);
}

// JSON has no infinity and NaN: they are texts.
double NumberOf(const Json& json) {
  return json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}

// The fields of the message that the row has.
template <typename Message>
Message MessageOf(const Json& row) {
  Message message;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(row.dump(), &message, options).ok())
      << row;
  return message;
}

bool Equal(double wanted, double found, double scale) {
  if (std::isnan(wanted)) return std::isnan(found);
  if (std::isinf(wanted)) return found == wanted;
  return std::abs(wanted - found) <= kTolerance * std::max(std::abs(wanted), scale);
}

class Training {
 public:
  Training(const v1::OptimizerSpec& spec, Numbers parameters)
      : optimizer_(*MakeOptimizer(spec)), parameters_(std::move(parameters)) {
    for (const SlotSpec& slot : optimizer_->slots()) {
      slots_.emplace_back(parameters_.size(), slot.initial_value);
    }
  }

  void Step(double learning_rate, const Numbers& gradient) {
    StepRange<double> range;
    range.parameters = parameters_;
    range.gradient = gradient;
    range.parameters_out = absl::MakeSpan(parameters_);
    for (size_t i = 0; i < slots_.size(); ++i) {
      range.slots[i] = slots_[i];
      range.slots_out[i] = absl::MakeSpan(slots_[i]);
    }
    optimizer_->Step({.learning_rate = learning_rate, .count = ++count_}, range);
  }

  const Numbers& parameters() const { return parameters_; }

 private:
  const std::unique_ptr<Optimizer> optimizer_;
  Numbers parameters_;
  std::vector<Numbers> slots_;
  uint64_t count_ = 0;
};

TEST(TorchVectorsTest, OptimizersComputeWhatPyTorchComputes) {
  const Json vectors = Vectors();
  EXPECT_EQ(vectors["optimizers"].size(), 222u);
  for (const Json& row : vectors["optimizers"]) {
    Json fields = row;
    fields.erase("parameters");  // the results; the specification has a field of this name
    fields["learning_rate"] = vectors["learning_rates"][0];
    const auto spec = MessageOf<v1::OptimizerSpec>(fields);
    ASSERT_TRUE(MakeOptimizer(spec).ok()) << row << MakeOptimizer(spec).status();
    Training training(spec, vectors["initial"]);
    size_t recorded = 0;
    // The largest value so far: an error of the last bit of a huge value stays when it has shrunk.
    Numbers scale = vectors["initial"];
    for (double& value : scale) value = std::abs(value);
    for (size_t step = 0; step < vectors["gradients"].size(); ++step) {
      const Json& gradient = vectors["gradients"][step];
      if (!gradient.is_null()) training.Step(vectors["learning_rates"][step], gradient);
      for (size_t i = 0; i < scale.size(); ++i) {
        scale[i] = std::max(scale[i], std::abs(training.parameters()[i]));
      }
      if (step != vectors["recorded"][recorded]) continue;
      const Json& wanted = row["parameters"][recorded++];
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(Equal(NumberOf(wanted[i]), training.parameters()[i], scale[i]))
            << "step " << step << ", element " << i << ": " << training.parameters()[i]
            << " instead of " << wanted[i] << ": " << row;
      }
    }
    EXPECT_EQ(recorded, row["parameters"].size());
  }
}

TEST(TorchVectorsTest, SchedulesHaveTheFactorsOfPyTorch) {
  const Json vectors = Vectors();
  EXPECT_EQ(vectors["schedules"].size(), 33u);
  for (const Json& row : vectors["schedules"]) {
    const auto schedule = MessageOf<v1::Schedule>(row);
    ASSERT_TRUE(ValidateSchedule(schedule).ok()) << row;
    for (size_t step = 0; step < row["factors"].size(); ++step) {
      // PyTorch's cosine is a recursion, which ends near 0 and not at 0.
      EXPECT_TRUE(Equal(row["factors"][step], ScheduleFactor(schedule, step), 1e-3))
          << "step " << step << ": " << ScheduleFactor(schedule, step) << ": " << row;
    }
  }
}

// How far a rate may be from PyTorch's, relative to the full rate. PyTorch computes these rates
// from the step; others from the previous rate, so that their errors grow with the steps.
double ToleranceOf(const v1::Schedule& schedule) {
  switch (schedule.type()) {
    case v1::Schedule::COSINE_RESTARTS:
    case v1::Schedule::ONE_CYCLE:
    case v1::Schedule::POINTS:
      return 4e-16;
    default:
      return 5e-15;
  }
}

TEST(TorchVectorsTest, ThousandStepsOfEveryScheduleHaveTheRatesOfPyTorch) {
  const Json vectors = Vectors();
  const double rate = vectors["rate"];
  EXPECT_EQ(vectors["long_schedules"].size(), 43u);
  std::set<int> types;
  for (const Json& row : vectors["long_schedules"]) {
    const auto schedule = MessageOf<v1::Schedule>(row["schedule"]);
    types.insert(schedule.type());
    ASSERT_TRUE(ValidateSchedule(schedule).ok()) << row << ValidateSchedule(schedule);
    for (size_t i = 0; i < row["steps"].size(); ++i) {
      const uint64_t step = row["steps"][i];
      const double wanted = row["rates"][i];
      const double found = rate * ScheduleFactor(schedule, step);
      EXPECT_NEAR(found, wanted, ToleranceOf(schedule) * std::max(wanted, rate))
          << "step " << step << ": " << row["schedule"];
      ASSERT_EQ(ScheduleMomentum(schedule, step).has_value(), row.contains("momenta"));
      if (!row.contains("momenta")) continue;
      EXPECT_NEAR(*ScheduleMomentum(schedule, step), row["momenta"][i], 1e-15)
          << "step " << step << ": " << row["schedule"];
    }
  }
  EXPECT_EQ(types.size(), static_cast<size_t>(v1::Schedule::Type_ARRAYSIZE));
}

}  // namespace
}  // namespace sluice
