#include "services/worker/describe.h"

#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "services/common/exit_code.h"
#include "services/common/file_util.h"
#include "services/common/program.h"
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
  const absl::Status fetched = fetch_data(job.mutable_data(), [] { return false; });
  if (!fetched.ok()) return fetched;
  absl::StatusOr<std::unique_ptr<Trainer>> trainer =
      Trainer::Open(job, /*index=*/0, /*threads=*/1, make_engine);
  if (!trainer.ok()) return trainer.status();
  v1::Ready ready;
  *ready.mutable_table() = (*trainer)->engine().Describe();
  ready.set_training_samples((*trainer)->training_samples());
  ready.set_evaluation_samples((*trainer)->evaluation_samples());
  return AtomicWriteFile(files.get(), output, absl::Cord(ready.SerializeAsString()), "describe");
}

}  // namespace

int DescribeMain(int argc, char** argv, const EngineFactory& make_engine,
                 const DataFetcher& fetch_data) {
  std::string job;
  std::string output;
  CLI::App app{"Writes the tensors of a job's model, and how many samples its data has.",
               "sluice-worker describe"};
  app.add_option("--job", job, "the job, as `sluice render` prints it")->required();
  app.add_option("--output", output, "the file to write: a Ready message")->required();
  // The command's name is in front of the flags.
  if (const int code = ParseFlags(&app, argc - 1, argv + 1); code >= 0) return code;
  const absl::Status status = Describe(job, output, make_engine, fetch_data);
  return status.ok() ? +kExitOk : ExitWith("sluice-worker", status);
}

}  // namespace sluice::worker
