#include "services/worker/describe.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/describe.pb.h"
#include "proto/job.pb.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/execution/worker/stage_sizes.h"
#include "services/manifest/job_file.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/samples/smallest_batch.h"
#include "services/worker/data/dataset.h"
#include "services/worker/trainer.h"

namespace sluice::worker {
namespace {

constexpr size_t kMaxJobBytes = size_t{1} << 20;

// Few enough to be reported quickly, many enough to distinguish shards.
constexpr uint64_t kRowRanges = 256;
constexpr uint64_t kSteps = 16;

// Samples of one worker's step, or of one update in modes without steps.
uint64_t SamplesOfWorker(const v1::JobSpec& job) {
  const uint64_t batch = std::max<uint64_t>(1, job.training().global_batch_size());
  const bool shared = IsSynchronous(job.training().mode());
  const uint64_t workers = std::max<uint32_t>(1, job.worker().replicas());
  return shared ? std::max<uint64_t>(1, (batch + workers / 2) / workers) : batch;
}

// Counts the table's rows that a worker's steps use, spread over the first pass over the data.
absl::Status CountRows(const v1::JobSpec& job, uint64_t table_rows, Trainer* trainer,
                       v1::Description::RowTable* table) {
  const uint64_t batch = std::max<uint64_t>(1, job.training().global_batch_size());
  const uint64_t samples = std::min(SamplesOfWorker(job), trainer->training_samples());
  const uint64_t last = trainer->training_samples() - samples;
  const uint64_t steps = std::min(kSteps, last / batch + 1);
  const uint64_t ranges = std::min(kRowRanges, table_rows);
  std::vector<uint64_t> counts(ranges);

  // Steps spread over the whole of the data.
  for (uint64_t i = 0; i < steps; ++i) {
    const uint64_t begin = (last / batch + 1) * i / steps * batch;
    ASSIGN_OR_RETURN(const RowSelections rows, trainer->FindRows({{begin, begin + samples}}));
    const auto found = rows.find(table->tensor());
    if (found == rows.end()) continue;
    for (uint64_t row : found->second) ++counts[row * ranges / table_rows];
  }

  for (uint64_t count : counts) {
    table->add_rows(static_cast<double>(count) / static_cast<double>(steps));
  }

  table->set_steps(static_cast<uint32_t>(steps));
  return absl::OkStatus();
}

absl::Status DescribeRows(const v1::JobSpec& job, const DatasetInfo& data, Trainer* trainer,
                          v1::Description* description) {
  const std::vector<uint32_t> pulled = trainer->RowTensors();
  const v1::TensorTable tensors = trainer->engine().Describe();
  for (uint32_t tensor : trainer->engine().RowTensors()) {
    v1::Description::RowTable& table = *description->add_row_tables();
    table.set_tensor(tensor);
    table.set_pulled(std::find(pulled.begin(), pulled.end(), tensor) != pulled.end());

    const bool built_in = job.model().type() == v1::ModelSpec::BUILTIN;
    if (built_in && job.data().format() == v1::DataSpec::SYNTHETIC) {
      uint64_t tokens = 1;
      for (int64_t size : data.sample_shape) tokens *= static_cast<uint64_t>(size);
      table.set_random_tokens(tokens);
      continue;
    }

    const auto rows = static_cast<uint64_t>(tensors.tensors(static_cast<int>(tensor)).shape(0));
    RETURN_IF_ERROR(CountRows(job, rows, trainer, &table));
  }
  return absl::OkStatus();
}

absl::Status Describe(const std::string& job_file, const std::string& output,
                      const EngineFactory& make_engine, const DataFetcher& fetch_data) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  ASSIGN_OR_RETURN(const std::string json, files->Read(job_file, kMaxJobBytes));
  ASSIGN_OR_RETURN(api::JobFile file, api::ParseJobFile(json),
                   absl::Status(_.code(), absl::StrCat(job_file, ": ", _.message())));

  // Opens the data and the model.
  v1::JobSpec& job = file.job;
  RETURN_IF_ERROR(fetch_data(job.mutable_data(), [] { return false; }));
  DatasetInfo data;
  const EngineFactory note_data = [&](const v1::JobSpec& of, const DatasetInfo& info, int threads) {
    data = info;
    return make_engine(of, info, threads);
  };
  ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                   Trainer::Open(job, /*index=*/0, /*threads=*/1, note_data));

  // Traffic between the stages of server-side execution.
  v1::Description description;
  if (job.training().execution() == v1::TrainingSpec::SERVER) {
    ASSIGN_OR_RETURN(const std::vector<StageSizes> sizes,
                     MeasureStages(job, data.sample_shape, data.outputs, data.tokens));
    for (const StageSizes& stage : sizes) {
      v1::Description::Stage& entry = *description.add_stages();
      entry.set_input_bytes(stage.input_bytes);
      entry.set_output_bytes(stage.output_bytes);
    }
  }

  // Rows of tables, which only workers that compute themselves pull.
  if (job.training().execution() != v1::TrainingSpec::SERVER &&
      job.model().embeddings() == v1::ModelSpec::ROWS) {
    RETURN_IF_ERROR(DescribeRows(job, data, trainer.get(), &description));
  }

  *description.mutable_ready() = trainer->Ready();
  RETURN_IF_ERROR(CheckSmallestBatch(job, description.ready()));
  return AtomicWriteFile(files.get(), output, absl::Cord(description.SerializeAsString()),
                         "describe");
}

}  // namespace

int DescribeMain(int argc, char** argv, const EngineFactory& make_engine,
                 const DataFetcher& fetch_data) {
  std::string job;
  std::string output;
  CLI::App app{"Writes the tensors of a job's model, and how many samples its data has.",
               "sluice-worker describe"};
  app.add_option("--job", job, "the job, as `sluice render` prints it")->required();
  app.add_option("--output", output, "the file to write: a Description message")->required();
  // The command's name precedes the flags.
  if (const int code = ParseFlags(&app, argc - 1, argv + 1); code >= 0) return code;
  const absl::Status status = Describe(job, output, make_engine, fetch_data);
  return status.ok() ? +kExitOk : ExitWith("sluice-worker", status);
}

}  // namespace sluice::worker
