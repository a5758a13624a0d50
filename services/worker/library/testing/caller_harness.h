// A Caller with an instance whose work the test gives, for the tests of Caller.
#ifndef SLUICE_SERVICES_WORKER_LIBRARY_TESTING_CALLER_HARNESS_H_
#define SLUICE_SERVICES_WORKER_LIBRARY_TESTING_CALLER_HARNESS_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/common/time/clock.h"
#include "services/worker/library/caller.h"

namespace sluice::worker {

inline constexpr absl::Duration kSoon = absl::Milliseconds(20);
inline constexpr absl::Duration kPatience = absl::Seconds(60);

inline v1::JobSpec MakeJob() {
  v1::JobSpec job;
  job.set_namespace_("ns");
  job.set_name("job");
  job.set_uid("uid");
  job.mutable_training()->set_global_batch_size(8);
  job.mutable_training()->set_microbatch_size(4);
  job.mutable_training()->set_seed(7);
  job.mutable_data()->set_no_shuffle(true);
  return job;
}

// The shell of an instance. Its core is registered and has requested no work, so it ignores the
// results: the test gives the work in its place.
class Instance final : public CoreShell<WorkerCore>::Role {
 public:
  explicit Instance(Caller* caller, v1::JobSpec job = MakeJob())
      : shell_("worker", &clock_, this), runner_(caller->MakeRunner(&shell_)) {
    shell_.Start(WorkerOptions{});
    EXPECT_TRUE(caller->OnStarted());
    v1::CoordinatorMessage registered;
    *registered.mutable_registered()->mutable_job() = std::move(job);
    shell_.Event(Call(&WorkerCore::OnCoordinatorConnected));
    shell_.Event(
        [&](WorkerCore& core, absl::Time now) { core.OnCoordinatorMessage(registered, now); });
  }

  ~Instance() {
    shell_.Close([this] { shell_.End(); });
    runner_->Stop();
    shell_.Stop();
  }

  // Gives work to the program.
  void Give(Compute compute) {
    On([&] { runner_->Perform(compute); });
  }
  void Give(EvaluateSamples evaluate) {
    On([&] { runner_->Perform(evaluate); });
  }
  void Give(ComputeMetrics compute) {
    On([&] { runner_->Perform(compute); });
  }
  void Give(FindRows find) {
    On([&] { runner_->Perform(find); });
  }
  void GiveSum(ComputeId id, const std::vector<double>& values) {
    worker::GiveSum give{id, absl::Cord(std::string(reinterpret_cast<const char*>(values.data()),
                                                    values.size() * sizeof(double)))};
    On([&] { runner_->Perform(give); });
  }
  void Cancel(ComputeId id) {
    On([&] {
      CancelCompute cancel{id};
      runner_->Perform(cancel);
    });
  }

  // Receives the whole tensor 0 of one double, and makes it current unless it is for an evaluation.
  void Receive(double value, ComputeEngine::Buffer buffer = ComputeEngine::Buffer::kIncoming) {
    StoreBlock block;
    block.buffer = buffer;
    block.count = 1;
    block.payload = absl::Cord(std::string(reinterpret_cast<const char*>(&value), sizeof value));
    On([&] {
      EXPECT_TRUE(runner_->Store(block).ok());
      if (buffer != ComputeEngine::Buffer::kIncoming) return;
      EXPECT_TRUE(runner_->Adopt(++version_).ok());
    });
  }

  // The instance's report to the coordinator.
  v1::Ready Ready() {
    v1::Ready ready;
    On([&] { ready = ready_; });
    return ready;
  }

  void PerformAction(CoreShell<WorkerCore>::Action& action) override {
    if (auto* send = std::get_if<SendToCoordinator>(&action); send && send->message.has_ready()) {
      ready_ = send->message.ready();
    }
    if (auto* open = std::get_if<OpenModel>(&action)) runner_->Perform(*open);
  }
  void Publish(absl::Time) override {}

 private:
  template <typename F>
  void On(F f) {
    shell_.executor().Post([&f] { f(); });
    shell_.executor().Flush();
  }

  RealClock clock_;
  CoreShell<WorkerCore> shell_;
  std::unique_ptr<ModelRunner> runner_;
  uint64_t version_ = 0;
  v1::Ready ready_;
};

class CallerTest : public ::testing::Test {
 protected:
  // A model of one double, and a table of which rows are read if `rows`.
  void Open(bool rows = false) {
    v1::TensorSpec spec;
    spec.set_name("w");
    spec.add_shape(1);
    spec.set_dtype(v1::FLOAT64);
    spec.set_kind(v1::PARAMETER);
    ASSERT_TRUE(caller_.AddTensor(spec, std::string(8, '\0'), false).ok());
    if (rows) {
      spec.set_name("table");
      spec.set_shape(0, 4);
      spec.add_shape(1);
      ASSERT_TRUE(caller_.AddTensor(spec, std::string(32, '\0'), true).ok());
    }
    ASSERT_TRUE(caller_.Open(/*training_samples=*/100, /*evaluation_samples=*/10).ok());
  }

  sluice_code Next(absl::Duration timeout = kPatience) {
    return caller_.Next(timeout, &work_).code;
  }
  std::vector<uint64_t> Indices() const { return {work_.indices, work_.indices + work_.samples}; }
  double Parameter() const {
    const void* data = nullptr;
    EXPECT_TRUE(caller_.Parameter(0, &data, nullptr).ok());
    double value = 0;
    std::memcpy(&value, data, sizeof value);
    return value;
  }
  sluice_code Gradient(uint64_t token = 0) {
    return caller_
        .GiveGradient(0, {reinterpret_cast<const char*>(&kGradient), sizeof kGradient}, token)
        .code;
  }
  sluice_code Done() { return caller_.Done({}).code; }
  std::vector<uint64_t> Released() {
    std::vector<uint64_t> tokens(10);
    tokens.resize(caller_.Released(tokens.data(), tokens.size()));
    return tokens;
  }

  static constexpr double kGradient = 1;
  Caller caller_{/*index=*/0};
  sluice_work work_{};
};

inline Compute ComputeOf(ComputeId id, PositionRange positions) {
  return {.id = id, .step = 3, .first_microbatch = 1, .microbatch_size = 4, .positions = positions};
}

inline EvaluateSamples EvaluationOf(ComputeId id, ComputeEngine::Buffer buffer) {
  return {.id = id, .buffer = buffer, .samples = {2, 5}};
}

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_LIBRARY_TESTING_CALLER_HARNESS_H_
