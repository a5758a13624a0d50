// The engine with the language model, compared with PyTorch's modules (testing/make_lstm_lm.py).
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/protocol/elements.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/compute/testing/recording_sink.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/data/batch.h"

namespace sluice {
namespace {

using ::testing::HasSubstr;
using Buffer = ComputeEngine::Buffer;
using Json = nlohmann::json;

Json Vectors() {
  std::ifstream file("services/worker/compute/testing/lstm_lm.json");
  return Json::parse(file);
}

TorchEngineOptions Options() {
  TorchEngineOptions options;
  options.model.set_name("lstm-lm");
  options.seed = 1;
  options.tokens = true;
  options.sample_shape = {5};
  return options;
}

TorchEngineOptions SmallOptions(const Json& vectors) {
  TorchEngineOptions options = Options();
  for (const auto& [name, size] : vectors["dimensions"].items()) {
    (*options.model.mutable_dimensions())[name] = size;
  }
  return options;
}

// With the weights of the vectors.
template <typename T>
std::unique_ptr<ComputeEngine> Create(const Json& vectors, v1::DataType dtype) {
  TorchEngineOptions options = SmallOptions(vectors);
  options.model.set_dtype(dtype);
  absl::StatusOr<std::unique_ptr<ComputeEngine>> engine = CreateTorchEngine(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return nullptr;
  for (size_t i = 0; i < vectors["tensors"].size(); ++i) {
    const v1::TensorSpec& tensor = (*engine)->Describe().tensors(static_cast<int>(i));
    const Json& wanted = vectors["tensors"][i];
    EXPECT_EQ(tensor.name(), wanted["name"]);
    EXPECT_EQ(Json(std::vector<int64_t>(tensor.shape().begin(), tensor.shape().end())),
              wanted["shape"]);
    const std::vector<T> values = wanted["values"];
    EXPECT_TRUE((*engine)->SetTensorRange(Buffer::kIncoming, i, 0, BytesOf(values)).ok());
  }
  EXPECT_TRUE((*engine)->Adopt().ok());
  return *std::move(engine);
}

// Batch number `place` of the two streams.
Batch BatchOf(const Json& vectors, uint64_t place) {
  Batch batch;
  batch.samples = 2;
  batch.shape = {vectors["length"]};
  batch.class_width = vectors["length"];
  batch.tokens = vectors["batches"][place]["tokens"].get<std::vector<int64_t>>();
  batch.classes = vectors["batches"][place]["labels"].get<std::vector<int64_t>>();
  batch.places = {{0, place}, {1, place}};
  return batch;
}

struct Computed {
  double loss = 0;
  std::vector<absl::Cord> gradients;
};

Computed Compute(ComputeEngine& engine, const Batch& batch) {
  GradientRequest request;
  request.microbatch_size = batch.samples;
  request.batch = &batch;
  RecordingSink sink;
  const absl::StatusOr<BatchMetrics> metrics = engine.ComputeGradients(request, sink);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  EXPECT_TRUE(sink.without.empty());
  Computed computed;
  computed.loss = metrics.value_or(BatchMetrics()).loss_sum;
  // The embedding's gradient holds only the rows of the batch.
  EXPECT_EQ(sink.row_gradients.size(), 1u);
  const v1::TensorSpec& table = engine.Describe().tensors(0);
  const size_t row_bytes = static_cast<size_t>(table.shape(1)) * ElementBytes(table.dtype());
  std::string whole(static_cast<size_t>(table.shape(0)) * row_bytes, '\0');
  const auto& [rows, values] = sink.row_gradients[0];
  const std::string bytes(values);
  EXPECT_EQ(bytes.size(), rows.size() * row_bytes);
  for (size_t i = 0; i < rows.size(); ++i) {
    whole.replace(rows[i] * row_bytes, row_bytes, bytes, i * row_bytes, row_bytes);
  }
  computed.gradients.emplace_back(whole);
  for (auto& [tensor, gradient] : sink.gradients) computed.gradients.push_back(gradient);
  return computed;
}

template <typename T>
void ExpectPyTorchs(const Json& wanted, const Computed& computed, double tolerance) {
  EXPECT_NEAR(computed.loss, wanted["loss"], tolerance);
  ASSERT_EQ(computed.gradients.size(), wanted["gradients"].size());
  for (size_t i = 0; i < computed.gradients.size(); ++i) {
    const std::vector<T> actual = Elements<T>(computed.gradients[i]);
    const std::vector<double> expected = wanted["gradients"][i];
    ASSERT_EQ(actual.size(), expected.size()) << "tensor " << i;
    for (size_t k = 0; k < actual.size(); ++k) {
      EXPECT_NEAR(actual[k], expected[k], tolerance) << "tensor " << i << ", element " << k;
    }
  }
}

TEST(LstmLm, LossAndGradientsMatchPyTorchWithCarriedState) {
  const Json vectors = Vectors();
  const auto engine = Create<double>(vectors, v1::FLOAT64);
  ASSERT_NE(engine, nullptr);
  for (uint64_t place : {0, 1}) {
    const Computed computed = Compute(*engine, BatchOf(vectors, place));
    ExpectPyTorchs<double>(vectors["batches"][place], computed, 1e-7);
  }
}

TEST(LstmLm, ComputesInSinglePrecisionToo) {
  const Json vectors = Vectors();
  const auto engine = Create<float>(vectors, v1::FLOAT32);
  ASSERT_NE(engine, nullptr);
  ExpectPyTorchs<float>(vectors["batches"][0], Compute(*engine, BatchOf(vectors, 0)), 1e-5);
}

TEST(LstmLm, RecomputedBatchGivesTheSameResult) {
  const Json vectors = Vectors();
  const auto engine = Create<double>(vectors, v1::FLOAT64);
  ASSERT_NE(engine, nullptr);
  Compute(*engine, BatchOf(vectors, 0));
  const Computed once = Compute(*engine, BatchOf(vectors, 1));
  const Computed again = Compute(*engine, BatchOf(vectors, 1));
  EXPECT_EQ(once.loss, again.loss);
  EXPECT_EQ(once.gradients, again.gradients);
}

TEST(LstmLm, StartsWithZerosWithoutPreviousSampleOrCarriedState) {
  const Json vectors = Vectors();
  const auto engine = Create<double>(vectors, v1::FLOAT64);
  ASSERT_NE(engine, nullptr);
  const double alone = Compute(*engine, BatchOf(vectors, 1)).loss;
  Compute(*engine, BatchOf(vectors, 0));
  Batch second = BatchOf(vectors, 1);
  EXPECT_NE(Compute(*engine, second).loss, alone);
  second.places.clear();
  EXPECT_EQ(Compute(*engine, second).loss, alone);
  EXPECT_NEAR(engine->Evaluate(Buffer::kCurrent, BatchOf(vectors, 1))->loss_sum, alone, 1e-12);
}

TEST(LstmLm, HasTheTutorialsShapes) {
  const auto engine = CreateTorchEngine(Options());
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<std::string> lines;
  for (const v1::TensorSpec& tensor : (*engine)->Describe().tensors()) {
    lines.push_back(absl::StrCat(tensor.name(), " ", absl::StrJoin(tensor.shape(), "x")));
  }
  EXPECT_EQ(absl::StrJoin(lines, ", "),
            "embedding.weight 10000x256, lstm.weight_ih_l0 2048x256, lstm.weight_hh_l0 2048x512, "
            "lstm.bias_ih_l0 2048, lstm.bias_hh_l0 2048, fc.weight 10000x512, fc.bias 10000");
}

TEST(LstmLm, InitialValuesMatchPyTorchsLayers) {
  const auto engine = CreateTorchEngine(SmallOptions(Vectors()));
  ASSERT_TRUE(engine.ok()) << engine.status();
  bool beyond = false;
  for (float value : Elements(*(*engine)->InitialTensor(0))) beyond = beyond || std::abs(value) > 1;
  EXPECT_TRUE(beyond);  // the embedding is normal
  for (uint32_t tensor = 1; tensor < 7; ++tensor) {
    for (float value : Elements(*(*engine)->InitialTensor(tensor))) {
      EXPECT_LE(std::abs(value), 0.5);  // 1 / sqrt(hidden)
      EXPECT_NE(value, 0);
    }
  }
}

TEST(LstmLm, RejectsVocabularyOtherThanTheDatas) {
  TorchEngineOptions options = Options();
  options.outputs = 300;
  EXPECT_TRUE(CreateTorchEngine(options).ok());
  (*options.model.mutable_dimensions())["vocabulary"] = 10000;
  const absl::Status status = CreateTorchEngine(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("model.dimensions.vocabulary is 10000, and the data's vocabulary has 300"));
}

TEST(LstmLm, RejectsTokensForNumbersAndNumbersForTokens) {
  TorchEngineOptions options = Options();
  options.tokens = false;
  EXPECT_THAT(std::string(CreateTorchEngine(options).status().message()),
              HasSubstr("lstm-lm, which takes tokens, and the data is numbers"));
  options.model.set_name("mlp");
  options.tokens = true;
  EXPECT_THAT(std::string(CreateTorchEngine(options).status().message()),
              HasSubstr("mlp, which takes numbers, and the data is tokens"));
}

}  // namespace
}  // namespace sluice
