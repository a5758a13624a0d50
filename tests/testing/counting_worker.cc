// A worker whose model counts: element i of its one tensor is how often sample i was applied. So a
// finished job shows by its parameters whether any sample was lost or doubled, whatever happened to
// its processes. Everything but the model is sluice-worker's own.
//
// The data is a CSV file whose one feature is the sample's number.

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/exit_code.h"
#include "services/common/process.h"
#include "services/common/program.h"
#include "services/transport/grpc_settings.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {
namespace {

class CountingEngine final : public ComputeEngine {
 public:
  CountingEngine(uint64_t samples, absl::Duration time_per_batch)
      : time_per_batch_(time_per_batch) {
    v1::TensorSpec& tensor = *table_.add_tensors();
    tensor.set_name("counts");
    tensor.add_shape(static_cast<int64_t>(samples));
    tensor.set_dtype(v1::FLOAT64);
    for (std::vector<double>* buffer : {&current_, &incoming_, &evaluation_}) {
      buffer->resize(samples, 0.0);
    }
  }

  const v1::TensorTable& Describe() const override { return table_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t) const override {
    return absl::Cord(std::string(current_.size() * sizeof(double), '\0'));
  }
  absl::Status SetTensorRange(Buffer buffer, uint32_t, uint64_t offset,
                              const absl::Cord& bytes) override {
    std::vector<double>& to = buffer == Buffer::kEvaluation ? evaluation_ : incoming_;
    if (offset + bytes.size() / sizeof(double) > to.size()) {
      return absl::OutOfRangeError("block lies outside of the tensor");
    }
    char* at = reinterpret_cast<char*>(to.data() + offset);
    for (absl::string_view chunk : bytes.Chunks()) {
      std::memcpy(at, chunk.data(), chunk.size());
      at += chunk.size();
    }
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override {
    return absl::UnimplementedError("not needed");
  }
  absl::Status Adopt() override {
    current_.swap(incoming_);
    return absl::OkStatus();
  }
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override {
    if (time_per_batch_ > absl::ZeroDuration()) absl::SleepFor(time_per_batch_);
    auto gradient = std::make_shared<std::vector<double>>(current_.size(), 0.0);
    for (const float sample : request.batch->features) {
      (*gradient)[static_cast<size_t>(std::lround(sample))] += 1;
    }
    const absl::string_view bytes(reinterpret_cast<const char*>(gradient->data()),
                                  gradient->size() * sizeof(double));
    sink.OnGradient(0, absl::MakeCordFromExternal(bytes, [gradient] {}));
    BatchMetrics metrics;
    metrics.samples = request.batch->samples;
    return metrics;
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer, const Batch& batch) override {
    BatchMetrics metrics;
    metrics.samples = batch.samples;
    return metrics;
  }

 private:
  const absl::Duration time_per_batch_;
  v1::TensorTable table_;
  std::vector<double> current_;
  std::vector<double> incoming_;
  std::vector<double> evaluation_;
};

int Main(int argc, char** argv) {
  ProgramFlags program;
  WorkerProcess::Options options;
  uint32_t index = 0;
  int threads = 0;
  CLI::App app{"A worker that counts samples."};
  app.add_option("--job", options.core.job)->required();
  app.add_option("--coordinator", options.coordinator)->required();
  app.add_option("--index", index)->required();
  app.add_option("--threads", threads);
  AddProgramFlags(&app, &program);
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;
  StopRequests stop;
  absl::StatusOr<Logger> logger = BeginProgram(program);
  if (!logger.ok()) return ExitWith("counting_worker", logger.status());
  ConfigureGrpcProcess({});
  options.core.process.set_role(v1::WORKER);
  options.core.process.set_index(index);
  options.core.process.set_incarnation(RandomIncarnation());
  options.core.pid = getpid();
  options.make_engine = [](const v1::JobSpec& job, const DatasetInfo& data,
                           int) -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    // The model's "dimensions" carry the time that a batch takes, so that faults find something
    // under way.
    const auto it = job.model().dimensions().find("microseconds");
    const int64_t microseconds = it == job.model().dimensions().end() ? 0 : it->second;
    return std::make_unique<CountingEngine>(data.samples, absl::Microseconds(microseconds));
  };
  Metrics metrics(WorkerMetrics(), {});
  const auto process = WorkerProcess::Start(std::move(options), &metrics,
                                            logger->With({{"role", "worker"}, {"index", index}}));
  stop.SetHandler([&](int) { process->Leave("asked to stop by a signal", absl::Seconds(5)); });
  const WorkerProcess::Result result = process->Wait();
  stop.SetHandler(nullptr);
  switch (result.reason) {
    case ExitReason::kFinished:
    case ExitReason::kLeft:
      return kExitOk;
    case ExitReason::kExpelled:
      return kExitExpelled;
    case ExitReason::kRefused:
      return kExitRefused;
    default:
      return kExitFailed;
  }
}

}  // namespace
}  // namespace sluice::worker

int main(int argc, char** argv) { return sluice::worker::Main(argc, argv); }
