#include "services/ps/optimizer/groups.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice {
namespace {

TEST(Glob, MatchesWholeNames) {
  const struct {
    const char* pattern;
    const char* name;
    bool matches;
  } kCases[] = {
      {"fc.weight", "fc.weight", true},
      {"fc.weight", "fc.weights", false},
      {"fc.weight", "xfc.weight", false},
      {"fc.weight", "fcxweight", false},
      {"*", "", true},
      {"*", "layer1.0.conv.weight", true},
      {"*.bias", "layer1.0.bias", true},
      {"*.bias", "bias", false},
      {"*bias", "bias", true},
      {"layer?.*", "layer1.weight", true},
      {"layer?.*", "layer12.weight", false},
      {"?", "", false},
      {"", "", true},
      {"", "a", false},
      {"*.weight.*", "a.weight.b", true},
      {"a*b*c", "axbxbxc", true},
      {"a*b*c", "axbxbx", false},
      {"**a**", "bab", true},
      {"*ab", "aab", true},
      {"*.bn?.*", "layer1.bn.bn2.weight", true},
      {"fc[0]", "fc[0]", true},
      {"fc[0]", "fc0", false},
      {"Fc", "fc", false},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(GlobMatches(test.pattern, test.name), test.matches)
        << '"' << test.pattern << "\" on \"" << test.name << '"';
  }
}

TEST(Glob, ManyStarsCostNoExponentialTime) {
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(GlobMatches(pattern + "b", std::string(10'000, 'a')));
}

v1::OptimizerSpec Sgd() {
  v1::OptimizerSpec spec;
  spec.set_name(v1::OptimizerSpec::SGD);
  spec.set_learning_rate(0.1);
  spec.set_momentum(0.9);
  spec.set_weight_decay(1e-4);
  return spec;
}

TEST(ParameterGroups, TensorBelongsToTheFirstMatchingGroup) {
  v1::OptimizerSpec spec = Sgd();
  auto* biases = spec.add_groups();
  biases->add_patterns("*.bias");
  biases->add_patterns("norm*");
  biases->set_weight_decay(0);
  auto* head = spec.add_groups();
  head->add_patterns("fc.*");
  head->set_learning_rate(0.5);
  head->set_momentum(0);

  const auto groups = ParameterGroups::Create(spec);
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->size(), 3u);
  const struct {
    const char* tensor;
    size_t group;
    double learning_rate;
    double momentum;
    double weight_decay;
    size_t slots;
  } kCases[] = {
      {"conv.bias", 0, 0.1, 0.9, 0, 1},      {"norm1.weight", 0, 0.1, 0.9, 0, 1},
      {"fc.bias", 0, 0.1, 0.9, 0, 1},        {"fc.weight", 1, 0.5, 0, 1e-4, 0},
      {"conv.weight", 2, 0.1, 0.9, 1e-4, 1}, {"bias", 2, 0.1, 0.9, 1e-4, 1},
  };

  for (const auto& test : kCases) {
    EXPECT_EQ(groups->IndexOf(test.tensor), test.group) << test.tensor;
    const ParameterGroups::Group& group = groups->For(test.tensor);
    EXPECT_EQ(&group, &(*groups)[test.group]);
    EXPECT_EQ(group.spec.learning_rate(), test.learning_rate) << test.tensor;
    EXPECT_EQ(group.spec.momentum(), test.momentum) << test.tensor;
    EXPECT_EQ(group.spec.weight_decay(), test.weight_decay) << test.tensor;
    EXPECT_EQ(group.spec.groups_size(), 0);
    EXPECT_EQ(group.optimizer->slots().size(), test.slots) << test.tensor;
  }
}

TEST(ParameterGroups, WithoutGroupsThereIsOneDefaultGroup) {
  const auto groups = ParameterGroups::Create(Sgd());
  ASSERT_TRUE(groups.ok());
  EXPECT_EQ(groups->size(), 1u);
  EXPECT_EQ(groups->IndexOf("anything"), 0u);
}

TEST(ParameterGroups, ErrorNamesInvalidFieldAndItsGroup) {
  v1::OptimizerSpec spec = Sgd();
  spec.add_groups()->add_patterns("*");
  auto* group = spec.add_groups();
  const auto expect = [&spec](const std::string& message) {
    const auto groups = ParameterGroups::Create(spec);
    EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(groups.status().message(), message);
  };

  expect("optimizer.groups[1]: patterns is empty, must have at least one");
  group->add_patterns("");
  expect("optimizer.groups[1]: patterns has an empty string, which matches no name");
  group->set_patterns(0, "*.bias");
  group->set_momentum(-1);
  expect("optimizer.groups[1]: optimizer.momentum is -1, must be a number of at least 0");
  spec.set_weight_decay(-2);
  expect("optimizer.weightDecay is -2, must be a number of at least 0");
}

}  // namespace
}  // namespace sluice
