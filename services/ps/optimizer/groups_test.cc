#include "services/ps/optimizer/groups.h"

#include <google/protobuf/descriptor.h>

#include <optional>
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

TEST(ParameterGroups, GroupWithANameHasThatOptimizerWithItsOwnValues) {
  v1::OptimizerSpec spec = Sgd();
  spec.set_clip_norm(5);
  auto* table = spec.add_groups();
  table->add_patterns("table");
  table->set_name(v1::OptimizerSpec::ADAGRAD);
  table->set_learning_rate(0.5);
  table->set_eps(1e-10);
  table->set_initial_accumulator_value(2);
  const auto groups = ParameterGroups::Create(spec);
  ASSERT_TRUE(groups.ok()) << groups.status();

  const ParameterGroups::Group& group = groups->For("table");
  EXPECT_EQ(group.spec.name(), v1::OptimizerSpec::ADAGRAD);
  EXPECT_EQ(group.spec.momentum(), 0);
  EXPECT_EQ(group.spec.weight_decay(), 0);
  EXPECT_EQ(group.spec.clip_norm(), 5) << "the norm is of all parameters";
  ASSERT_EQ(group.optimizer->slots().size(), 1u);
  EXPECT_EQ(group.optimizer->slots()[0].name, "sum");
  EXPECT_EQ(group.optimizer->slots()[0].initial_value, 2);
  EXPECT_EQ(groups->For("fc.weight").optimizer->slots()[0].name, "momentum_buffer");
}

// Reads the options of a group by reflection: none may be forgotten.
TEST(ParameterGroups, GroupMaySetEveryOption) {
  v1::OptimizerSpec spec = Sgd();
  auto* group = spec.add_groups();
  group->add_patterns("a");
  const auto& descriptor = *v1::OptimizerSpec::Group::descriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const auto* const field = descriptor.field(i);
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      group->GetReflection()->SetDouble(group, field, 0.25);
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL) {
      group->GetReflection()->SetBool(group, field, true);
    }
  }
  group->set_dampening(0);  // nesterov forbids it
  const auto groups = ParameterGroups::Create(spec);
  ASSERT_TRUE(groups.ok()) << groups.status();
  const v1::OptimizerSpec& own = groups->For("a").spec;
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const auto* const field = descriptor.field(i);
    const auto* const option = own.GetDescriptor()->FindFieldByName(field->name());
    if (field->name() == "dampening") continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_DOUBLE) {
      EXPECT_EQ(own.GetReflection()->GetDouble(own, option), 0.25) << field->name();
    } else if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL) {
      EXPECT_TRUE(own.GetReflection()->GetBool(own, option)) << field->name();
    }
  }
}

TEST(ParameterGroups, GroupMayHaveAScheduleOfItsOwn) {
  v1::OptimizerSpec spec = Sgd();
  spec.mutable_schedule()->set_type(v1::Schedule::EXPONENTIAL);
  spec.mutable_schedule()->set_gamma(0.5);
  auto* slow = spec.add_groups();
  slow->add_patterns("slow");
  slow->mutable_schedule()->set_warmup_steps(10);
  auto* other = spec.add_groups();
  other->add_patterns("other");
  other->set_name(v1::OptimizerSpec::ADAM);
  other->set_learning_rate(1);
  const auto groups = ParameterGroups::Create(spec);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_DOUBLE_EQ(groups->For("slow").LearningRate(1), 0.02);
  EXPECT_DOUBLE_EQ(groups->For("other").LearningRate(1), 0.5) << "the job's schedule";
  EXPECT_DOUBLE_EQ(groups->For("rest").LearningRate(2), 0.025);
  EXPECT_EQ(groups->For("rest").Momentum(2), std::nullopt);
}

TEST(ParameterGroups, ScheduleMovesTheMomentumOfOptimizersThatHaveOne) {
  v1::OptimizerSpec spec = Sgd();
  v1::Schedule& cycle = *spec.mutable_schedule();
  cycle.set_type(v1::Schedule::ONE_CYCLE);
  cycle.set_total_steps(100);
  cycle.set_increasing_fraction(0.3);
  cycle.set_initial_divisor(25);
  cycle.set_final_divisor(1e4);
  cycle.mutable_cycle_momentum()->set_lowest(0.8);
  cycle.mutable_cycle_momentum()->set_highest(0.95);
  auto groups = ParameterGroups::Create(spec);
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_EQ(groups->For("a").Momentum(0), 0.95);
  EXPECT_EQ(groups->For("a").Momentum(29), 0.8);

  auto* table = spec.add_groups();
  table->add_patterns("table");
  table->set_name(v1::OptimizerSpec::ADAGRAD);
  table->set_learning_rate(0.1);
  EXPECT_EQ(ParameterGroups::Create(spec).status().message(),
            "optimizer.groups[0]: optimizer.schedule.cycleMomentum needs SGD or RMSprop with a "
            "momentum, Adam, AdamW, RAdam, Adamax or Lion; a group may have a schedule of its own");
  table->mutable_schedule();
  EXPECT_TRUE(ParameterGroups::Create(spec).ok());
  spec.set_momentum(0);
  EXPECT_EQ(ParameterGroups::Create(spec).status().code(), absl::StatusCode::kInvalidArgument);
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
  group->clear_momentum();
  group->set_name(v1::OptimizerSpec::ADAM);
  expect("optimizer.groups[1]: learningRate is missing, which a group with a name must have");
  group->set_name(v1::OptimizerSpec::PLUGIN);
  expect("optimizer.groups[1]: name is Add or Plugin, which a group cannot have");
  group->clear_name();
  group->mutable_schedule()->set_type(v1::Schedule::EXPONENTIAL);
  expect("optimizer.groups[1]: schedule.gamma is 0, must be a number greater than 0");
  spec.mutable_schedule()->set_type(v1::Schedule::EXPONENTIAL);
  expect("optimizer.schedule.gamma is 0, must be a number greater than 0");
  spec.clear_schedule();
  spec.set_weight_decay(-2);
  expect("optimizer.weightDecay is -2, must be a number of at least 0");
}

}  // namespace
}  // namespace sluice
