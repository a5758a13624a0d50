// The engine with models from TorchScript files.
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/model.pb.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/compute/testing/recording_sink.h"
#include "services/worker/compute/testing/script_engines.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/testing/data_files.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::SizeIs;

void ExpectFileRefused(const std::string& path, absl::StatusCode code, const std::string& message) {
  const absl::Status status = CreateTorchEngine(Options(path)).status();
  ExpectRefused(status, code, message);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

std::vector<std::string> Layout(const ComputeEngine& engine) {
  std::vector<std::string> lines;
  for (const v1::TensorSpec& tensor : engine.Describe().tensors()) {
    lines.push_back(absl::StrCat(tensor.name(), " ", v1::TensorKind_Name(tensor.kind()), " ",
                                 v1::DataType_Name(tensor.dtype())));
  }
  return lines;
}

TEST(TorchScriptEngineTest, ModelThatChangesItsInputLeavesTheBatchUnchanged) {
  ScriptModule module;
  module.children = {{"fc", LinearModule()}};
  module.source = R"(
def forward(self, x):
    return self.fc.forward(x.mul_(2.0))
)";
  const auto engine = CreateInitialized(Options(Save(module)));
  ASSERT_NE(engine, nullptr);
  const Batch batch = Pairs({1, 2, 3, 4}, {0, 0});
  RecordingSink sink;
  Gradients(*engine, Request(batch), sink);
  EXPECT_EQ(batch.features, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_TRUE(engine->Evaluate(Buffer::kCurrent, batch).ok());
  EXPECT_EQ(batch.features, (std::vector<float>{1, 2, 3, 4}));
}

TEST(TorchScriptEngineTest, ParametersAndBuffersAreFoundInTheOrderOfTheStateDict) {
  EXPECT_THAT(
      Layout(*CreateInitialized(Options(Save(NormedModule())))),
      ElementsAre("offset PARAMETER FLOAT32", "norm.weight PARAMETER FLOAT32",
                  "norm.bias PARAMETER FLOAT32", "norm.running_mean BUFFER FLOAT32",
                  "norm.running_var BUFFER FLOAT32", "norm.num_batches_tracked COUNTER INT64",
                  "fc.weight PARAMETER FLOAT32", "fc.bias PARAMETER FLOAT32"));
}

TEST(TorchScriptEngineTest, InitialValuesAreAlwaysTheFiles) {
  const auto engine = CreateInitialized(Options(Save(LinearModule())));
  EXPECT_THAT(Elements(*engine->InitialTensor(0)), ElementsAre(1, 2));
  ASSERT_TRUE(engine->SetTensorRange(Buffer::kIncoming, 0, 0, BytesOf<float>({7, 8})).ok());
  ASSERT_TRUE(engine->Adopt().ok());
  EXPECT_THAT(Elements(*engine->InitialTensor(0)), ElementsAre(1, 2));
}

TEST(TorchScriptEngineTest, GradientsOfTheCurrentVersionMatchThoseComputedByHand) {
  const auto engine = CreateInitialized(Options(Save(LinearModule())));
  const Batch batch = Pairs({1, 1, 2, 0}, {3, 4});
  // More than once: the interpreter optimises after its first runs, with profiles of the memory it
  // saw.
  for (int run = 0; run < 4; ++run) {
    RecordingSink sink;
    EXPECT_FLOAT_EQ(Gradients(*engine, Request(batch), sink).loss_sum, 2.5);
    EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(-5, 1));
    EXPECT_THAT(Elements(sink.gradients[1]), ElementsAre(-2));
  }
  ASSERT_TRUE(engine->SetTensorRange(Buffer::kIncoming, 0, 0, BytesOf<float>({0, 0})).ok());
  ASSERT_TRUE(engine->SetTensorRange(Buffer::kIncoming, 1, 0, BytesOf<float>({0})).ok());
  ASSERT_TRUE(engine->Adopt().ok());
  RecordingSink sink;
  EXPECT_FLOAT_EQ(Gradients(*engine, Request(batch), sink).loss_sum, 25);
  EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(-22, -6));
}

TEST(TorchScriptEngineTest, UsesTheModulesLossIfTheJobNamesNone) {
  ScriptModule module = LinearModule();
  module.source += R"(
def loss(self, output, target):
    return torch.mean(torch.abs(output - target))
)";
  const std::string path = Save(module);
  const auto engine = CreateInitialized(Options(path, ""));
  const Batch batch = Pairs({1, 1, 2, 0}, {3, 4});
  RecordingSink sink;
  EXPECT_FLOAT_EQ(Gradients(*engine, Request(batch), sink).loss_sum, 0.5 + 1.5);
  EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(1 - 2, 1));
  EXPECT_FLOAT_EQ(
      CreateInitialized(Options(path, "mse"))->Evaluate(Buffer::kCurrent, batch)->loss_sum, 2.5);
  ExpectRefused(CreateTorchEngine(Options(Save(LinearModule()), "")).status(),
                absl::StatusCode::kFailedPrecondition, "no method 'loss(output, target)'");
}

// A linear model whose forward returns the loss.
ScriptModule LossModule() {
  ScriptModule module = LinearModule();
  module.source = R"(
def forward(self, x, y):
    return torch.mean(torch.abs(torch.linear(x, self.weight, self.bias) - y))
)";
  return module;
}

TEST(TorchScriptEngineTest, ModuleWhoseForwardTakesTheTargetReturnsTheLoss) {
  const auto engine = CreateInitialized(Options(Save(LossModule()), ""));
  ASSERT_NE(engine, nullptr);
  const Batch batch = Pairs({1, 1, 2, 0}, {3, 4});
  RecordingSink sink;
  const BatchMetrics metrics = Gradients(*engine, Request(batch), sink);
  EXPECT_FLOAT_EQ(metrics.loss_sum, 0.5 + 1.5);
  EXPECT_EQ(metrics.samples, 2u);
  EXPECT_FALSE(metrics.has_correct);
  EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(1 - 2, 1));
  EXPECT_FLOAT_EQ(engine->Evaluate(Buffer::kCurrent, batch)->loss_sum, 2);
  // The sum of the means of two microbatches.
  GradientRequest request = Request(batch);
  request.microbatch_size = 1;
  request.reduction = Reduction::kSumOfMicrobatchMeans;
  RecordingSink sums;
  EXPECT_FLOAT_EQ(Gradients(*engine, request, sums).loss_sum, 2);
  EXPECT_THAT(Elements(sums.gradients[0]), ElementsAre(1 - 2, 1));
}

TEST(TorchScriptEngineTest, ModuleMayHaveAnyNameInForward) {
  ScriptModule module = LinearModule();
  module.source = R"(
def forward(net, x):
    return torch.linear(x, net.weight, net.bias)
)";
  EXPECT_NE(CreateInitialized(Options(Save(module), "mse")), nullptr);
}

TEST(TorchScriptEngineTest, RejectsALossThatForwardDoesNotReturn) {
  ExpectRefused(CreateTorchEngine(Options(Save(LossModule()), "mse")).status(),
                absl::StatusCode::kInvalidArgument, "computes the loss itself: leave loss out");
  ScriptModule outputs = LossModule();
  outputs.source = R"(
def forward(self, x, y):
    return torch.linear(x, self.weight, self.bias) - y
)";
  const auto engine = CreateInitialized(Options(Save(outputs), ""));
  RecordingSink sink;
  const Batch batch = Pairs({1, 1, 2, 0}, {3, 4});
  ExpectRefused(engine->ComputeGradients(Request(batch), sink).status(),
                absl::StatusCode::kFailedPrecondition,
                "forward(input, target) should return the mean loss");
  ScriptModule three = LinearModule();
  three.source = R"(
def forward(self, x, y, z):
    return torch.mean(x + y + z)
)";
  ExpectFileRefused(Save(three), absl::StatusCode::kInvalidArgument, "forward takes 3 arguments");
}

TEST(TorchScriptEngineTest, ChangesOfBuffersAreReportedAndUndone) {
  const auto engine = CreateInitialized(Options(Save(NormedModule())));
  const Batch batch = Pairs({1, 10, 3, 14, 5, 12, 7, 16}, {0, 0, 0, 0});
  for (int run = 0; run < 3; ++run) {
    RecordingSink sink;
    Gradients(*engine, Request(batch), sink);
    // The mean moves by 0.1 of the way to (4, 13), the variance to the batch's, 20/3 both.
    EXPECT_THAT(Elements(sink.changes[3]), ElementsAre(FloatNear(0.4, 1e-5), FloatNear(0.3, 1e-5)));
    EXPECT_THAT(Elements(sink.changes[4]),
                ElementsAre(FloatNear(17.0 / 30, 1e-5), FloatNear(17.0 / 30, 1e-5)));
    EXPECT_THAT(sink.changes, SizeIs(2));  // not the counter
    EXPECT_THAT(Elements(*engine->GetTensor(Buffer::kCurrent, 3)), ElementsAre(0, 10));
    EXPECT_THAT(Elements<int64_t>(*engine->GetTensor(Buffer::kCurrent, 5)), ElementsAre(0));
  }
  GradientRequest halves = Request(batch);
  halves.microbatch_size = 2;
  RecordingSink sink;
  Gradients(*engine, halves, sink);
  EXPECT_THAT(Elements(sink.changes[3]), ElementsAre(FloatNear(0.8, 1e-5), FloatNear(0.6, 1e-5)));
}

TEST(TorchScriptEngineTest, EvaluationUsesTheRunningStatisticsOfItsVersion) {
  const auto engine = CreateInitialized(Options(Save(NormedModule())));
  const Batch batch = Pairs({1, 12}, {0});
  // Normalised: (1, 2); times (1, 2), plus 0.5.
  EXPECT_NEAR(engine->Evaluate(Buffer::kCurrent, batch)->loss_sum, 5.5 * 5.5, 1e-2);
  for (int i = 0; i < engine->Describe().tensors_size(); ++i) {
    ASSERT_TRUE(engine->SetTensorRange(Buffer::kEvaluation, i, 0, *engine->InitialTensor(i)).ok());
  }
  ASSERT_TRUE(engine->SetTensorRange(Buffer::kEvaluation, 3, 0, BytesOf<float>({1, 12})).ok());
  EXPECT_NEAR(engine->Evaluate(Buffer::kEvaluation, batch)->loss_sum, 0.25, 1e-4);
  EXPECT_NEAR(engine->Evaluate(Buffer::kCurrent, batch)->loss_sum, 5.5 * 5.5, 1e-2);
}

TEST(TorchScriptEngineTest, ReportsAParameterThatTheLossDoesNotDependOn) {
  ScriptModule module = LinearModule();
  module.tensors.push_back({"unused", kParameter, {3}, {1, 2, 3}, ""});
  const auto engine = CreateInitialized(Options(Save(module)));
  RecordingSink sink;
  Gradients(*engine, Request(Pairs({1, 1}, {0})), sink);
  EXPECT_THAT(sink.gradients, SizeIs(2));
  EXPECT_THAT(sink.without, ElementsAre(2));
}

TEST(TorchScriptEngineTest, FrozenParameterIsStateButNotTrained) {
  ScriptModule module = LinearModule();
  module.tensors[1].kind = ScriptTensor::kFrozenParameter;
  const auto engine = CreateInitialized(Options(Save(module)));
  EXPECT_THAT(Layout(*engine), ElementsAre("weight PARAMETER FLOAT32", "bias BUFFER FLOAT32"));
  RecordingSink sink;
  Gradients(*engine, Request(Pairs({1, 1}, {0})), sink);
  EXPECT_THAT(sink.gradients, SizeIs(1));
  EXPECT_THAT(sink.changes, SizeIs(0));
}

TEST(TorchScriptEngineTest, TensorWithTwoNamesIsOneTensor) {
  ScriptModule module;
  module.tensors = {{"first", kParameter, {1, 2}, {1, 2}, ""},
                    {"second", kParameter, {}, {}, "first"}};
  module.source = R"(
def forward(self, x):
    return torch.linear(x, self.first) + torch.linear(x, self.second)
)";
  const auto engine = CreateInitialized(Options(Save(module)));
  EXPECT_THAT(Layout(*engine), ElementsAre("first PARAMETER FLOAT32"));
  EXPECT_THAT(engine->Extras().aliases, ElementsAre(Pair("second", "first")));
  ASSERT_TRUE(engine->SetTensorRange(Buffer::kIncoming, 0, 0, BytesOf<float>({3, 0})).ok());
  ASSERT_TRUE(engine->Adopt().ok());
  RecordingSink sink;
  EXPECT_FLOAT_EQ(Gradients(*engine, Request(Pairs({1, 0}, {0})), sink).loss_sum, 36);
  EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(24, 0));
}

TEST(TorchScriptEngineTest, OtherIntegerBuffersKeepTheFilesValues) {
  ScriptModule module = LinearModule();
  module.tensors.push_back({"order", ScriptTensor::kIntegerBuffer, {2}, {1, 0}, ""});
  module.source = R"(
def forward(self, x):
    return torch.linear(torch.index_select(x, 1, self.order), self.weight, self.bias)
)";
  const auto engine = CreateInitialized(Options(Save(module)));
  EXPECT_THAT(Layout(*engine), SizeIs(2));
  EXPECT_FLOAT_EQ(engine->Evaluate(Buffer::kCurrent, Pairs({0, 3}, {3.5}))->loss_sum, 0);
}

TEST(TorchScriptEngineTest, ConstantsAreExtrasOfTheStateDict) {
  ScriptModule module = LinearModule();
  module.tensors.push_back({"order", ScriptTensor::kIntegerBuffer, {2}, {1, 0}, ""});
  module.tensors.push_back({"mask", ScriptTensor::kBoolBuffer, {1, 2}, {1, 0}, ""});
  const auto engine = CreateInitialized(Options(Save(module)));
  const StateDictExtras extras = engine->Extras();
  ASSERT_THAT(extras.constants, SizeIs(2));
  EXPECT_EQ(extras.constants[0].name, "order");
  EXPECT_EQ(extras.constants[0].dtype, v1::INT64);
  EXPECT_THAT(Elements<int64_t>(extras.constants[0].bytes), ElementsAre(1, 0));
  EXPECT_EQ(extras.constants[1].name, "mask");
  EXPECT_EQ(extras.constants[1].other_type, "BOOL");
  EXPECT_THAT(extras.constants[1].shape, ElementsAre(1, 2));
  EXPECT_THAT(Elements<char>(extras.constants[1].bytes), ElementsAre(1, 0));
}

TEST(TorchScriptEngineTest, DropoutInAScriptIsSeededToo) {
  ScriptModule module = LinearModule();
  module.source = R"(
def forward(self, x):
    return torch.linear(torch.dropout(x, 0.5, bool(self.training)), self.weight, self.bias)
)";
  const auto engine = CreateInitialized(Options(Save(module)));
  const Batch batch = Pairs(std::vector<float>(200, 1), std::vector<float>(100, 0));
  const auto loss = [&](uint64_t step) {
    GradientRequest request = Request(batch);
    request.step = step;
    RecordingSink sink;
    return Gradients(*engine, request, sink).loss_sum;
  };
  const double once = loss(1);
  EXPECT_NE(loss(2), once);
  EXPECT_EQ(loss(1), once);
}

TEST(TorchScriptEngineTest, FailureOfModelReturnsItsMessageAndKeepsTheEngineUsable) {
  ScriptModule module = LinearModule();
  module.source = R"(
def forward(self, x):
    assert x.size(0) != 3, "three is too many"
    return torch.linear(x, self.weight, self.bias)
)";
  const auto engine = CreateInitialized(Options(Save(module)));
  const Batch three = Pairs({1, 1, 1, 1, 1, 1}, {0, 0, 0});
  RecordingSink failed;
  ExpectRefused(engine->ComputeGradients(Request(three), failed).status(),
                absl::StatusCode::kFailedPrecondition, "three is too many");
  Batch wide = Pairs({1, 1, 1}, {0});
  wide.shape = {3};
  ExpectRefused(engine->Evaluate(Buffer::kCurrent, wide).status(),
                absl::StatusCode::kFailedPrecondition, "the model fails: RuntimeError: mat1");
  RecordingSink sink;
  EXPECT_FLOAT_EQ(Gradients(*engine, Request(Pairs({1, 1, 2, 0}, {3, 4})), sink).loss_sum, 2.5);
}

TEST(TorchScriptEngineTest, RejectsFilesThatAreNotModulesByName) {
  const std::string directory = MakeTestDirectory();
  ExpectFileRefused(directory + "/missing.pt", absl::StatusCode::kNotFound, "cannot be read");
  ExpectFileRefused(directory, absl::StatusCode::kInvalidArgument, "is not a file");
  for (const char* content : {"", "PK\3\4", "import torch\n"}) {
    ExpectFileRefused(WriteTestFile(directory, "text.pt", content),
                      absl::StatusCode::kInvalidArgument, "is not a TorchScript file");
  }
  WriteTensorFile(directory + "/tensor.pt");
  ExpectFileRefused(directory + "/tensor.pt", absl::StatusCode::kInvalidArgument,
                    "it looks like torch.save of a state_dict");
  const std::string truncated = Save(LinearModule());
  std::filesystem::resize_file(truncated, std::filesystem::file_size(truncated) / 2);
  ExpectFileRefused(truncated, absl::StatusCode::kInvalidArgument, "is not a TorchScript file");
  ExpectRefused(CreateTorchEngine(Options("")).status(), absl::StatusCode::kInvalidArgument,
                "model.path is not set");
}

TEST(TorchScriptEngineTest, NamesMissingOperatorAndTheLinkedLibTorch) {
  const std::string path = Save(LinearModule());
  ReplaceInScript(path, "torch.linear(", "torch.linear_of_tomorrow(");
  const absl::Status status = CreateTorchEngine(Options(path)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(path), HasSubstr("operator aten::linear_of_tomorrow"),
                    HasSubstr(absl::StrCat("LibTorch ", TorchVersion()))));
}

TEST(TorchScriptEngineTest, NamesOperatorOfLaterReleaseAndTheLibTorchThatHasIt) {
  if (!absl::StartsWith(TorchVersion(), "1.")) GTEST_SKIP() << "LibTorch here has the operator";
  const std::string path = Save(LinearModule());
  ReplaceInScript(path, "torch.linear(", "torch.scaled_dot_product_attention(");
  const absl::Status status = CreateTorchEngine(Options(path)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("operator aten::scaled_dot_product_attention"),
                    HasSubstr("use a build with LibTorch 2.0 or later, which has it")));
}

TEST(TorchScriptEngineTest, RejectsModulesThatCannotBeTrained) {
  ScriptModule silent = LinearModule();
  silent.source = "def run(self, x):\n    return x\n";
  ExpectFileRefused(Save(silent), absl::StatusCode::kInvalidArgument, "has no method 'forward'");
  ScriptModule frozen = LinearModule();
  for (ScriptTensor& tensor : frozen.tensors) tensor.kind = ScriptTensor::kFrozenParameter;
  ExpectFileRefused(Save(frozen), absl::StatusCode::kInvalidArgument,
                    "no parameter that requires a gradient");
  TorchEngineOptions options = Options(Save(LinearModule()));
  options.model.set_dtype(v1::FLOAT64);
  ExpectRefused(CreateTorchEngine(options).status(), absl::StatusCode::kInvalidArgument,
                "model.dtype is for built-in models");
  options.model.clear_dtype();
  (*options.model.mutable_dimensions())["in"] = 2;
  ExpectRefused(CreateTorchEngine(options).status(), absl::StatusCode::kInvalidArgument,
                "model.dimensions are for built-in models");
}

TEST(ExportTorchScriptTest, FileLoadsWithTheGivenValues) {
  const std::string source = Save(NormedModule());
  const std::string target = MakeTestDirectory() + "/trained.pt";
  const auto engine = CreateInitialized(Options(source));
  std::vector<SafetensorsArray> tensors;
  for (int i = 0; i < engine->Describe().tensors_size(); ++i) {
    const v1::TensorSpec& spec = engine->Describe().tensors(i);
    tensors.push_back({spec.name(),
                       spec.dtype(),
                       {spec.shape().begin(), spec.shape().end()},
                       *engine->InitialTensor(i)});
  }
  tensors[3].bytes = BytesOf<float>({1, 10});  // norm.running_mean
  tensors[6].bytes = BytesOf<float>({3, 4});   // fc.weight
  ASSERT_TRUE(ExportTorchScript(source, tensors, target).ok());
  EXPECT_THAT(RunScript(target, {2, 11}), ElementsAre(FloatNear(7.5, 1e-3)));
  EXPECT_THAT(RunScript(source, {2, 11}), ElementsAre(FloatNear(4.5, 1e-3)));
}

TEST(ExportTorchScriptTest, NamesTensorsThatDoNotFitAndWritesNothing) {
  const std::string source = Save(LinearModule());
  const std::string target = MakeTestDirectory() + "/trained.pt";
  const SafetensorsArray weight = {"weight", v1::FLOAT32, {1, 2}, BytesOf<float>({1, 2})};
  const SafetensorsArray bias = {"bias", v1::FLOAT32, {1}, BytesOf<float>({1})};
  const struct {
    std::vector<SafetensorsArray> tensors;
    const char* message;
  } kCases[] = {
      {{weight}, "has a tensor 'bias', which is not among the given ones"},
      {{weight, bias, {"more"}}, "tensor 'more' is not in"},
      {{weight, bias, bias}, "tensor 'bias' is given twice"},
      {{weight, {"bias", v1::FLOAT32, {2}, weight.bytes}}, "tensor 'bias' is F32[2]: "},
      {{{"weight", v1::FLOAT32, {2, 1}, weight.bytes}, bias}, " has F32[1, 2]"},
      // As many bytes as the model's tensor has.
      {{weight, {"bias", v1::DATA_TYPE_UNSPECIFIED, {4}, bias.bytes, "I8"}}, "is I8[4]: "},
  };
  for (const auto& c : kCases) {
    ExpectRefused(ExportTorchScript(source, c.tensors, target), absl::StatusCode::kInvalidArgument,
                  c.message);
    EXPECT_FALSE(std::filesystem::exists(target));
  }
  EXPECT_FALSE(ExportTorchScript(source, {weight, bias}, "/nowhere/trained.pt").ok());
}

// A score for each of two features, which are rows of a table.
ScriptModule ScoredModule(const std::string& sparse) {
  ScriptModule module;
  module.tensors = {{"scores", kParameter, {5, 1}, {1, 2, 3, 4, 5}, ""}};
  module.source = absl::StrCat(R"(
def forward(self, x):
    return torch.embedding(self.scores, x.long(), -1, False, )",
                               sparse, R"().sum(1)
)");
  return module;
}

TEST(TorchScriptEngineTest, GradientOfEmbeddingTableHasTheRowsOfTheBatch) {
  const Batch batch = Pairs({0, 4, 4, 2}, {0, 0});
  for (const std::string sparse : {"False", "True"}) {
    const auto engine = CreateInitialized(Options(Save(ScoredModule(sparse))));
    EXPECT_THAT(engine->RowTensors(), ElementsAre(0));
    const auto rows = engine->RowsOf(batch);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_THAT(rows->at(0), ElementsAre(0, 2, 4));
    RecordingSink sink;
    Gradients(*engine, Request(batch), sink);
    EXPECT_TRUE(sink.gradients.empty());
    const auto& [named, values] = sink.row_gradients[0];
    EXPECT_THAT(named, ElementsAre(0, 2, 4));
    // Gradients of the squares of 1 + 5 and 5 + 3: twice the error for each mention.
    EXPECT_THAT(Elements(values), ElementsAre(12, 16, 28));
  }
}

TEST(TorchScriptEngineTest, RejectsARowThatATableDoesNotHave) {
  const auto engine = CreateInitialized(Options(Save(ScoredModule("False"))));
  for (const auto& [row, text] : {std::make_pair(5.0F, "row 5"), std::make_pair(-1.0F, "row -1")}) {
    ExpectRefused(
        engine->RowsOf(Pairs({0, row}, {0})).status(), absl::StatusCode::kInvalidArgument,
        absl::StrCat(text, ", which the batch names, is not in [0, 5), the rows of 'scores'"));
  }
}

TEST(TorchScriptEngineTest, BatchOfAnotherShapeNamesNoRows) {
  const auto engine = CreateInitialized(Options(Save(ScoredModule("False"))));
  Batch batch = Pairs({0, 1}, {0});
  batch.features.pop_back();
  ExpectRefused(engine->RowsOf(batch).status(), absl::StatusCode::kInvalidArgument,
                "the model takes data");
}

}  // namespace
}  // namespace sluice
