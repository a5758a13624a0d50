// sluice plan

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/describe_model.h"
#include "cli/local/job_directory.h"
#include "cli/local/job_paths.h"
#include "cli/plan/plan.h"
#include "proto/describe.pb.h"
#include "services/checkpoint/restore_source.h"
#include "services/common/exit_code.h"
#include "services/common/status_macros.h"
#include "services/manifest/manifest.h"
#include "services/ps/plugins/plugins.h"

namespace sluice::cli {
namespace {

struct PlanFlags {
  std::string manifest;
  std::string bandwidth = "10Gbit";
  std::string output = "text";
  std::string program_directory;
  std::string state_directory = ".sluice";
  uint64_t parameters = 0;
};

// The tensors of a Custom model, which only its own program can describe: those of the job's newest
// checkpoint, of the checkpoint that it restores from, or one tensor with the number of parameters
// that the user gives.
absl::StatusOr<v1::TensorTable> CustomTable(const Environment& environment, const PlanFlags& flags,
                                            const v1::JobSpec& job) {
  if (flags.parameters > 0) {
    v1::TensorTable table;
    v1::TensorSpec& tensor = *table.add_tensors();
    tensor.set_name("parameters");
    tensor.add_shape(static_cast<int64_t>(flags.parameters));
    const bool known = job.model().dtype() != v1::DATA_TYPE_UNSPECIFIED;
    tensor.set_dtype(known ? job.model().dtype() : v1::FLOAT32);
    tensor.set_kind(v1::PARAMETER);
    return table;
  }

  const local::JobDirectory directory(environment.files, flags.state_directory, job.name());
  for (const std::string& path : {directory.CheckpointsOf(job), job.checkpoint().restore_from()}) {
    if (path.empty()) continue;
    const absl::StatusOr<RestoreSource> source = FindRestoreSource(environment.files, path);
    if (source.ok()) return source->checkpoint_index.table();
    if (!absl::IsNotFound(source.status())) return source.status();
  }

  return absl::InvalidArgumentError(
      "only its own program can describe a Custom model, and the job has no checkpoint yet; give "
      "its number of parameters with --parameters");
}

int RunPlan(const Environment& environment, const PlanFlags& flags) {
  const absl::StatusOr<double> bandwidth = ParseBandwidth(flags.bandwidth);
  if (!bandwidth.ok()) {
    PrintError(environment, bandwidth.status());
    return kExitUsage;
  }

  absl::StatusOr<api::TrainingJob> job = api::ReadManifest(flags.manifest);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }

  for (const std::string& taken :
       FindData(flags.manifest, environment.data_directory, environment.files, &job->spec)) {
    *environment.err << "Note: " << taken << "\n";
  }

  v1::Description description;
  if (job->spec.model().type() == v1::ModelSpec::CUSTOM) {
    absl::StatusOr<v1::TensorTable> table = CustomTable(environment, flags, job->spec);
    if (!table.ok()) {
      PrintError(environment, table.status());
      return kExitUsage;
    }
    *description.mutable_ready()->mutable_table() = *std::move(table);
  } else if (const int code =
                 DescribeModel(environment, flags.program_directory, job->spec, &description);
             code != kExitOk) {
    return code;
  }

  std::vector<StageTraffic> stages;
  for (const v1::Description::Stage& stage : description.stages()) {
    stages.push_back({stage.input_bytes(), stage.output_bytes()});
  }

  ASSIGN_OR_RETURN(const std::vector<RowTraffic> rows, RowTrafficOf(job->spec, description),
                   PrintError(environment, _));

  ASSIGN_OR_RETURN(const Plan plan,
                   MakePlan(job->spec, description.ready().table(), stages, rows,
                            LibrariesIn(environment.plugin_path)),
                   PrintError(environment, _));

  if (flags.output == "json") {
    *environment.out << PlanJson(plan, *bandwidth) << "\n";
    return kExitOk;
  }
  for (const std::string& line : PlanLines(plan, *bandwidth)) *environment.out << line << "\n";
  return kExitOk;
}

}  // namespace

void AddPlanCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan =
      app->add_subcommand("plan",
                          "Estimate a job's memory and network use\n\n"
                          "  sluice plan job.yaml\n"
                          "  sluice plan job.yaml --bandwidth 1Gbit\n\n"
                          "Reads the model and the data, and starts no process of the "
                          "job. The size of a\nCustom model is that of the job's newest "
                          "checkpoint, or --parameters.\n");

  plan->add_option("FILE", flags->manifest, "the manifest")->required();
  plan->add_option("--bandwidth", flags->bandwidth,
                   "bandwidth of each process's link, in each direction")
      ->capture_default_str();

  plan->add_option("--output", flags->output, "text, or json: one object")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();

  plan->add_option_function<std::string>(
          "--parameters",
          [flags](const std::string& text) {
            const absl::StatusOr<uint64_t> count = ParseCount(text);
            if (!count.ok()) {
              throw CLI::ValidationError("--parameters", std::string(count.status().message()));
            }
            flags->parameters = *count;
          },
          "number of parameters of a Custom model without a checkpoint (12000000, 12k, 1.5M); all "
          "have the type model.dtype")
      ->type_name("COUNT");

  AddStateDirectory(plan, &flags->state_directory);
  plan->add_option("--bin-dir", flags->program_directory,
                   "directory of sluice-worker (default: beside sluice; SLUICE_BIN_DIR)");
  plan->callback(
      [=, &environment] { *action = [=, &environment] { return RunPlan(environment, *flags); }; });
}

}  // namespace sluice::cli
