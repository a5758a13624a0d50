// Measures a step of the data plane: one worker pushes a gradient of the whole model and receives
// the next version, with real shards and a real coordinator in their own processes. Nothing is
// computed: the gradient is always the same constant, so that only pushing, closing, pulling and
// storing are measured, and every element of every version is known and checked.
//
//   push_pull --bytes 104857600 --optimizer add --steps 30
//   push_pull --table-rows 1000000 --row-elements 64 --touched-rows 20000
//
// The second form has an embedding table, of which every step touches the same rows: only these are
// pushed and pulled.
//
// Prints one JSON line: the median, the fastest and the slowest step in seconds.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/first_worker.h"
#include "services/common/io/file_util.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/protocol/layout.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/credential_directories.h"
#include "services/transport/security/transport_security.h"
#include "services/worker/worker_process.h"
#include "tests/testing/job_processes.h"

namespace sluice {
namespace {

struct Flags {
  ProgramFlags program;
  uint64_t bytes = 100 << 20;
  uint64_t table_rows = 0;  // 0: no table, one tensor of `bytes`
  uint64_t row_elements = 64;
  uint64_t touched_rows = 20000;
  uint32_t shards = 1;
  uint64_t steps = 30;
  uint64_t warmup = 5;
  std::string optimizer = "add";
  bool shared_memory = true;
  std::string programs;
  bool tls = false;
};

// One float32 tensor; each gradient is 1 everywhere, or in the rows that are touched.
class ConstantGradientEngine final : public ComputeEngine {
 public:
  ConstantGradientEngine(const Flags& flags, double step_change)
      : ConstantGradientEngine(flags.table_rows > 0 ? flags.table_rows * flags.row_elements
                                                    : flags.bytes / sizeof(float),
                               step_change) {
    if (flags.table_rows == 0) return;
    v1::TensorSpec& tensor = *table_.mutable_tensors(0);
    tensor.set_shape(0, static_cast<int64_t>(flags.table_rows));
    tensor.add_shape(static_cast<int64_t>(flags.row_elements));
    row_elements_ = flags.row_elements;
    // Spread over the whole table, like ids.
    const uint64_t stride = std::max<uint64_t>(1, flags.table_rows / flags.touched_rows);
    for (uint64_t row = 0; row < flags.table_rows && rows_.size() < flags.touched_rows;
         row += stride) {
      rows_.push_back(row);
    }
  }

  const v1::TensorTable& Describe() const override { return table_; }
  absl::StatusOr<absl::Cord> InitialTensor(uint32_t) const override {
    return absl::Cord(std::string(current_.size() * sizeof(float), '\0'));
  }

  absl::Status SetTensorRange(Buffer, uint32_t, uint64_t offset, const absl::Cord& bytes) override {
    char* to = reinterpret_cast<char*>(incoming_.data() + offset);
    for (absl::string_view chunk : bytes.Chunks()) {
      std::memcpy(to, chunk.data(), chunk.size());
      to += chunk.size();
    }
    return absl::OkStatus();
  }
  absl::StatusOr<absl::Cord> GetTensor(Buffer, uint32_t) const override {
    return absl::UnimplementedError("not needed");
  }

  std::vector<uint32_t> RowTensors() const override {
    return rows_.empty() ? std::vector<uint32_t>() : std::vector<uint32_t>{0};
  }
  absl::StatusOr<RowSelections> RowsOf(const Batch&) const override {
    return RowSelections{{0, rows_}};
  }

  // A step ends here.
  absl::Status Adopt() override {
    if (started_ != absl::InfiniteFuture())
      seconds_.push_back(absl::ToDoubleSeconds(absl::Now() - started_));
    current_.swap(incoming_);
    return absl::OkStatus();
  }

  // A step begins here.
  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override {
    RETURN_IF_ERROR(CheckEveryElement(request.step));
    started_ = absl::Now();
    const uint64_t elements = rows_.empty() ? current_.size() : rows_.size() * row_elements_;
    absl::Cord gradient = absl::MakeCordFromExternal(
        {reinterpret_cast<const char*>(gradient_.data()), elements * sizeof(float)}, [] {});
    if (rows_.empty()) {
      sink.OnGradient(0, std::move(gradient));
    } else {
      sink.OnRowGradient(0, rows_, std::move(gradient));
    }
    BatchMetrics metrics;
    metrics.samples = request.batch->samples;
    return metrics;
  }
  absl::StatusOr<BatchMetrics> Evaluate(Buffer, const Batch&) override {
    return absl::UnimplementedError("not needed");
  }

  const std::vector<double>& seconds() const { return seconds_; }

 private:
  ConstantGradientEngine(uint64_t elements, double step_change)
      : step_change_(step_change),
        gradient_(elements, 1.0f),
        current_(elements, 0.0f),
        incoming_(elements, 0.0f) {
    v1::TensorSpec& tensor = *table_.add_tensors();
    tensor.set_name("w");
    tensor.add_shape(static_cast<int64_t>(elements));
    tensor.set_dtype(v1::FLOAT32);
  }

  // Index of the touched row.
  absl::Status CheckEveryElement(uint64_t step) const {
    const float expected = static_cast<float>(step_change_ * static_cast<double>(step));
    const uint64_t elements = rows_.empty() ? current_.size() : rows_.size() * row_elements_;
    for (uint64_t k = 0; k < elements; ++k) {
      const uint64_t i =
          rows_.empty() ? k : rows_[k / row_elements_] * row_elements_ + k % row_elements_;
      if (current_[i] != expected) {
        return absl::InternalError(absl::StrCat("element ", i, " of version ", step, " is ",
                                                current_[i], ", not ", expected));
      }
    }
    return absl::OkStatus();
  }

  const double step_change_;
  v1::TensorTable table_;
  const std::vector<float> gradient_;
  std::vector<float> current_;
  std::vector<float> incoming_;
  absl::Time started_ = absl::InfiniteFuture();
  std::vector<double> seconds_;
  uint64_t row_elements_ = 1;
  std::vector<uint64_t> rows_;  // the touched rows; empty: all
};

v1::JobSpec MakeJob(const Flags& flags) {
  v1::JobSpec job;
  job.set_name("push-pull");
  job.mutable_model()->set_name("additive");
  job.mutable_data()->set_format(v1::DataSpec::SYNTHETIC);
  job.mutable_data()->mutable_synthetic()->set_samples(1);
  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  job.mutable_training()->set_global_batch_size(1);
  job.mutable_training()->set_microbatch_size(1);
  job.mutable_training()->set_steps(flags.warmup + flags.steps);
  job.mutable_optimizer()->set_name(flags.optimizer == "sgd" ? v1::OptimizerSpec::SGD
                                                             : v1::OptimizerSpec::ADD);
  job.mutable_optimizer()->set_learning_rate(0.5);
  job.mutable_parameter_server()->set_replicas(flags.shards);
  job.mutable_parameter_server()->set_partitions(kDefaultPartitions);
  job.mutable_worker()->set_replicas(1);
  job.mutable_timeouts()->set_heartbeat(1);
  job.mutable_timeouts()->set_suspect(1);
  job.mutable_timeouts()->set_heartbeat_timeout(30);
  job.mutable_timeouts()->set_pause(30);
  job.mutable_timeouts()->set_initialization(60);
  job.mutable_timeouts()->set_suspend_checkpoint(60);
  return job;
}

absl::Status RunIn(const Flags& flags, const std::string& directory) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  std::string tls_directories;
  security::TransportSecurity::Options own_credentials;
  if (flags.tls) {
    tls_directories = directory + "/tls";
    own_credentials.directory = tls_directories + "/worker-0";
    const auto made = security::WriteCredentialDirectories(
        files.get(), tls_directories, {.job = "default/push-pull", .shards = flags.shards},
        absl::Now());
    if (!made.ok()) return made.status();
  }
  ASSIGN_OR_RETURN(const auto security, security::TransportSecurity::OpenIfAny(
                                            files.get(), own_credentials, absl::Now()));
  testing::JobProcesses::Options job;
  job.job = MakeJob(flags);
  job.directory = directory;
  job.tls_directories = tls_directories;
  job.programs = flags.programs;
  testing::JobProcesses processes(std::move(job));
  RETURN_IF_ERROR(processes.StartCoordinator());
  for (uint32_t i = 0; i < flags.shards; ++i) {
    RETURN_IF_ERROR(processes.StartShard(i));
  }
  const double step_change = flags.optimizer == "sgd" ? -0.5 : 1.0;
  ConstantGradientEngine* engine = nullptr;
  worker::WorkerProcess::Options options = bench::FirstWorkerOptions(processes);
  options.shared_memory = flags.shared_memory;
  if (flags.tls) options.security = security;
  options.make_engine = [&](const v1::JobSpec&, const DatasetInfo&,
                            int) -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    auto made = std::make_unique<ConstantGradientEngine>(flags, step_change);
    engine = made.get();
    return made;
  };
  Metrics metrics(worker::WorkerMetrics(), {});
  const auto process = worker::WorkerProcess::Start(std::move(options), &metrics, Logger());
  RETURN_IF_ERROR(bench::WaitUntilFinished(process.get()));
  if (engine->seconds().size() < flags.warmup + flags.steps) {
    return absl::InternalError(absl::StrCat("only ", engine->seconds().size(), " steps"));
  }
  std::vector<double> seconds(engine->seconds().begin() + static_cast<ptrdiff_t>(flags.warmup),
                              engine->seconds().end());
  std::sort(seconds.begin(), seconds.end());
  std::cout
      << absl::StrFormat(
             R"({"benchmark": "push_pull", "bytes": %d, "touched_rows": %d, "shards": %d, "optimizer": "%s", "tls": %s, "steps": %d, )"
             R"("median_seconds": %.9f, "fastest_seconds": %.9f, "slowest_seconds": %.9f})",
             flags.table_rows > 0 ? flags.table_rows * flags.row_elements * sizeof(float)
                                  : flags.bytes,
             flags.table_rows > 0 ? flags.touched_rows : 0, flags.shards, flags.optimizer,
             flags.tls ? "true" : "false", seconds.size(), seconds[seconds.size() / 2],
             seconds.front(), seconds.back())
      << std::endl;
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Measures one push of a whole model and pull of its next version."};
  app.add_option("--bytes", flags.bytes, "size of the model, a multiple of 4")
      ->capture_default_str();
  app.add_option("--table-rows", flags.table_rows,
                 "rows of an embedding table, instead of --bytes");
  app.add_option("--row-elements", flags.row_elements)->capture_default_str();
  app.add_option("--touched-rows", flags.touched_rows, "rows that each step touches")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--shards", flags.shards)->capture_default_str();
  app.add_option("--steps", flags.steps, "number of measured steps")->capture_default_str();
  app.add_option("--warmup", flags.warmup, "number of steps before them")->capture_default_str();
  app.add_option("--optimizer", flags.optimizer)
      ->check(CLI::IsMember({"add", "sgd"}))
      ->capture_default_str();
  app.add_flag("--shared-memory,!--no-shared-memory", flags.shared_memory,
               "between worker and shard (default: yes)");
  app.add_flag("--tls", flags.tls, "encrypt, with a certificate for each process");
  app.add_option("--programs", flags.programs,
                 "directory that contains services/ps/sluice-ps, ...");
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;
  ConfigureGrpcProcess({});
  const absl::Status status = bench::InNewDirectory(
      "push-pull", [&](const std::string& directory) { return RunIn(flags, directory); });
  return status.ok() ? 0 : ExitWith("push_pull", status);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
