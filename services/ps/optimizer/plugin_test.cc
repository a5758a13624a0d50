#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/ps/optimizer/groups.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PluginTest : public testing::Test {
 protected:
  PluginTest() {
    directory_ = testing::TempDir() + "/broken";
    std::filesystem::create_directories(directory_);
    std::ofstream(directory_ + "/libtext.so") << "this is not a library";
    const std::string path =
        absl::StrCat("examples/plugins/lion:services/ps/optimizer/testing:", directory_);
    setenv("SLUICE_PLUGIN_PATH", path.c_str(), 1);
  }

  static v1::OptimizerSpec SpecOf(const std::string& library) {
    v1::OptimizerSpec spec;
    spec.set_name(v1::OptimizerSpec::PLUGIN);
    spec.set_library(library);
    spec.set_learning_rate(0.1);
    return spec;
  }

  static std::string Refusal(const v1::OptimizerSpec& spec) {
    const auto optimizer = MakeOptimizer(spec);
    if (optimizer.ok()) return "it is accepted";
    EXPECT_EQ(optimizer.status().code(), absl::StatusCode::kInvalidArgument);
    return absl::StrCat(optimizer.status().message());
  }

  std::string directory_;
};

template <typename T>
struct Tensor {
  std::vector<T> parameters;
  std::vector<ComputeType<T>> gradient;
  std::vector<ComputeType<T>> mean;
};

template <typename T>
void StepInPlace(const Optimizer& optimizer, const StepArguments& arguments, Tensor<T>* tensor) {
  StepRange<T> range;
  range.parameters = tensor->parameters;
  range.gradient = tensor->gradient;
  range.slots[0] = tensor->mean;
  range.parameters_out = absl::MakeSpan(tensor->parameters);
  range.slots_out[0] = absl::MakeSpan(tensor->mean);
  optimizer.Step(arguments, range);
}

TEST_F(PluginTest, AppliesLibrarysRuleWithJobsParametersAndKeepsItsStateInSlots) {
  v1::OptimizerSpec spec = SpecOf("lion");
  (*spec.mutable_parameters())["beta1"] = 0.5;
  (*spec.mutable_parameters())["beta2"] = 0.75;
  (*spec.mutable_parameters())["weight_decay"] = 0.5;
  const auto optimizer = MakeOptimizer(spec);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  ASSERT_EQ((*optimizer)->slots().size(), 1u);
  EXPECT_EQ((*optimizer)->slots()[0].name, "exp_avg");
  EXPECT_EQ((*optimizer)->slots()[0].initial_value, 0);

  Tensor<double> tensor{{8, 8, 8}, {4, -4, 0}, {0, 8, 0}};
  StepArguments arguments;
  arguments.learning_rate = 0.25;
  arguments.gradient_scale = 0.5;
  StepInPlace(**optimizer, arguments, &tensor);
  // g = 2, -2, 0; directions 1, 3, 0; w decays by 0.25 * 0.5 * 8 = 1.
  EXPECT_EQ(tensor.parameters, (std::vector<double>{6.75, 6.75, 7}));
  EXPECT_EQ(tensor.mean, (std::vector<double>{0.5, 5.5, 0}));
}

TEST_F(PluginTest, WritesNextVersionIntoNewBuffers) {
  const auto optimizer = MakeOptimizer(SpecOf("three_slots"));
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  const std::vector<float> before = {1, 2}, gradient = {10, 20};
  const std::vector<std::vector<float>> slots = {{100, 101}, {200, 201}, {300, 301}};
  std::vector<float> after(2);
  std::vector<std::vector<float>> slots_after(3, std::vector<float>(2));
  StepRange<float> range;
  range.parameters = before;
  range.gradient = gradient;
  range.parameters_out = absl::MakeSpan(after);
  for (size_t i = 0; i < slots.size(); ++i) {
    range.slots[i] = slots[i];
    range.slots_out[i] = absl::MakeSpan(slots_after[i]);
  }
  StepArguments arguments;
  arguments.learning_rate = 0.5;
  arguments.count = 7;
  arguments.gradient_scale = 0.25;
  (*optimizer)->Step(arguments, range);
  EXPECT_EQ(after, (std::vector<float>{11, 22}));
  EXPECT_EQ(slots_after[0], (std::vector<float>{100.5, 101.5}));
  EXPECT_EQ(slots_after[1], (std::vector<float>{207, 208}));
  EXPECT_EQ(slots_after[2], (std::vector<float>{300.25, 301.25}));
  EXPECT_EQ(before, (std::vector<float>{1, 2}));
  EXPECT_EQ(slots[0], (std::vector<float>{100, 101}));
}

TEST_F(PluginTest, UpdatesHalfPrecisionParametersInFloat) {
  const auto optimizer = MakeOptimizer(SpecOf("lion"));
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  Tensor<BFloat16> tensor{std::vector<BFloat16>(3000), std::vector<float>(3000, 1),
                          std::vector<float>(3000)};
  StepArguments arguments;
  arguments.learning_rate = 0.5;
  StepInPlace(**optimizer, arguments, &tensor);
  for (size_t i = 0; i < tensor.parameters.size(); ++i) {
    ASSERT_EQ(tensor.parameters[i].bits, 0xbf00) << i;  // -0.5
    ASSERT_NEAR(tensor.mean[i], 0.01f, 1e-6) << i;
  }
}

TEST_F(PluginTest, ParameterGroupsUseTheLibrarysOptimizer) {
  const auto groups = ParameterGroups::Create(SpecOf("lion"));
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->For("fc1.weight").optimizer->slots()[0].name, "exp_avg");
}

TEST_F(PluginTest, ErrorNamesMissingLibraryAndSearchedDirectories) {
  EXPECT_THAT(Refusal(SpecOf("tiger")),
              AllOf(HasSubstr("there is no libtiger.so in examples/plugins/lion, "),
                    HasSubstr("/usr/lib/sluice"), HasSubstr("SLUICE_PLUGIN_PATH")));
  EXPECT_THAT(Refusal(SpecOf("../lion")), HasSubstr("`../lion` is not the name of a library"));
  EXPECT_THAT(Refusal(SpecOf("")), HasSubstr("is not the name of a library"));
}

TEST_F(PluginTest, RefusesLibraryOfAnotherVersionAndNamesBothVersions) {
  EXPECT_THAT(Refusal(SpecOf("other_abi")),
              AllOf(HasSubstr("was built against version 2"), HasSubstr("have version 1"),
                    HasSubstr("rebuild it")));
}

TEST_F(PluginTest, RefusesFilesThatAreNotOptimizerLibraries) {
  EXPECT_THAT(Refusal(SpecOf("text")),
              AllOf(HasSubstr("cannot be loaded"), HasSubstr("libtext.so")));
  EXPECT_THAT(Refusal(SpecOf("no_optimizer")), HasSubstr("it is not a Sluice optimizer"));
  EXPECT_THAT(Refusal(SpecOf("too_many_slots")), HasSubstr("has 4 slots, the limit is 3"));
}

TEST_F(PluginTest, ErrorQuotesLibraryThatRefusesItsParameters) {
  v1::OptimizerSpec spec = SpecOf("lion");
  (*spec.mutable_parameters())["beta1"] = 1;
  EXPECT_EQ(Refusal(spec), "optimizer.parameters: lion: a beta must be in [0, 1)");
  (*spec.mutable_parameters())["beta1"] = 0.9;
  (*spec.mutable_parameters())["beta3"] = 0.9;
  EXPECT_EQ(Refusal(spec),
            "optimizer.parameters: lion: there is no parameter `beta3`; there are: beta1, beta2, "
            "weight_decay");
}

}  // namespace
}  // namespace sluice
