#include "cli/optimizer_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"

namespace sluice::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class OptimizerFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    optimizer.set_name(v1::OptimizerSpec::ADAM_W);
    optimizer.set_learning_rate(0.5);
    optimizer.set_beta1(0.9);
    optimizer.set_beta2(0.999);
    optimizer.set_eps(1e-8);
    optimizer.mutable_schedule()->set_type(v1::Schedule::STEP);
    optimizer.mutable_schedule()->set_step_size(10);
    optimizer.mutable_schedule()->set_gamma(0.1);
    v1::OptimizerSpec::Group& biases = *optimizer.add_groups();
    biases.add_patterns("*.bias");
    biases.set_learning_rate(0.25);

    AddTensor("fc.weight", {2, 2}, v1::FLOAT32, v1::PARAMETER);
    AddTensor("fc.bias", {2}, v1::BFLOAT16, v1::PARAMETER);
    AddTensor("bn.running_mean", {2}, v1::FLOAT32, v1::BUFFER);
    index.mutable_checkpoint()->set_step(12);
    states = {State({2, 2}, 12), State({2}, 12), TensorState()};
  }

  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, v1::DataType dtype,
                 v1::TensorKind kind) {
    v1::TensorSpec& tensor = *index.mutable_table()->add_tensors();
    tensor.set_name(name);
    for (const int64_t extent : shape) tensor.add_shape(extent);
    tensor.set_dtype(dtype);
    tensor.set_kind(kind);
  }

  TensorState State(const std::vector<int64_t>& shape, uint64_t updates) {
    TensorState state;
    state.updates = state.fewest = updates;
    for (const char* name : {"exp_avg", "exp_avg_sq"}) {
      size_t elements = 1;
      for (const int64_t extent : shape) elements *= static_cast<size_t>(extent);
      std::string bytes;
      for (size_t i = 0; i < elements; ++i) bytes += Bytes(static_cast<float>(next_++));
      state.slots.push_back({name, v1::FLOAT32, shape, absl::Cord(bytes)});
    }
    return state;
  }

  static std::string Bytes(float value) {
    std::string bytes(sizeof(value), '\0');
    std::memcpy(bytes.data(), &value, sizeof(value));
    return bytes;
  }

  nlohmann::json Groups(const OptimizerFile& file) {
    return nlohmann::json::parse(file.metadata.at("optimizer"))["groups"];
  }

  absl::StatusOr<ImportedState> Read(const OptimizerFile& file) {
    return ReadOptimizerFile("state.safetensors", optimizer, index.table(), file.arrays,
                             file.metadata);
  }

  std::string Refusal(const OptimizerFile& file) {
    const absl::StatusOr<ImportedState> read = Read(file);
    return read.ok() ? "accepted" : std::string(read.status().message());
  }

  SafetensorsArray& ArrayOf(OptimizerFile* file, const std::string& name) {
    for (SafetensorsArray& array : file->arrays) {
      if (array.name == name) return array;
    }
    ADD_FAILURE() << name;
    return file->arrays[0];
  }

  v1::OptimizerSpec optimizer;
  v1::CheckpointIndex index;
  std::vector<TensorState> states;
  int next_ = 1;
};

TEST_F(OptimizerFileTest, HasEachOptionOfEachGroupInItsOrder) {
  const auto file = MakeOptimizerFile(optimizer, index, states);
  ASSERT_TRUE(file.ok()) << file.status();
  const nlohmann::json groups = Groups(*file);
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_EQ(groups[0]["class"], "AdamW");
  EXPECT_EQ(groups[0]["params"], nlohmann::json({"fc.bias"}));
  EXPECT_EQ(groups[1]["params"], nlohmann::json({"fc.weight"}));
  EXPECT_EQ(groups[1]["updates"], nlohmann::json({12}));
  const nlohmann::json& options = groups[0]["options"];
  EXPECT_DOUBLE_EQ(options["lr"], 0.025);  // of step 12
  EXPECT_EQ(options["initial_lr"], 0.25);
  EXPECT_EQ(options["betas"], nlohmann::json({0.9, 0.999}));
  EXPECT_EQ(options["decoupled_weight_decay"], true);
  EXPECT_EQ(options["maximize"], false);
  EXPECT_TRUE(options["foreach"].is_null() && options["fused"].is_null());
  EXPECT_THAT(file->notes, SizeIs(0));
  EXPECT_THAT(OptimizerLines(file->arrays, file->metadata),
              ElementsAre("step        12", "group       AdamW, 1 parameter (fc.bias)",
                          HasSubstr("\"lr\":0.025"), "group       AdamW, 1 parameter (fc.weight)",
                          HasSubstr("\"lr\":0.05")));
}

TEST_F(OptimizerFileTest, ReductionOfAPlateauIsInTheLearningRate) {
  index.mutable_decisions()->set_learning_rate_factor(0.5);
  EXPECT_DOUBLE_EQ(Groups(*MakeOptimizerFile(optimizer, index, states))[0]["options"]["lr"],
                   0.0125);
}

TEST_F(OptimizerFileTest, IsReadBackAsItWasWritten) {
  states[1] = TensorState();  // never updated
  const auto read = Read(*MakeOptimizerFile(optimizer, index, states));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 12);
  EXPECT_THAT(read->notes, SizeIs(0));
  ASSERT_THAT(read->states, SizeIs(3));
  EXPECT_EQ(read->states[0].updates, 12);
  ASSERT_THAT(read->states[0].slots, SizeIs(2));
  EXPECT_EQ(read->states[0].slots[1].name, "exp_avg_sq");
  EXPECT_EQ(read->states[0].slots[1].bytes, states[0].slots[1].bytes);
  EXPECT_EQ(read->states[1].updates, 0);
  EXPECT_THAT(read->states[1].slots, SizeIs(0));
}

TEST_F(OptimizerFileTest, SaysWhichPartsHadFewerUpdates) {
  states[0].fewest = 3;
  EXPECT_THAT(MakeOptimizerFile(optimizer, index, states)->notes,
              ElementsAre(HasSubstr("parts of 1 parameter (fc.weight) have had fewer updates")));
}

TEST_F(OptimizerFileTest, OptionsOfTheJobWinAndDifferencesAreSaid) {
  const OptimizerFile file = *MakeOptimizerFile(optimizer, index, states);
  optimizer.set_eps(1e-6);
  optimizer.mutable_groups(0)->set_learning_rate(0.125);
  const auto read = Read(file);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(
      read->notes,
      ElementsAre("eps 1e-06, was 1e-08 in state.safetensors: 2 parameters (fc.weight, fc.bias)",
                  "lr 0.125, was 0.25 in state.safetensors: 1 parameter (fc.bias)"));
}

TEST_F(OptimizerFileTest, ARateThatWasReducedIsSaidWhereTheJobHasNoSchedule) {
  optimizer.clear_schedule();
  index.mutable_decisions()->set_learning_rate_factor(0.5);
  const OptimizerFile reduced = *MakeOptimizerFile(optimizer, index, states);
  EXPECT_THAT(Read(reduced)->notes,
              ElementsAre("lr 0.25, was 0.125 in state.safetensors: 1 parameter (fc.bias)",
                          "lr 0.5, was 0.25 in state.safetensors: 1 parameter (fc.weight)"));
  index.clear_decisions();
  EXPECT_THAT(Read(*MakeOptimizerFile(optimizer, index, states))->notes, SizeIs(0));
}

TEST_F(OptimizerFileTest, RefusesWhatDoesNotFitByItsName) {
  const OptimizerFile good = *MakeOptimizerFile(optimizer, index, states);
  EXPECT_EQ(Refusal(good), "accepted");

  OptimizerFile file = good;
  ArrayOf(&file, "fc.bias/exp_avg").name = "other";
  EXPECT_THAT(Refusal(file), HasSubstr("state.safetensors: 'fc.bias/exp_avg' is missing"));
  file = good;
  ArrayOf(&file, "fc.bias/exp_avg").shape = {1, 2};
  EXPECT_THAT(Refusal(file), HasSubstr("is float32[1, 2], and should be float32[2]"));
  file = good;
  ArrayOf(&file, "fc.bias/exp_avg").bytes = absl::Cord(Bytes(1) + Bytes(NAN));
  EXPECT_THAT(Refusal(file), HasSubstr("element 1 of 'fc.bias/exp_avg' is nan"));

  const auto edited = [&](const std::string& from, const std::string& to) {
    file = good;
    std::string& text = file.metadata["optimizer"];
    text = absl::StrReplaceAll(text, {{from, to}});
    return Refusal(file);
  };
  EXPECT_THAT(edited("fc.weight", "fc.weights"),
              HasSubstr("parameter 'fc.weights', which the job"));
  EXPECT_THAT(edited("\"AdamW\"", "\"Adam\""),
              HasSubstr("is Adam's, and the job's optimizer for it is AdamW"));
  EXPECT_THAT(edited("\"maximize\":false", "\"maximize\":true"), HasSubstr("maximize=True"));
  EXPECT_THAT(edited("fc.weight", "fc.bias"), HasSubstr("'fc.bias' is in two groups"));
  EXPECT_THAT(edited("[12]", "[-1]"), HasSubstr("is not as in the docs"));
  EXPECT_THAT(edited("\"groups\"", "\"group\""), HasSubstr("no step or no groups"));
  EXPECT_THAT(edited("{\"step", "[[[["), HasSubstr("no step or no groups"));
  file = good;
  file.metadata.erase("format");
  EXPECT_THAT(Refusal(file), HasSubstr("it has no optimizer's state"));
  AddTensor("new", {1}, v1::FLOAT32, v1::PARAMETER);
  EXPECT_THAT(Refusal(good), HasSubstr("it has no parameter 'new', which the job trains"));
}

TEST_F(OptimizerFileTest, MomentumOfSgdMayBeginLater) {
  const OptimizerFile file = *MakeOptimizerFile(optimizer, index, states);
  OptimizerFile plain;
  plain.metadata = file.metadata;
  plain.metadata["optimizer"] =
      absl::StrReplaceAll(plain.metadata["optimizer"], {{"\"AdamW\"", "\"SGD\""}});
  optimizer.set_name(v1::OptimizerSpec::SGD);
  auto read = Read(plain);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->states[0].updates, 12);
  optimizer.set_momentum(0.9);
  read = Read(plain);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->states[0].updates, 0);
}

TEST_F(OptimizerFileTest, OptimizersThatPyTorchDoesNotHaveAreRefused) {
  optimizer.set_name(v1::OptimizerSpec::ADD);
  optimizer.clear_groups();
  EXPECT_THAT(std::string(SlotsOfOptimizer(optimizer).status().message()),
              HasSubstr("ADD, which torch.optim does not have"));
}

}  // namespace
}  // namespace sluice::cli
