// The engine over the shards' layers, compared with a local engine: hosts with LibTorch in this
// process take the place of shards.
#include "services/execution/worker/remote_engine.h"

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/execution/shard/host.h"
#include "services/execution/shard/layers.h"
#include "services/execution/worker/stage_sizes.h"
#include "services/protocol/elements.h"
#include "services/protocol/stages.h"
#include "services/ps/core/base/model.h"
#include "services/worker/compute/testing/recording_sink.h"
#include "services/worker/compute/torch_engine.h"
#include "services/worker/data/batch.h"
#include "services/worker/data/testing/data_files.h"
#include "services/worker/models/testing/script_files.h"

namespace sluice {
namespace {

using Buffer = ComputeEngine::Buffer;

constexpr char kJob[] = "default/test/uid";

v1::JobSpec MnistNet(v1::DataType dtype, bool two_stages) {
  v1::JobSpec job;
  job.mutable_model()->set_name("mnist-net");
  job.mutable_model()->set_dtype(dtype);
  job.mutable_training()->set_seed(5);
  job.mutable_training()->set_threads(1);
  job.mutable_optimizer()->set_learning_rate(0.03);
  if (two_stages) {
    for (const char* layers : {"conv1 conv2", "fc1 fc2"}) {
      v1::ModelSpec::Stage& stage = *job.mutable_model()->add_stages();
      for (const std::string& layer : std::vector<std::string>(absl::StrSplit(layers, ' '))) {
        stage.add_layers(layer);
      }
    }
  }
  return job;
}

Batch Images(uint64_t samples, uint64_t seed) {
  Batch batch;
  batch.samples = samples;
  batch.shape = {1, 28, 28};
  for (uint64_t i = 0; i < samples * 784; ++i) {
    batch.features.push_back(static_cast<float>((i + seed * 131) * 7919 % 256) / 256);
  }
  for (uint64_t i = 0; i < samples; ++i) {
    batch.classes.push_back(static_cast<int64_t>((i + seed) * 3 % 10));
  }
  return batch;
}

GradientRequest RequestOf(const Batch& batch, uint64_t step) {
  GradientRequest request;
  request.step = step;
  request.microbatch_size = batch.samples;
  request.batch = &batch;
  return request;
}

std::unique_ptr<ComputeEngine> LocalEngine(const v1::JobSpec& job) {
  TorchEngineOptions options = EngineOptionsOf(job, /*threads=*/1);
  options.model.clear_stages();
  options.model.clear_device();
  options.sample_shape = {1, 28, 28};
  options.outputs = 10;
  absl::StatusOr<std::unique_ptr<ComputeEngine>> engine = CreateTorchEngine(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The initial parameters of another seed.
std::vector<absl::Cord> Version(v1::JobSpec job, uint64_t seed) {
  job.mutable_training()->set_seed(seed);
  const std::unique_ptr<ComputeEngine> engine = LocalEngine(job);
  std::vector<absl::Cord> tensors;
  for (int t = 0; t < engine->Describe().tensors_size(); ++t) {
    tensors.push_back(*engine->InitialTensor(static_cast<uint32_t>(t)));
  }
  return tensors;
}

// One host for each stage, and the channel to it.
class Shards {
 public:
  explicit Shards(const v1::JobSpec& job) : job_(job) {
    const v1::TensorTable table = LocalEngine(job)->Describe();
    const auto layout = MakeStagedLayout(table, job.model(), 4);
    EXPECT_TRUE(layout.ok()) << layout.status();
    model_ = *ps::ShardModel::Create(job, table, *layout);
    for (uint32_t stage = 0; stage < StageCount(job.model()); ++stage) {
      stage::Host::Options options;
      options.make_layers = stage::MakeTorchLayers;
      options.max_computing = 2;
      hosts_.push_back(std::make_unique<stage::Host>(std::move(options)));
      v1::Register identity;
      identity.set_job(kJob);
      identity.set_address(absl::StrCat("stage-", stage, ":1"));
      identity.mutable_process()->set_incarnation(900 + stage);
      hosts_.back()->Begin(identity);
    }
  }

  std::unique_ptr<ComputeEngine> EngineOf(uint64_t worker) {
    RemoteEngineOptions options;
    options.job = job_;
    options.job_name = kJob;
    options.worker = worker;
    options.sample_shape = {1, 28, 28};
    options.outputs = 10;
    options.connect = [this](const std::string& address) { return Connect(address); };
    absl::StatusOr<std::unique_ptr<ComputeEngine>> engine = CreateRemoteEngine(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  // As a pull: the engine gets a reference to each block, and adopts them.
  void Give(uint64_t worker, const std::vector<absl::Cord>& tensors, ComputeEngine& engine) {
    for (size_t b = 0; b < model_->blocks(); ++b) {
      const ps::BlockInfo& block = model_->block(b);
      const size_t element = ElementBytes(block.dtype);
      const absl::Cord content =
          tensors[block.tensor].Subcord(block.offset * element, block.count * element);
      const absl::Cord reference = hosts_[block.partition]->Hold(worker, *model_, block, content);
      const absl::Status set =
          engine.SetTensorRange(Buffer::kIncoming, block.tensor, block.offset, reference);
      EXPECT_TRUE(set.ok()) << set;
    }
    EXPECT_TRUE(engine.Adopt().ok());
  }

  // All gradients of a context, by name, fetched from every stage.
  std::map<std::string, std::string> Fetch(uint64_t worker, uint64_t context) {
    std::map<std::string, std::string> gradients;
    for (uint32_t stage = 0; stage < hosts_.size(); ++stage) {
      v1::ContextGradientsRequest request;
      request.set_worker(worker);
      request.set_stage(stage);
      request.set_context(context);
      const auto reply = hosts_[stage]->ContextGradients(request);
      EXPECT_TRUE(reply.ok()) << reply.status();
      for (const auto& gradient : reply->gradients()) {
        EXPECT_TRUE(gradients.emplace(gradient.name(), gradient.value().data()).second);
      }
    }
    return gradients;
  }

 private:
  class Channel final : public StageChannel {
   public:
    explicit Channel(stage::Host* host) : host_(*host) {}
    absl::StatusOr<v1::OpenStageReply> Open(const v1::OpenStageRequest& request) override {
      return host_.Open(request);
    }
    absl::StatusOr<v1::ForwardReply> Forward(const v1::ForwardRequest& request) override {
      return host_.Forward(request);
    }
    absl::StatusOr<v1::BackwardReply> Backward(const v1::BackwardRequest& request) override {
      return host_.Backward(request);
    }
    absl::StatusOr<v1::ContextGradientsReply> ContextGradients(
        const v1::ContextGradientsRequest& request) override {
      return host_.ContextGradients(request);
    }

   private:
    stage::Host& host_;
  };

  std::unique_ptr<StageChannel> Connect(const std::string& address) {
    const size_t stage = static_cast<size_t>(address.at(sizeof("stage-") - 1) - '0');
    return std::make_unique<Channel>(hosts_.at(stage).get());
  }

  const v1::JobSpec job_;
  std::shared_ptr<const ps::ShardModel> model_;
  std::vector<std::unique_ptr<stage::Host>> hosts_;
};

// The gradients of a worker that computes by itself, by name.
std::map<std::string, absl::Cord> LocalGradients(ComputeEngine& engine,
                                                 const std::vector<absl::Cord>& tensors,
                                                 const GradientRequest& request) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    EXPECT_TRUE(
        engine.SetTensorRange(Buffer::kIncoming, static_cast<uint32_t>(t), 0, tensors[t]).ok());
  }
  EXPECT_TRUE(engine.Adopt().ok());
  RecordingSink sink;
  EXPECT_TRUE(engine.ComputeGradients(request, sink).ok());
  std::map<std::string, absl::Cord> gradients;
  for (const auto& [tensor, gradient] : sink.gradients) {
    gradients[engine.Describe().tensors(static_cast<int>(tensor)).name()] = gradient;
  }
  return gradients;
}

template <typename T>
double LargestDifference(const std::map<std::string, std::string>& fetched,
                         const std::map<std::string, absl::Cord>& local) {
  EXPECT_EQ(fetched.size(), local.size());
  double largest = 0;
  for (const auto& [name, gradient] : local) {
    const std::vector<T> expected = Elements<T>(gradient);
    const std::vector<T> found = Elements<T>(absl::Cord(fetched.at(name)));
    EXPECT_EQ(found.size(), expected.size()) << name;
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](T x) { return x != 0; })) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double scale = std::max(1.0, std::fabs(static_cast<double>(expected[i])));
      largest = std::max(largest, std::fabs(static_cast<double>(found[i] - expected[i])) / scale);
    }
  }
  return largest;
}

template <typename T>
void ExpectFetchedGradientsAreTheLocalOnes(v1::DataType dtype, bool two_stages,
                                           const std::string& device = "") {
  v1::JobSpec job = MnistNet(dtype, two_stages);
  job.mutable_model()->set_device(device);
  job.mutable_debug()->set_verify_gradients(true);
  Shards shards(job);
  const Batch batch = Images(8, 1);
  const std::vector<absl::Cord> version = Version(job, 5);
  const std::unique_ptr<ComputeEngine> remote = shards.EngineOf(7);
  const std::unique_ptr<ComputeEngine> local = LocalEngine(job);
  for (uint64_t step : {0, 1}) {  // with other dropout each
    shards.Give(7, version, *remote);
    RecordingSink sink;
    const auto metrics = remote->ComputeGradients(RequestOf(batch, step), sink);
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_EQ(sink.gradients.size(), 8u);
    EXPECT_LE(LargestDifference<T>(shards.Fetch(7, step + 1),
                                   LocalGradients(*local, version, RequestOf(batch, step))),
              1e-6);
  }
}

TEST(RemoteEngineTest, FetchedGradientsOfAContextAreThoseOfALocalRun) {
  ExpectFetchedGradientsAreTheLocalOnes<float>(v1::FLOAT32, /*two_stages=*/false);
  ExpectFetchedGradientsAreTheLocalOnes<double>(v1::FLOAT64, /*two_stages=*/false);
}

TEST(RemoteEngineTest, FetchedGradientsOfAGpuAreThoseOfALocalRunOnTheCpu) {
  if (at::getNumGPUs() == 0) GTEST_SKIP() << "there is no GPU, or LibTorch has no CUDA";
  ExpectFetchedGradientsAreTheLocalOnes<double>(v1::FLOAT64, /*two_stages=*/true, "cuda:0");
}

TEST(RemoteEngineTest, FetchedGradientsOfTwoStagesAreThoseOfALocalRun) {
  ExpectFetchedGradientsAreTheLocalOnes<float>(v1::FLOAT32, /*two_stages=*/true);
  ExpectFetchedGradientsAreTheLocalOnes<double>(v1::FLOAT64, /*two_stages=*/true);
}

// Each trainer uses its own sequence of versions, as fast as it can; the shards hold all of them.
TEST(RemoteEngineTest, ConcurrentTrainersEachUseOneVersionInBothPasses) {
  constexpr uint64_t kTrainers = 3;
  constexpr uint64_t kSteps = 4;
  const v1::JobSpec job = MnistNet(v1::FLOAT32, /*two_stages=*/true);
  Shards shards(job);
  std::vector<std::vector<std::vector<absl::Cord>>> versions(kTrainers);
  std::vector<std::vector<std::map<std::string, std::string>>> fetched(kTrainers);
  std::vector<std::unique_ptr<ComputeEngine>> engines;
  for (uint64_t trainer = 0; trainer < kTrainers; ++trainer) {
    engines.push_back(shards.EngineOf(100 + trainer));
    for (uint64_t step = 0; step < kSteps; ++step) {
      versions[trainer].push_back(Version(job, 1 + trainer * kSteps + step));
    }
  }
  std::vector<std::thread> threads;
  for (uint64_t trainer = 0; trainer < kTrainers; ++trainer) {
    threads.emplace_back([&, trainer] {
      for (uint64_t step = 0; step < kSteps; ++step) {
        shards.Give(100 + trainer, versions[trainer][step], *engines[trainer]);
        const Batch batch = Images(4, trainer);
        RecordingSink sink;
        EXPECT_TRUE(engines[trainer]->ComputeGradients(RequestOf(batch, step), sink).ok());
        fetched[trainer].push_back(shards.Fetch(100 + trainer, step + 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::unique_ptr<ComputeEngine> local = LocalEngine(job);
  for (uint64_t trainer = 0; trainer < kTrainers; ++trainer) {
    const Batch batch = Images(4, trainer);
    for (uint64_t step = 0; step < kSteps; ++step) {
      EXPECT_LE(LargestDifference<float>(
                    fetched[trainer][step],
                    LocalGradients(*local, versions[trainer][step], RequestOf(batch, step))),
                1e-6)
          << "trainer " << trainer << ", step " << step;
    }
  }
}

TEST(RemoteEngineTest, VerifyGradientsFailsOnGradientsThatAreNotFinite) {
  v1::JobSpec job = MnistNet(v1::FLOAT32, /*two_stages=*/true);
  job.mutable_debug()->set_verify_gradients(true);
  Shards shards(job);
  const std::unique_ptr<ComputeEngine> engine = shards.EngineOf(7);
  shards.Give(7, Version(job, 5), *engine);
  Batch batch = Images(4, 1);
  batch.features[3] = std::numeric_limits<float>::infinity();
  RecordingSink sink;
  const auto metrics = engine->ComputeGradients(RequestOf(batch, 0), sink);
  EXPECT_EQ(metrics.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(metrics.status().message()),
              ::testing::ContainsRegex("the gradient of '.*' in context 1 is not finite"));
}

// A TorchScript model of one layer, whose forward ends with `body`.
absl::Status GradientsOfScript(const std::string& body) {
  ScriptModule module;
  module.tensors = {
      {"weight", ScriptTensor::kParameter, {10, 784}, std::vector<double>(7840, 0.01), ""},
      {"scale", ScriptTensor::kBuffer, {}, {INFINITY}, ""}};
  module.source = "def forward(self, x):\n    x = torch.flatten(x, 1)\n" + body;
  v1::JobSpec job = MnistNet(v1::FLOAT32, /*two_stages=*/false);
  job.mutable_model()->Clear();
  job.mutable_model()->set_type(v1::ModelSpec::TORCH_SCRIPT);
  job.mutable_model()->set_path(MakeTestDirectory() + "/model.pt");
  job.set_loss("crossEntropy");
  WriteScript(job.model().path(), module);
  Shards shards(job);
  const std::unique_ptr<ComputeEngine> engine = shards.EngineOf(7);
  shards.Give(7, Version(job, 5), *engine);
  const Batch batch = Images(4, 1);
  RecordingSink sink;
  return engine->ComputeGradients(RequestOf(batch, 0), sink).status();
}

TEST(RemoteEngineTest, StageOfAScriptNamesWhatWouldBeLost) {
  EXPECT_EQ(GradientsOfScript("    return torch.linear(x, self.weight)\n"), absl::OkStatus());
  const std::pair<const char*, const char*> kCases[] = {
      {"    return torch.linear(x, self.weight).detach()\n", "the loss depends on no parameter"},
      {"    parts = [self.weight.detach()]\n    parts[0].mul_(0.5)\n"
       "    return torch.linear(x, self.weight)\n",
       "parameter 'weight' is changed by forward"},
      {"    self.scale = torch.minimum(self.scale, x.max())\n"
       "    return torch.linear(x, self.weight)\n",
       "buffer 'scale' has infinity"},
  };
  for (const auto& [body, message] : kCases) {
    EXPECT_THAT(std::string(GradientsOfScript(body).message()), ::testing::HasSubstr(message));
  }
}

TEST(StageSizesTest, MeasuresTheBytesOfASampleBetweenStages) {
  v1::JobSpec job = MnistNet(v1::FLOAT64, /*two_stages=*/true);
  const auto sizes = MeasureStages(job, {1, 28, 28}, 10, /*tokens=*/false);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  ASSERT_EQ(sizes->size(), 2u);
  EXPECT_EQ((*sizes)[0].input_bytes, 784u * 4) << "data is float32 whatever the model is";
  EXPECT_EQ((*sizes)[0].output_bytes, 64u * 12 * 12 * 8);
  EXPECT_EQ((*sizes)[1].input_bytes, 64u * 12 * 12 * 8);
  EXPECT_EQ((*sizes)[1].output_bytes, 10u * 8);
  job.mutable_model()->mutable_stages()->SwapElements(0, 1);
  EXPECT_THAT(std::string(MeasureStages(job, {1, 28, 28}, 10, false).status().message()),
              ::testing::HasSubstr("layer 'fc1' takes samples of shape"));
}

}  // namespace
}  // namespace sluice
