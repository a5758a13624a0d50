#include "services/worker/describe.h"

#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/describe.pb.h"
#include "proto/job.pb.h"
#include "services/common/exit_code.h"
#include "services/common/file_util.h"
#include "services/common/program.h"
#include "services/worker/data/dataset.h"
#include "services/worker/remote/stage_sizes.h"
#include "services/worker/trainer.h"

namespace sluice::worker {
namespace {

constexpr size_t kMaxJobBytes = size_t{1} << 20;

absl::Status Describe(const std::string& job_file, const std::string& output,
                      const EngineFactory& make_engine, const DataFetcher& fetch_data) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const absl::StatusOr<std::string> json = files->Read(job_file, kMaxJobBytes);
  if (!json.ok()) return json.status();
  v1::JobSpec job;
  const auto parsed = google::protobuf::util::JsonStringToMessage(*json, &job);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(job_file, " is no job: ", parsed.ToString()));
  }
  absl::Status fetched = fetch_data(job.mutable_data(), [] { return false; });
  if (!fetched.ok()) return fetched;
  DatasetInfo data;
  const EngineFactory note_data = [&](const v1::JobSpec& of, const DatasetInfo& info, int threads) {
    data = info;
    return make_engine(of, info, threads);
  };
  absl::StatusOr<std::unique_ptr<Trainer>> trainer =
      Trainer::Open(job, /*index=*/0, /*threads=*/1, note_data);
  if (!trainer.ok()) return trainer.status();
  v1::Description description;
  if (job.training().execution() == v1::TrainingSpec::SERVER) {
    const absl::StatusOr<std::vector<StageSizes>> sizes =
        MeasureStages(job, data.sample_shape, data.outputs, data.tokens);
    if (!sizes.ok()) return sizes.status();
    for (const StageSizes& stage : *sizes) {
      v1::Description::Stage& entry = *description.add_stages();
      entry.set_input_bytes(stage.input_bytes);
      entry.set_output_bytes(stage.output_bytes);
    }
  }
  v1::Ready& ready = *description.mutable_ready();
  *ready.mutable_table() = (*trainer)->engine().Describe();
  ready.set_training_samples((*trainer)->training_samples());
  ready.set_evaluation_samples((*trainer)->evaluation_samples());
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
  // The command's name is in front of the flags.
  if (const int code = ParseFlags(&app, argc - 1, argv + 1); code >= 0) return code;
  const absl::Status status = Describe(job, output, make_engine, fetch_data);
  return status.ok() ? +kExitOk : ExitWith("sluice-worker", status);
}

}  // namespace sluice::worker
