// The engine with built-in models.
#include "services/worker/compute/torch_engine.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/compute/testing/recording_sink.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/dataset.h"
#include "services/worker/data/testing/data_files.h"

namespace sluice {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using ::testing::SizeIs;

using Buffer = ComputeEngine::Buffer;

TorchEngineOptions Named(const std::string& name,
                         const std::vector<std::pair<std::string, int64_t>>& dimensions = {}) {
  TorchEngineOptions options;
  options.model.set_name(name);
  for (const auto& [key, value] : dimensions) (*options.model.mutable_dimensions())[key] = value;
  options.seed = 1;
  return options;
}

std::unique_ptr<ComputeEngine> Create(const TorchEngineOptions& options) {
  absl::StatusOr<std::unique_ptr<ComputeEngine>> engine = CreateTorchEngine(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? *std::move(engine) : nullptr;
}

// Version 0 as a worker would receive it.
std::unique_ptr<ComputeEngine> CreateInitialized(const TorchEngineOptions& options) {
  std::unique_ptr<ComputeEngine> engine = Create(options);
  for (int i = 0; i < engine->Describe().tensors_size(); ++i) {
    EXPECT_TRUE(engine->SetTensorRange(Buffer::kIncoming, i, 0, *engine->InitialTensor(i)).ok());
  }
  EXPECT_TRUE(engine->Adopt().ok());
  return engine;
}

template <typename T>
void Set(ComputeEngine& engine, Buffer buffer, uint32_t tensor, const std::vector<T>& values) {
  EXPECT_TRUE(engine.SetTensorRange(buffer, tensor, 0, BytesOf(values)).ok());
}

Batch MakeBatch(std::vector<int64_t> shape, std::vector<float> features,
                std::vector<int64_t> classes) {
  Batch batch;
  batch.samples = classes.size();
  batch.shape = std::move(shape);
  batch.features = std::move(features);
  batch.classes = std::move(classes);
  return batch;
}

// Images that differ.
Batch Images(uint64_t samples) {
  Batch batch;
  batch.samples = samples;
  batch.shape = {1, 28, 28};
  for (uint64_t i = 0; i < samples * 784; ++i) {
    batch.features.push_back(static_cast<float>(i * 7919 % 256) / 256);
  }
  for (uint64_t i = 0; i < samples; ++i) batch.classes.push_back(static_cast<int64_t>(i * 3 % 10));
  return batch;
}

Batch Part(const Batch& batch, uint64_t begin, uint64_t end) {
  const uint64_t elements = batch.features.size() / batch.samples;
  Batch part;
  part.samples = end - begin;
  part.shape = batch.shape;
  part.features.assign(batch.features.begin() + begin * elements,
                       batch.features.begin() + end * elements);
  part.classes.assign(batch.classes.begin() + begin, batch.classes.begin() + end);
  return part;
}

GradientRequest Request(const Batch& batch, Reduction reduction = Reduction::kSumOfSamples) {
  GradientRequest request;
  request.microbatch_size = batch.samples;
  request.batch = &batch;
  request.reduction = reduction;
  return request;
}

BatchMetrics Gradients(ComputeEngine& engine, const GradientRequest& request, RecordingSink& sink) {
  const absl::StatusOr<BatchMetrics> metrics = engine.ComputeGradients(request, sink);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return metrics.value_or(BatchMetrics());
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

std::string Layout(const TorchEngineOptions& options) {
  const std::unique_ptr<ComputeEngine> engine = Create(options);
  std::vector<std::string> lines;
  for (const v1::TensorSpec& tensor : engine->Describe().tensors()) {
    EXPECT_EQ(tensor.kind(), v1::PARAMETER);
    lines.push_back(absl::StrCat(tensor.name(), " ", absl::StrJoin(tensor.shape(), "x")));
  }
  return absl::StrJoin(lines, ", ");
}

TEST(TorchEngineTest, BuiltInModelsHaveTheNamesAndShapesOfTheirStateDictInPyTorch) {
  EXPECT_EQ(Layout(Named("convnet")),
            "conv.weight 3x1x3x3, conv.bias 3, fc.weight 10x192, fc.bias 10");
  EXPECT_EQ(Layout(Named("mnist-net")),
            "conv1.weight 32x1x3x3, conv1.bias 32, conv2.weight 64x32x3x3, conv2.bias 64, "
            "fc1.weight 128x9216, fc1.bias 128, fc2.weight 10x128, fc2.bias 10");
  EXPECT_EQ(Layout(Named("mlp")),
            "fc1.weight 256x784, fc1.bias 256, fc2.weight 10x256, fc2.bias 10");
  EXPECT_EQ(Layout(Named("mlp", {{"in", 4}, {"hidden", 3}, {"out", 2}})),
            "fc1.weight 3x4, fc1.bias 3, fc2.weight 2x3, fc2.bias 2");
  EXPECT_EQ(Layout(Named("linear", {{"in", 8}})), "weight 1x8, bias 1");
  EXPECT_EQ(Layout(Named("logistic", {{"in", 8}})), "weight 1x8, bias 1");
  EXPECT_EQ(Layout(Named("additive", {{"dim", 10}})), "w 10");
}

TEST(TorchEngineTest, UnsetDimensionsComeFromTheData) {
  TorchEngineOptions options = Named("linear");
  options.sample_shape = {2, 3};
  options.outputs = 4;
  EXPECT_EQ(Layout(options), "weight 4x6, bias 4");
  options.model.set_name("mlp");
  EXPECT_EQ(Layout(options), "fc1.weight 256x6, fc1.bias 256, fc2.weight 4x256, fc2.bias 4");
}

TEST(TorchEngineTest, InitialValuesAreWithinPyTorchsBoundsAndDependOnlyOnTheSeed) {
  const auto engine = Create(Named("mnist-net"));
  const auto again = Create(Named("mnist-net"));
  TorchEngineOptions other_options = Named("mnist-net");
  other_options.seed = 2;
  const auto other = Create(other_options);
  const double fan_in[] = {9, 9, 288, 288, 9216, 9216, 128, 128};
  for (int i = 0; i < 8; ++i) {
    const std::vector<float> values = Elements(*engine->InitialTensor(i));
    const float largest = *std::max_element(values.begin(), values.end());
    EXPECT_LE(largest, 1 / std::sqrt(fan_in[i]));
    EXPECT_GT(largest, 0.6 / std::sqrt(fan_in[i]));
    EXPECT_EQ(Elements(*again->InitialTensor(i)), values);
    EXPECT_NE(Elements(*other->InitialTensor(i)), values);
  }
  ExpectRefused(engine->InitialTensor(8).status(), absl::StatusCode::kOutOfRange, "tensor 8 of 8");
}

TEST(TorchEngineTest, DtypeChangesTheFormatOfValuesAndNotTheValues) {
  TorchEngineOptions options = Named("linear", {{"in", 3}});
  const std::vector<float> single = Elements(*Create(options)->InitialTensor(0));
  options.model.set_dtype(v1::FLOAT64);
  const auto engine = Create(options);
  EXPECT_EQ(engine->Describe().tensors(0).dtype(), v1::FLOAT64);
  const std::vector<double> twice = Elements<double>(*engine->InitialTensor(0));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(static_cast<float>(twice[i]), single[i]);
}

TEST(TorchEngineTest, LossAndGradientOfLinearModelMatchHandComputedValues) {
  const auto engine = Create(Named("linear", {{"in", 2}}));
  Set<float>(*engine, Buffer::kIncoming, 0, {1, 2});
  Set<float>(*engine, Buffer::kIncoming, 1, {0.5});
  ASSERT_TRUE(engine->Adopt().ok());
  Batch batch = MakeBatch({2}, {1, 1, 2, 0}, {});
  batch.samples = 2;
  batch.targets = {3, 4};
  batch.target_width = 1;
  RecordingSink sink;
  const BatchMetrics metrics = Gradients(*engine, Request(batch), sink);
  // Outputs 3.5 and 2.5, errors 0.5 and -1.5.
  EXPECT_FLOAT_EQ(metrics.loss_sum, 0.25 + 2.25);
  EXPECT_EQ(metrics.samples, 2u);
  EXPECT_FALSE(metrics.has_correct);
  EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(2 * 0.5 - 2 * 1.5 * 2, 2 * 0.5));
  EXPECT_THAT(Elements(sink.gradients[1]), ElementsAre(2 * 0.5 - 2 * 1.5));
}

TEST(TorchEngineTest, LossOfConvnetMatchesHandComputedValue) {
  const auto engine = Create(Named("convnet"));
  // Channel c of the convolution gives 9 (c + 1) - 10 everywhere on an image of ones: -1, 8, 17;
  // relu leaves 0, 8, 17, 64 times each. Only class 1 uses channel 1.
  std::vector<float> kernel(9, 1);
  for (const float value : {2.0F, 3.0F}) kernel.insert(kernel.end(), 9, value);
  Set<float>(*engine, Buffer::kIncoming, 0, kernel);
  Set<float>(*engine, Buffer::kIncoming, 1, {-10, -10, -10});
  std::vector<float> weight(1920);
  for (int i = 64; i < 128; ++i) weight[192 + i] = 1.0f / 512;
  Set<float>(*engine, Buffer::kIncoming, 2, weight);
  std::vector<float> bias(10);
  bias[2] = 2;
  Set<float>(*engine, Buffer::kIncoming, 3, bias);
  ASSERT_TRUE(engine->Adopt().ok());
  const Batch batch = MakeBatch({1, 28, 28}, std::vector<float>(3 * 784, 1), {1, 2, 0});
  const BatchMetrics metrics = *engine->Evaluate(Buffer::kCurrent, batch);
  // Logits: 1 of class 1 (64 * 8 / 512), 2 of class 2, 0 of the others.
  const double log_sum = std::log(8 + std::exp(1.0) + std::exp(2.0));
  EXPECT_NEAR(metrics.loss_sum, 3 * log_sum - 1 - 2, 1e-4);
  EXPECT_TRUE(metrics.has_correct);
  EXPECT_EQ(metrics.correct, 1u);
}

TEST(TorchEngineTest, EveryGradientIsDeliveredOnceAndTheLastLayersFirst) {
  for (const char* name : {"convnet", "mnist-net", "mlp"}) {
    const auto engine = CreateInitialized(Named(name));
    const Batch batch = Images(4);
    RecordingSink sink;
    const BatchMetrics metrics = Gradients(*engine, Request(batch), sink);
    EXPECT_EQ(metrics.samples, 4u);
    EXPECT_GT(metrics.loss_sum, 0);
    EXPECT_THAT(sink.gradients, SizeIs(engine->Describe().tensors_size()));
    EXPECT_THAT(sink.without, SizeIs(0));
    EXPECT_THAT(sink.changes, SizeIs(0));
    for (const auto& [tensor, gradient] : sink.gradients) {
      EXPECT_EQ(gradient.size(), engine->GetTensor(Buffer::kCurrent, tensor)->size());
    }
    // In the order of the backward pass, not when all are complete.
    EXPECT_GE(sink.order.front(), sink.gradients.size() - 2);
    EXPECT_LT(sink.order.back(), 2u);
  }
}

TEST(TorchEngineTest, GradientsOfMicrobatchesAddUpToTheWholeBatchs) {
  const auto engine = CreateInitialized(Named("convnet"));
  const Batch batch = Images(12);
  RecordingSink whole;
  const BatchMetrics metrics = Gradients(*engine, Request(batch), whole);
  std::map<uint32_t, std::vector<float>> sums;
  double loss_sum = 0;
  for (uint64_t begin = 0; begin < 12; begin += 4) {
    const Batch part = Part(batch, begin, begin + 4);
    RecordingSink sink;
    loss_sum += Gradients(*engine, Request(part), sink).loss_sum;
    for (const auto& [tensor, gradient] : sink.gradients) {
      const std::vector<float> values = Elements(gradient);
      std::vector<float>& sum = sums[tensor];
      sum.resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
    }
  }
  EXPECT_NEAR(loss_sum, metrics.loss_sum, 1e-4);
  for (const auto& [tensor, sum] : sums) {
    EXPECT_THAT(Elements(whole.gradients[tensor]), Pointwise(FloatNear(1e-4), sum));
  }
}

TEST(TorchEngineTest, SeveralMicrobatchesAtOnceGiveTheSumOfTheirMeans) {
  const auto engine = CreateInitialized(Named("mlp"));
  const Batch batch = Images(10);
  GradientRequest request = Request(batch, Reduction::kSumOfMicrobatchMeans);
  request.microbatch_size = 4;  // 4, 4, 2
  RecordingSink together;
  const BatchMetrics metrics = Gradients(*engine, request, together);
  std::vector<float> sum(10);
  double loss_sum = 0;
  for (uint64_t begin : {0, 4, 8}) {
    const Batch part = Part(batch, begin, std::min<uint64_t>(begin + 4, 10));
    RecordingSink sink;
    loss_sum += Gradients(*engine, Request(part), sink).loss_sum;
    const std::vector<float> bias = Elements(sink.gradients[3]);
    for (int i = 0; i < 10; ++i) sum[i] += bias[i] / static_cast<float>(part.samples);
  }
  EXPECT_NEAR(metrics.loss_sum, loss_sum, 1e-4);
  EXPECT_THAT(Elements(together.gradients[3]), Pointwise(FloatNear(1e-5), sum));
}

TEST(TorchEngineTest, GradientDoesNotChangeLater) {
  auto engine = CreateInitialized(Named("mlp"));
  const Batch batch = Images(8);
  RecordingSink first;
  Gradients(*engine, Request(batch), first);
  const std::vector<float> before = Elements(first.gradients[0]);
  for (int step = 1; step < 5; ++step) {
    const Batch other = Images(8 + step);
    RecordingSink sink;
    Gradients(*engine, Request(other), sink);
  }
  EXPECT_EQ(Elements(first.gradients[0]), before);
  engine.reset();
  EXPECT_EQ(Elements(first.gradients[0]), before);
}

TEST(TorchEngineTest, DropoutDependsOnlyOnSeedStepAndMicrobatch) {
  const auto engine = CreateInitialized(Named("mnist-net"));
  const Batch batch = Images(2);
  const auto gradient = [&](ComputeEngine& of, uint64_t step, uint64_t microbatch) {
    GradientRequest request = Request(batch);
    request.step = step;
    request.first_microbatch = microbatch;
    RecordingSink sink;
    Gradients(of, request, sink);
    return Elements(sink.gradients[4]);
  };
  const std::vector<float> once = gradient(*engine, 5, 2);
  EXPECT_NE(gradient(*engine, 6, 2), once);
  EXPECT_NE(gradient(*engine, 5, 3), once);
  EXPECT_EQ(gradient(*CreateInitialized(Named("mnist-net")), 5, 2), once);
  EXPECT_EQ(gradient(*engine, 5, 2), once);
}

TEST(TorchEngineTest, EvaluationHasNoDropout) {
  const auto engine = CreateInitialized(Named("mnist-net"));
  const Batch batch = Images(16);
  const BatchMetrics once = *engine->Evaluate(Buffer::kCurrent, batch);
  RecordingSink sink;
  Gradients(*engine, Request(batch), sink);
  EXPECT_EQ(engine->Evaluate(Buffer::kCurrent, batch)->loss_sum, once.loss_sum);
}

TEST(TorchEngineTest, ComputesOnTheAdoptedVersion) {
  const auto engine = Create(Named("linear", {{"in", 1}}));
  Batch batch = MakeBatch({1}, {1}, {});
  batch.samples = 1;
  batch.targets = {0};
  batch.target_width = 1;
  const auto loss = [&](Buffer buffer) { return engine->Evaluate(buffer, batch)->loss_sum; };
  EXPECT_EQ(loss(Buffer::kCurrent), 0);
  Set<float>(*engine, Buffer::kIncoming, 0, {3});
  EXPECT_EQ(loss(Buffer::kCurrent), 0);
  ASSERT_TRUE(engine->Adopt().ok());
  EXPECT_EQ(loss(Buffer::kCurrent), 9);
  Set<float>(*engine, Buffer::kIncoming, 0, {4});
  EXPECT_EQ(loss(Buffer::kCurrent), 9);
  ASSERT_TRUE(engine->Adopt().ok());
  EXPECT_EQ(loss(Buffer::kCurrent), 16);
}

TEST(TorchEngineTest, EvaluatesAVersionWhileAnotherOneTrains) {
  const auto engine = Create(Named("linear", {{"in", 1}}));
  Batch batch = MakeBatch({1}, {1}, {});
  batch.samples = 1;
  batch.targets = {0};
  batch.target_width = 1;
  ExpectRefused(engine->Evaluate(Buffer::kEvaluation, batch).status(),
                absl::StatusCode::kFailedPrecondition, "no version to evaluate");
  Set<float>(*engine, Buffer::kEvaluation, 0, {5});
  Set<float>(*engine, Buffer::kIncoming, 0, {2});
  ASSERT_TRUE(engine->Adopt().ok());
  EXPECT_EQ(engine->Evaluate(Buffer::kEvaluation, batch)->loss_sum, 25);
  RecordingSink sink;
  Gradients(*engine, Request(batch), sink);
  EXPECT_THAT(Elements(sink.gradients[0]), ElementsAre(4));
  EXPECT_THAT(Elements(*engine->GetTensor(Buffer::kEvaluation, 0)), ElementsAre(5));
  ExpectRefused(engine->Evaluate(Buffer::kIncoming, batch).status(),
                absl::StatusCode::kInvalidArgument, "before it is adopted");
}

TEST(TorchEngineTest, UpdateOfAdditiveModelTakesNoData) {
  Batch batch;
  batch.samples = 1;
  const auto engine = CreateInitialized(Named("additive", {{"dim", 3000}}));
  EXPECT_EQ(Elements(*engine->GetTensor(Buffer::kCurrent, 0))[1025], 1.0f / 1024);
  RecordingSink sink;
  const BatchMetrics metrics = Gradients(*engine, Request(batch), sink);
  EXPECT_EQ(metrics.samples, 1u);
  EXPECT_EQ(metrics.loss_sum, 0);
  const std::vector<float> update = Elements(sink.gradients[0]);
  ASSERT_EQ(update.size(), 3000u);
  for (int i = 0; i < 3000; ++i) {
    EXPECT_EQ(update[i], 1e-3f * (static_cast<float>(i % 1024) / 1024) + 1);
  }
  // A shard divides by the samples, or by the microbatches.
  batch.samples = 6;
  GradientRequest request = Request(batch);
  request.microbatch_size = 4;
  RecordingSink samples;
  Gradients(*engine, request, samples);
  EXPECT_EQ(Elements(samples.gradients[0])[0], 6);
  request.reduction = Reduction::kSumOfMicrobatchMeans;
  RecordingSink microbatches;
  Gradients(*engine, request, microbatches);
  EXPECT_EQ(Elements(microbatches.gradients[0])[0], 2);
  EXPECT_EQ(engine->Evaluate(Buffer::kCurrent, batch)->samples, 6u);
}

TEST(TorchEngineTest, AdditiveModelWorksInDoublePrecision) {
  TorchEngineOptions options = Named("additive", {{"dim", 2}});
  options.model.set_dtype(v1::FLOAT64);
  const auto engine = CreateInitialized(options);
  Batch batch;
  batch.samples = 1;
  RecordingSink sink;
  Gradients(*engine, Request(batch), sink);
  EXPECT_THAT(Elements<double>(sink.gradients[0]), ElementsAre(1, 1e-3 / 1024 + 1));
}

TEST(TorchEngineTest, LowPrecisionModelsTrain) {
  TorchEngineOptions options = Named("mlp");
  options.model.set_dtype(v1::BFLOAT16);
  const auto engine = CreateInitialized(options);
  const Batch batch = Images(4);
  RecordingSink sink;
  EXPECT_NEAR(Gradients(*engine, Request(batch), sink).loss_sum / 4, std::log(10.0), 0.5);
  EXPECT_EQ(sink.gradients[0].size(), 2u * 256 * 784);
}

TEST(TorchEngineTest, RejectsBatchesThatDoNotFitWithTheReason) {
  const auto engine = CreateInitialized(Named("convnet"));
  Batch unlabelled = Images(2);
  unlabelled.classes.clear();
  Batch eleven = Images(2);
  eleven.classes[1] = 10;
  const struct {
    Batch batch;
    const char* message;
  } kCases[] = {
      {MakeBatch({1, 2, 2}, {0, 0, 0, 0}, {1}),
       "a sample has shape [1, 2, 2], and the model takes [1, 28, 28]"},
      {Batch(), "the batch is empty"},
      {MakeBatch({}, {}, {1}), "the model takes data"},
      {unlabelled, "no label for each sample"},
      {eleven, "label 10 of sample 1"},
  };
  for (const auto& c : kCases) {
    GradientRequest request = Request(c.batch);
    request.microbatch_size = 1;
    RecordingSink sink;
    ExpectRefused(engine->ComputeGradients(request, sink).status(),
                  absl::StatusCode::kInvalidArgument, c.message);
    EXPECT_THAT(sink.gradients, SizeIs(0));
    ExpectRefused(engine->Evaluate(Buffer::kCurrent, c.batch).status(),
                  absl::StatusCode::kInvalidArgument, c.message);
  }
}

TEST(TorchEngineTest, RejectsImpossibleOptionsNamingTheField) {
  const auto with = [](TorchEngineOptions options, auto change) {
    change(options);
    return options;
  };
  const struct {
    TorchEngineOptions options;
    absl::StatusCode code;
    const char* message;
  } kCases[] = {
      {Named("resnet"), absl::StatusCode::kInvalidArgument,
       "model.name is 'resnet': should be one of additive, convnet, linear, logistic, "
       "lstm-lm, mlp, mnist-net"},
      {Named("convnet", {{"dim", 3}}), absl::StatusCode::kInvalidArgument,
       "model.dimensions.dim: convnet has no dimensions to choose"},
      {Named("mlp", {{"width", 3}}), absl::StatusCode::kInvalidArgument,
       "model.dimensions.width: mlp has in, hidden, out"},
      {Named("mlp", {{"hidden", 0}}), absl::StatusCode::kInvalidArgument,
       "model.dimensions.hidden is 0: should be from 1"},
      {Named("additive"), absl::StatusCode::kInvalidArgument, "model.dimensions.dim is not set"},
      {with(Named("mlp"), [](auto& o) { o.loss = "hinge"; }), absl::StatusCode::kInvalidArgument,
       "loss is 'hinge'"},
      {with(Named("mlp"), [](auto& o) { o.loss = "nll"; }), absl::StatusCode::kInvalidArgument,
       "loss is nll, which needs log-probabilities"},
      {with(Named("mlp"), [](auto& o) { o.threads = 0; }), absl::StatusCode::kInvalidArgument,
       "threads is 0"},
      {with(Named("mlp"), [](auto& o) { o.model.set_dtype(v1::FLOAT16); }),
       absl::StatusCode::kInvalidArgument, "'fc1.weight' is float16, in which a CPU"},
      {with(Named("mlp"), [](auto& o) { o.model.set_dtype(v1::INT64); }),
       absl::StatusCode::kInvalidArgument, "model.dtype is INT64"},
      {with(Named("mlp"), [](auto& o) { o.model.set_device("tpu"); }),
       absl::StatusCode::kInvalidArgument, "model.device is 'tpu'"},
      {with(Named("mlp"), [](auto& o) { o.model.set_device("cuda:x"); }),
       absl::StatusCode::kInvalidArgument, "model.device is 'cuda:x'"},
  };
  for (const auto& c : kCases) {
    ExpectRefused(CreateTorchEngine(c.options).status(), c.code, c.message);
  }
}

// Plain gradient descent over one epoch; the fraction of the evaluation data that is then
// classified rightly.
double Train(ComputeEngine& engine, const v1::DataSpec& spec, uint64_t batch_size, float rate) {
  const auto training = *OpenDataset(spec, Split::kTraining);
  const int tensors = engine.Describe().tensors_size();
  for (uint64_t begin = 0; begin + batch_size <= training->info().samples; begin += batch_size) {
    std::vector<uint64_t> indices(batch_size);
    std::iota(indices.begin(), indices.end(), begin);
    const Batch batch = *training->Read(indices);
    RecordingSink sink;
    Gradients(engine, Request(batch), sink);
    for (int i = 0; i < tensors; ++i) {
      std::vector<float> values = Elements(*engine.GetTensor(Buffer::kCurrent, i));
      const std::vector<float> gradient = Elements(sink.gradients[i]);
      for (size_t j = 0; j < values.size(); ++j) values[j] -= rate * gradient[j] / batch_size;
      Set(engine, Buffer::kIncoming, i, values);
    }
    EXPECT_TRUE(engine.Adopt().ok());
  }
  const auto evaluation = *OpenDataset(spec, Split::kEvaluation);
  std::vector<uint64_t> all(evaluation->info().samples);
  std::iota(all.begin(), all.end(), 0);
  const BatchMetrics metrics = *engine.Evaluate(Buffer::kCurrent, *evaluation->Read(all));
  return static_cast<double>(metrics.correct) / metrics.samples;
}

TEST(TorchEngineTest, LogisticRegressionLearnsSeparableClasses) {
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::SYNTHETIC);
  spec.mutable_synthetic()->set_samples(2000);
  spec.mutable_synthetic()->add_shape(16);
  spec.mutable_synthetic()->set_classes(2);
  const auto engine = CreateInitialized(Named("logistic", {{"in", 16}}));
  EXPECT_GE(Train(*engine, spec, 20, 0.5), 0.99);
}

TEST(TorchEngineTest, ConvnetLearnsMnist) {
  SLUICE_SKIP_WITHOUT_DATA("mnist");
  v1::DataSpec spec;
  spec.set_format(v1::DataSpec::IDX);
  spec.mutable_source()->set_path(FindDataDirectory("mnist"));
  spec.mutable_normalize()->add_mean(0.1307);
  spec.mutable_normalize()->add_std(0.3081);
  const auto engine = CreateInitialized(Named("convnet"));
  EXPECT_GE(Train(*engine, spec, 64, 0.1), 0.93);
}

TEST(TorchEngineTest, GpuComputesTheGradientsOfTheCpu) {
  if (at::getNumGPUs() == 0) GTEST_SKIP() << "there is no GPU, or LibTorch has no CUDA";
  Batch words;
  words.samples = 2;
  words.shape = {4};
  words.class_width = 4;
  words.tokens = {0, 7, 3, 10, 6, 2, 9, 5};
  words.classes = {7, 3, 10, 6, 2, 9, 5, 1};
  const std::pair<TorchEngineOptions, Batch> kCases[] = {
      {Named("mlp"), Images(8)},
      {Named("convnet"), Images(8)},
      {Named("lstm-lm", {{"embedding", 4}, {"hidden", 6}, {"vocabulary", 11}}), words},
  };

  for (const auto& [given, batch] : kCases) {
    TorchEngineOptions options = given;
    options.model.set_dtype(v1::FLOAT64);
    RecordingSink expected;
    const BatchMetrics on_cpu = Gradients(*CreateInitialized(options), Request(batch), expected);
    options.model.set_device("cuda:0");
    RecordingSink found;
    const BatchMetrics on_gpu = Gradients(*CreateInitialized(options), Request(batch), found);

    EXPECT_NEAR(on_gpu.loss_sum, on_cpu.loss_sum, 1e-9);
    EXPECT_EQ(on_gpu.correct, on_cpu.correct);
    ASSERT_EQ(found.gradients.size(), expected.gradients.size());
    for (const auto& [tensor, gradient] : expected.gradients) {
      EXPECT_THAT(Elements<double>(found.gradients[tensor]),
                  Pointwise(::testing::DoubleNear(1e-9), Elements<double>(gradient)))
          << given.model.name() << " " << tensor;
    }
    ASSERT_EQ(found.row_gradients.size(), expected.row_gradients.size());
    for (const auto& [tensor, rows] : expected.row_gradients) {
      EXPECT_EQ(found.row_gradients[tensor].first, rows.first);
      EXPECT_THAT(Elements<double>(found.row_gradients[tensor].second),
                  Pointwise(::testing::DoubleNear(1e-9), Elements<double>(rows.second)));
    }
  }
}

TEST(TorchEngineTest, EngineThatOnlyDescribesNeedsNoGpu) {
  TorchEngineOptions options = Named("mlp");
  options.model.set_device("cuda:63");
  options.model.set_dtype(v1::FLOAT16);
  options.only_describes = true;
  const auto engine = CreateTorchEngine(options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->Describe().tensors(0).dtype(), v1::FLOAT16);
}

TEST(TorchEngineTest, BitExactJobUsesOnlyDeterministicAlgorithms) {
  v1::JobSpec job;
  job.mutable_model()->set_name("mlp");
  job.mutable_training()->set_seed(7);
  Create(EngineOptionsOf(job, 1));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());

  job.mutable_training()->set_bit_exact(true);
  job.mutable_training()->set_kernels(v1::TrainingSpec::NATIVE);  // LibTorch has computed already
  const TorchEngineOptions options = EngineOptionsOf(job, 1);
  EXPECT_EQ(options.seed, 7u);
  Create(options);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
}

}  // namespace
}  // namespace sluice
