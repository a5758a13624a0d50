// sluice plan
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "operator/api/manifest.h"
#include "proto/control.pb.h"
#include "services/cli/command.h"
#include "services/cli/job_json.h"
#include "services/cli/job_paths.h"
#include "services/cli/plan.h"
#include "services/cli/run_preparation.h"
#include "services/cli/run_program.h"
#include "services/common/exit_code.h"
#include "services/common/file_util.h"

namespace sluice::cli {
namespace {

constexpr size_t kMaxReadyBytes = size_t{64} << 20;

struct PlanFlags {
  std::string manifest;
  std::string bandwidth = "10Gbit";
  std::string output = "text";
  std::string program_directory;
};

// What sluice-worker says of the job's model and data; it has told on standard error what is wrong
// with them, if the code is not kExitOk.
int Describe(const Environment& environment, const PlanFlags& flags, const v1::JobSpec& job,
             v1::Ready* ready) {
  const auto programs = FindPrograms(flags.program_directory.empty()
                                         ? environment.program_directories
                                         : std::vector<std::string>{flags.program_directory},
                                     {v1::WORKER});
  if (!programs.ok()) return Complain(environment, programs.status());
  const std::string stem =
      absl::StrCat(std::filesystem::temp_directory_path().string(), "/sluice-plan-", getpid());
  const std::string job_file = absl::StrCat(stem, ".json");
  const std::string ready_file = absl::StrCat(stem, ".ready");
  const auto remove = absl::MakeCleanup([&] {
    (void)environment.files->Remove(job_file);
    (void)environment.files->Remove(ready_file);
  });
  const absl::Status written =
      AtomicWriteFile(environment.files, job_file, absl::Cord(JobSpecToJson(job)), "plan");
  if (!written.ok()) return Complain(environment, written);
  environment.out->flush();
  const int code =
      RunProgram({programs->worker, "describe", "--job", job_file, "--output", ready_file});
  if (code != kExitOk) return code;
  const absl::StatusOr<std::string> bytes = environment.files->Read(ready_file, kMaxReadyBytes);
  if (!bytes.ok()) return Complain(environment, bytes.status());
  if (!ready->ParseFromString(*bytes)) {
    return Complain(environment, absl::InternalError("sluice-worker describes the model wrongly"));
  }
  return kExitOk;
}

int RunPlan(const Environment& environment, const PlanFlags& flags) {
  const absl::StatusOr<double> bandwidth = ParseBandwidth(flags.bandwidth);
  if (!bandwidth.ok()) {
    Complain(environment, bandwidth.status());
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
  if (job->spec.model().type() == v1::ModelSpec::CUSTOM) {
    Complain(environment, absl::InvalidArgumentError(
                              "a Custom model is known to its own program only: no plan"));
    return kExitUsage;
  }
  if (job->spec.training().execution() == v1::TrainingSpec::SERVER) {
    Complain(environment, absl::InvalidArgumentError(
                              "with `execution: Server` inputs and activations travel, which "
                              "depend on the data: no plan"));
    return kExitUsage;
  }
  v1::Ready ready;
  if (const int code = Describe(environment, flags, job->spec, &ready); code != kExitOk) {
    return code;
  }
  const absl::StatusOr<Plan> plan = MakePlan(job->spec, ready.table());
  if (!plan.ok()) return Complain(environment, plan.status());
  if (flags.output == "json") {
    *environment.out << PlanJson(*plan, *bandwidth) << "\n";
    return kExitOk;
  }
  for (const std::string& line : PlanLines(*plan, *bandwidth)) *environment.out << line << "\n";
  return kExitOk;
}

}  // namespace

void AddPlanCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* plan = app->add_subcommand(
      "plan",
      "Tell what a job will take: memory, bytes on the network, time on the network\n\n"
      "  sluice plan job.yaml\n"
      "  sluice plan job.yaml --bandwidth 1Gbit\n\n"
      "Opens the model and the data, and starts nothing else.\n");
  plan->add_option("FILE", flags->manifest, "the manifest")->required();
  plan->add_option("--bandwidth", flags->bandwidth, "of each process's link, in each direction")
      ->capture_default_str();
  plan->add_option("--output", flags->output, "text, or json: one object")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  plan->add_option("--bin-dir", flags->program_directory,
                   "folder of sluice-worker (default: beside sluice; SLUICE_BIN_DIR)");
  plan->callback(
      [=, &environment] { *action = [=, &environment] { return RunPlan(environment, *flags); }; });
}

}  // namespace sluice::cli
