// Engines with TorchScript modules, for tests.
#ifndef SLUICE_SERVICES_WORKER_COMPUTE_TESTING_SCRIPT_ENGINES_H_
#define SLUICE_SERVICES_WORKER_COMPUTE_TESTING_SCRIPT_ENGINES_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/worker/compute/compute_engine.h"
#include "services/worker/compute/testing/recording_sink.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/testing/data_files.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice {

using Buffer = ComputeEngine::Buffer;

inline constexpr auto kParameter = ScriptTensor::kParameter;

// y = x w' + b, from 2 to 1.
inline ScriptModule LinearModule() {
  ScriptModule module;
  module.tensors = {{"weight", kParameter, {1, 2}, {1, 2}, ""},
                    {"bias", kParameter, {1}, {0.5}, ""}};
  module.source = R"(
def forward(self, x):
    return torch.linear(x, self.weight, self.bias)
)";
  return module;
}

// A linear layer after a batch norm of two features, as PyTorch saves its modules.
inline ScriptModule NormedModule() {
  ScriptModule norm;
  norm.tensors = {{"weight", kParameter, {2}, {1, 1}, ""},
                  {"bias", kParameter, {2}, {0, 0}, ""},
                  {"running_mean", ScriptTensor::kBuffer, {2}, {0, 10}, ""},
                  {"running_var", ScriptTensor::kBuffer, {2}, {1, 1}, ""},
                  {"num_batches_tracked", ScriptTensor::kIntegerBuffer, {}, {0}, ""}};
  norm.source = R"(
def forward(self, x):
    if bool(self.training):
        self.num_batches_tracked = self.num_batches_tracked + 1
    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, bool(self.training), 0.1, 1e-5, False)
)";
  ScriptModule module;
  module.children = {{"norm", norm}, {"fc", LinearModule()}};
  module.tensors = {{"offset", kParameter, {1}, {0}, ""}};
  module.source = R"(
def forward(self, x):
    return self.fc.forward(self.norm.forward(x)) + self.offset
)";
  return module;
}

inline std::string Save(const ScriptModule& module) {
  std::string path = MakeTestDirectory() + "/model.pt";
  WriteScript(path, module);
  return path;
}

inline TorchEngineOptions Options(const std::string& path, const std::string& loss = "mse") {
  TorchEngineOptions options;
  options.model.set_type(v1::ModelSpec::TORCH_SCRIPT);
  options.model.set_path(path);
  options.loss = loss;
  return options;
}

inline std::unique_ptr<ComputeEngine> CreateInitialized(const TorchEngineOptions& options) {
  absl::StatusOr<std::unique_ptr<ComputeEngine>> engine = CreateTorchEngine(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return nullptr;
  for (int i = 0; i < (*engine)->Describe().tensors_size(); ++i) {
    EXPECT_TRUE(
        (*engine)->SetTensorRange(Buffer::kIncoming, i, 0, *(*engine)->InitialTensor(i)).ok());
  }
  EXPECT_TRUE((*engine)->Adopt().ok());
  return *std::move(engine);
}

inline Batch Pairs(std::vector<float> features, std::vector<float> targets) {
  Batch batch;
  batch.samples = targets.size();
  batch.shape = {2};
  batch.features = std::move(features);
  batch.targets = std::move(targets);
  batch.target_width = 1;
  return batch;
}

inline GradientRequest Request(const Batch& batch) {
  GradientRequest request;
  request.microbatch_size = batch.samples;
  request.batch = &batch;
  return request;
}

inline BatchMetrics Gradients(ComputeEngine& engine, const GradientRequest& request,
                              RecordingSink& sink) {
  const absl::StatusOr<BatchMetrics> metrics = engine.ComputeGradients(request, sink);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  return metrics.value_or(BatchMetrics());
}

inline void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                          const std::string& message) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(message));
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_WORKER_COMPUTE_TESTING_SCRIPT_ENGINES_H_
