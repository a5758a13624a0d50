#include "services/execution/shard/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/common/status_macros.h"
#include "services/protocol/layout.h"

namespace sluice::stage {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kWorker = 7;
constexpr uint64_t kOther = 8;
constexpr char kJob[] = "default/test/uid";

absl::Cord Floats(const std::vector<float>& values) {
  return absl::Cord(
      absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * 4));
}

std::vector<float> ToFloats(const absl::Cord& bytes) {
  const std::string flat(bytes);
  std::vector<float> values(flat.size() / 4);
  std::memcpy(values.data(), flat.data(), flat.size());
  return values;
}

// A "model" of one parameter w, a number: output = w * input; its gradient by w is the input times
// the output's gradient.
class FakeLayers final : public Layers {
 public:
  absl::StatusOr<Output> Forward(const Input& input) override {
    const float w = ToFloats(input.parameters.at(0).content).at(0);
    const float x = ToFloats(absl::Cord(input.value->data())).at(0);
    Output output;
    output.value = Number(w * x);
    if (input.training) output.pass = std::make_unique<Pass>(x);
    return output;
  }

  v1::OpenStageReply Describe() const override {
    v1::OpenStageReply reply;
    reply.set_device("cpu");
    reply.set_warning(warning);
    return reply;
  }

  std::string warning;

  static v1::StageTensor Number(float value) {
    v1::StageTensor tensor;
    tensor.add_shape(1);
    tensor.set_dtype(v1::FLOAT32);
    tensor.set_data(&value, sizeof(value));
    return tensor;
  }

 private:
  class Pass final : public ForwardPass {
   public:
    explicit Pass(float x) : x_(x) {}
    absl::StatusOr<Result> Backward(const v1::StageTensor& gradient) override {
      const float by_output = ToFloats(absl::Cord(gradient.data())).at(0);
      Result result;
      result.gradients.push_back({"fc.w", {1}, v1::FLOAT32, false, Floats({x_ * by_output})});
      return result;
    }

   private:
    const float x_;
  };
};

class HostTest : public ::testing::Test {
 protected:
  HostTest() {
    v1::TensorTable table;
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("fc.w");
    tensor.add_shape(1);
    tensor.set_dtype(v1::FLOAT32);
    tensor.set_kind(v1::PARAMETER);
    v1::JobSpec job;
    job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
    job.mutable_optimizer()->set_learning_rate(1);
    const auto model = ps::ShardModel::Create(job, table, *MakeLayout(table, 1));
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *model;
    v1::Register identity;
    identity.set_job(kJob);
    identity.set_address("here:1");
    identity.mutable_process()->set_incarnation(99);
    host_.Begin(identity);
  }

  v1::BlockReference Hold(uint64_t worker, float w) {
    v1::BlockReference reference;
    EXPECT_TRUE(reference.ParseFromString(
        std::string(host_.Hold(worker, *model_, model_->block(0), Floats({w})))));
    return reference;
  }

  static v1::ProcessId Member(uint64_t incarnation, uint32_t index) {
    v1::ProcessId process;
    process.set_role(v1::WORKER);
    process.set_index(index);
    process.set_incarnation(incarnation);
    return process;
  }

  absl::Status Open(uint64_t worker) {
    v1::OpenStageRequest request;
    request.set_worker(worker);
    request.set_job(kJob);
    return host_.Open(request).status();
  }

  static v1::ForwardRequest ForwardOf(uint64_t worker, uint64_t context, uint64_t handle, float x) {
    v1::ForwardRequest request;
    request.set_worker(worker);
    request.set_context(context);
    *request.mutable_input() = FakeLayers::Number(x);
    request.add_handles(handle);
    request.add_live_handles(handle);
    request.set_newest_handle(handle);
    return request;
  }

  float Forward(const v1::ForwardRequest& request) {
    const auto reply = host_.Forward(request);
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? ToFloats(absl::Cord(reply->output().data())).at(0) : 0;
  }

  absl::Status Backward(uint64_t worker, uint64_t context, float gradient) {
    v1::BackwardRequest request;
    request.set_worker(worker);
    request.set_context(context);
    *request.mutable_gradient() = FakeLayers::Number(gradient);
    return host_.Backward(request).status();
  }

  // The gradient that the core finds for a pushed reference.
  absl::StatusOr<std::vector<float>> Find(uint64_t worker, uint64_t context) {
    v1::GradientReference reference;
    reference.set_context(context);
    ASSIGN_OR_RETURN(const auto found, host_.Find(worker, *model_, model_->block(0),
                                                  absl::Cord(reference.SerializeAsString())));
    return ToFloats(found);
  }

  absl::StatusOr<std::shared_ptr<Layers>> MakeLayers() {
    auto layers = std::make_shared<FakeLayers>();
    layers->warning = warning_;
    if (meanwhile_) std::exchange(meanwhile_, nullptr)();
    return std::shared_ptr<Layers>(std::move(layers));
  }

  std::shared_ptr<const ps::ShardModel> model_;
  std::string warning_;              // of the next layers
  std::function<void()> meanwhile_;  // runs once, while layers are being made
  std::vector<std::string> warned_;
  Host host_{{.make_layers = [this](const v1::OpenStageRequest&) { return MakeLayers(); },
              .max_computing = 1,
              .max_contexts = 4,
              .on_warning = [this](const std::string& warning) { warned_.push_back(warning); }}};
};

TEST_F(HostTest, ReferenceNamesTheShardOfTheBlock) {
  const v1::BlockReference reference = Hold(kWorker, 3);
  EXPECT_EQ(reference.address(), "here:1");
  EXPECT_EQ(reference.shard(), 99u);
  EXPECT_GT(Hold(kWorker, 4).handle(), reference.handle());
}

TEST_F(HostTest, LayersThatTwoWorkersOpenAtTheSameTimeWarnOnce) {
  Hold(kWorker, 1);
  Hold(kOther, 1);
  warning_ = "no such device: on the CPU";
  absl::Status other;
  meanwhile_ = [&] { other = Open(kOther); };
  EXPECT_TRUE(Open(kWorker).ok());
  EXPECT_TRUE(other.ok()) << other;
  EXPECT_THAT(warned_, ElementsAre(warning_));
}

TEST_F(HostTest, ContextUsesTheVersionThatItsWorkerPulled) {
  const v1::BlockReference mine = Hold(kWorker, 2);
  const v1::BlockReference other = Hold(kOther, 100);
  ASSERT_TRUE(Open(kWorker).ok());
  ASSERT_TRUE(Open(kOther).ok());
  EXPECT_EQ(Forward(ForwardOf(kWorker, 1, mine.handle(), 5)), 10);
  // Between the passes of the first worker, another version arrives and another worker computes.
  Hold(kWorker, -1);
  EXPECT_EQ(Forward(ForwardOf(kOther, 1, other.handle(), 5)), 500);
  ASSERT_TRUE(Backward(kOther, 1, 1).ok());
  ASSERT_TRUE(Backward(kWorker, 1, 3).ok());
  EXPECT_THAT(*Find(kWorker, 1), ElementsAre(15));
  EXPECT_THAT(*Find(kOther, 1), ElementsAre(5));
}

TEST_F(HostTest, RunsBackwardPassOnce) {
  const v1::BlockReference block = Hold(kWorker, 2);
  ASSERT_TRUE(Open(kWorker).ok());
  Forward(ForwardOf(kWorker, 1, block.handle(), 5));
  ASSERT_TRUE(Backward(kWorker, 1, 3).ok());
  EXPECT_EQ(Backward(kWorker, 1, 4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(*Find(kWorker, 1), ElementsAre(15)) << "as the first pass left it";
}

TEST_F(HostTest, MissingGradientsAreDataLossForTheWorkerOnly) {
  const v1::BlockReference block = Hold(kWorker, 2);
  ASSERT_TRUE(Open(kWorker).ok());
  Forward(ForwardOf(kWorker, 1, block.handle(), 5));
  EXPECT_EQ(Find(kWorker, 1).status().code(), absl::StatusCode::kDataLoss) << "no backward yet";
  EXPECT_EQ(Find(kOther, 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(host_.Find(kWorker, *model_, model_->block(0), absl::Cord("\xff")).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(HostTest, EvaluationKeepsNoContext) {
  const v1::BlockReference block = Hold(kWorker, 2);
  ASSERT_TRUE(Open(kWorker).ok());
  EXPECT_EQ(Forward(ForwardOf(kWorker, 0, block.handle(), 5)), 10);
  EXPECT_EQ(host_.status().contexts, 0u);
}

TEST_F(HostTest, DropsBlocksThatTheWorkerHasReleased) {
  const uint64_t first = Hold(kWorker, 1).handle();
  const uint64_t second = Hold(kWorker, 2).handle();
  ASSERT_TRUE(Open(kWorker).ok());
  Forward(ForwardOf(kWorker, 1, second, 5));
  EXPECT_EQ(host_.status().blocks, 1u) << "the first block is in no buffer";
  EXPECT_EQ(host_.Forward(ForwardOf(kWorker, 2, first, 5)).status().code(),
            absl::StatusCode::kNotFound);
  const uint64_t third = Hold(kWorker, 3).handle();
  v1::ForwardRequest request = ForwardOf(kWorker, 3, second, 5);
  Forward(request);
  EXPECT_EQ(host_.status().blocks, 2u) << "the third is newer than what the worker has seen";
  EXPECT_EQ(host_.status().contexts, 1u) << "contexts 1 and 2 were not reported as live";
  request = ForwardOf(kWorker, 4, third, 5);
  request.add_live_contexts(3);
  Forward(request);
  EXPECT_EQ(host_.status().contexts, 2u);
}

TEST_F(HostTest, DropsEverythingOfAFormerMember) {
  const v1::BlockReference block = Hold(kWorker, 2);
  const v1::BlockReference other = Hold(kOther, 3);
  ASSERT_TRUE(Open(kWorker).ok());
  ASSERT_TRUE(Open(kOther).ok());
  Forward(ForwardOf(kWorker, 1, block.handle(), 5));
  Forward(ForwardOf(kOther, 1, other.handle(), 5));
  host_.Retain({Member(kOther, 1)});
  EXPECT_EQ(host_.status().workers, 1u);
  EXPECT_EQ(host_.status().contexts, 1u);
  EXPECT_EQ(Backward(kWorker, 1, 1).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Open(kWorker).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Backward(kOther, 1, 1).ok());
}

TEST_F(HostTest, WithCertificatesAWorkerActsOnlyForItself) {
  host_.Retain({Member(kWorker, 0), Member(kOther, 1)});
  const security::PeerIdentity worker = {"default/test", v1::WORKER, 0};
  EXPECT_TRUE(host_.CheckCaller(worker, kWorker).ok());
  EXPECT_EQ(host_.CheckCaller(worker, kOther).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(host_.CheckCaller(worker, 1234).code(), absl::StatusCode::kNotFound);
  const security::PeerIdentity shard = {"default/test", v1::SHARD, 0};
  EXPECT_EQ(host_.CheckCaller(shard, kWorker).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(host_.CheckCaller(std::nullopt, kOther).ok()) << "plain text";
}

TEST_F(HostTest, LimitsTheContextsOfAWorker) {
  const uint64_t handle = Hold(kWorker, 2).handle();
  ASSERT_TRUE(Open(kWorker).ok());
  v1::ForwardRequest request = ForwardOf(kWorker, 1, handle, 5);
  for (uint64_t context = 1; context <= 4; ++context) {
    request.set_context(context);
    Forward(request);
    request.add_live_contexts(context);
  }
  request.set_context(5);
  EXPECT_EQ(host_.Forward(request).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(HostTest, FetchesGradientsOfContext) {
  const uint64_t handle = Hold(kWorker, 2).handle();
  ASSERT_TRUE(Open(kWorker).ok());
  Forward(ForwardOf(kWorker, 1, handle, 5));
  v1::ContextGradientsRequest request;
  request.set_worker(kWorker);
  request.set_context(1);
  EXPECT_EQ(host_.ContextGradients(request).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Backward(kWorker, 1, 3).ok());
  const auto reply = host_.ContextGradients(request);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->gradients_size(), 1);
  EXPECT_EQ(reply->gradients(0).name(), "fc.w");
  EXPECT_THAT(ToFloats(absl::Cord(reply->gradients(0).value().data())), ElementsAre(15));
}

TEST_F(HostTest, RejectsContradictoryCalls) {
  const uint64_t handle = Hold(kWorker, 2).handle();
  ASSERT_TRUE(Open(kWorker).ok());
  const std::vector<std::pair<std::function<void(v1::ForwardRequest&)>, const char*>> table = {
      {[](auto& r) { r.mutable_input()->set_shape(0, 2); }, "a tensor of shape [2] with 4 bytes"},
      {[](auto& r) { r.mutable_input()->set_shape(0, -1); }, "shape [-1]"},
      {[](auto& r) { r.mutable_input()->add_shape(int64_t{1} << 62); }, "a tensor of shape [1, "},
      {[](auto& r) { r.mutable_input()->add_shape(0); }, "a tensor of shape [1, 0]"},
      {[](auto& r) { r.mutable_input()->mutable_data()->append("x"); }, "with 5 bytes"},
      {[](auto& r) { r.mutable_input()->set_dtype(static_cast<v1::DataType>(99)); }, "type 99"},
      {[](auto& r) {
         for (int i = 0; i < 100; ++i) r.mutable_input()->add_shape(1);
       },
       "101 dimensions"},
      {[](auto& r) { r.set_microbatches(2); }, "2 microbatches of 1 numbers"},
      {[&](auto& r) { r.add_handles(handle); }, "2 block references of 1 blocks"},
      {[](auto& r) {
         for (uint64_t i = 1; i < 7; ++i) r.add_live_contexts(i);
       },
       "max_contexts"},
      {[](auto& r) { r.set_stage(7); }, "stage 7 was not opened"},
  };
  for (const auto& [spoil, says] : table) {
    v1::ForwardRequest request = ForwardOf(kWorker, 1, handle, 5);
    spoil(request);
    const absl::Status status = host_.Forward(request).status();
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(says));
    EXPECT_EQ(host_.status().contexts, 0u);
    EXPECT_EQ(host_.status().blocks, 1u);
  }
  EXPECT_EQ(Forward(ForwardOf(kWorker, 1, handle, 5)), 10);
}

TEST_F(HostTest, RejectsAStageThatTheModelDoesNotHave) {
  Hold(kWorker, 2);
  v1::OpenStageRequest request;
  request.set_worker(kWorker);
  request.set_job(kJob);
  request.set_stage(1);
  EXPECT_EQ(host_.Open(request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostTest, LimitsTheStagesOfAWorker) {
  Hold(kWorker, 2);
  v1::OpenStageRequest request;
  request.set_worker(kWorker);
  request.set_job(kJob);
  for (int i = 0; i < 100; ++i) request.mutable_model()->add_stages();
  for (uint32_t stage = 0; stage < 64; ++stage) {
    request.set_stage(stage);
    ASSERT_TRUE(host_.Open(request).ok());
  }
  request.set_stage(64);
  const absl::Status status = host_.Open(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::StartsWith("max_stages"));
  request.set_stage(5);
  EXPECT_TRUE(host_.Open(request).ok()) << "again, with other settings";
}

TEST_F(HostTest, RejectsAWorkerOfAnotherJob) {
  Hold(kWorker, 2);
  v1::OpenStageRequest request;
  request.set_worker(kWorker);
  request.set_job("default/other/uid");
  EXPECT_EQ(host_.Open(request).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::stage
