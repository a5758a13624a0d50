// sluice bench

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/data_download.h"
#include "cli/job_paths.h"
#include "cli/mode_comparison.h"
#include "cli/mode_plot.h"
#include "operator/api/codec.h"
#include "operator/api/manifest.h"
#include "services/common/exit_code.h"
#include "services/common/file_util.h"
#include "services/common/number_range.h"
#include "services/common/temporary_directory.h"

namespace sluice::cli {
namespace {

struct BenchFlags {
  std::string what;
  std::string manifest;
  std::string output = "text";
  std::string plot;
  std::string program_directory;
  std::optional<double> target;
  ModeOptions options;
};

// Runs the job in one mode, with its state in `directory`. An error has the run's own message.
absl::StatusOr<ModeRun> RunMode(const Environment& environment, const BenchFlags& flags,
                                const nlohmann::json& job, const std::string& mode,
                                const std::string& directory) {
  const std::string file = JoinPath(directory, absl::StrCat(mode, ".json"));
  absl::Status written =
      AtomicWriteFile(environment.files, file,
                      absl::Cord(ManifestForMode(job, mode, flags.options).dump(2)), "bench");
  if (!written.ok()) return written;

  std::ostringstream out;
  std::ostringstream err;
  Environment inner = environment;
  inner.out = &out;
  inner.err = &err;
  std::vector<std::string> arguments = {
      "run", file, "--output", "json", "--state-dir", JoinPath(directory, mode), "--quiet"};
  if (!flags.program_directory.empty()) {
    arguments.insert(arguments.end(), {"--bin-dir", flags.program_directory});
  }
  const int code = RunCommandLine(arguments, inner);
  if (code == kExitInterrupted) return absl::CancelledError("interrupted");
  if (out.str().empty()) {
    const std::string why = err.str();
    return absl::FailedPreconditionError(
        absl::StrCat(mode, ": ", absl::StripSuffix(absl::StripPrefix(why, "sluice: "), "\n")));
  }
  return ParseModeRun(mode, out.str());
}

absl::Status Tell(const Environment& environment, const BenchFlags& flags,
                  const std::vector<ModeRun>& runs) {
  const std::optional<double> target = flags.target.has_value() ? flags.target : CommonTarget(runs);
  if (flags.output == "json") {
    *environment.out << ComparisonJson(runs, target) << "\n";
  } else {
    for (const std::string& line : ComparisonLines(runs, target)) {
      *environment.out << line << "\n";
    }
  }
  if (flags.plot.empty()) return absl::OkStatus();
  return AtomicWriteFile(environment.files, flags.plot, absl::Cord(PlotModes(runs)), "bench");
}

int BenchModes(const Environment& environment, const BenchFlags& flags) {
  absl::StatusOr<api::TrainingJob> job = api::ReadManifest(flags.manifest);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }
  for (const std::string& taken :
       FindData(flags.manifest, environment.data_directory, environment.files, &job->spec)) {
    *environment.err << "Note: " << taken << "\n";
  }
  if (absl::Status status = DownloadData(environment, /*quiet=*/false, job->spec.data());
      !status.ok()) {
    return Complain(environment, status);
  }
  // Each run saves its checkpoints in its own state directory.
  job->spec.mutable_checkpoint()->clear_directory();
  const auto directory = TemporaryDirectory::Make("sluice-bench");
  if (!directory.ok()) return Complain(environment, directory.status());
  std::vector<ModeRun> runs;
  for (const char* mode : kModes) {
    *environment.err << mode << " trains" << std::endl;
    absl::StatusOr<ModeRun> run =
        RunMode(environment, flags, api::ToJson(*job), mode, (*directory)->path());
    if (absl::IsCancelled(run.status())) return kExitInterrupted;
    if (!run.ok()) return Complain(environment, run.status());
    runs.push_back(*std::move(run));
  }
  if (absl::Status status = Tell(environment, flags, runs); !status.ok()) {
    return Complain(environment, status);
  }
  return kExitOk;
}

}  // namespace

void AddBenchCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* bench = app->add_subcommand(
      "bench",
      "Train a job in each mode, one after the other, and compare\n\n"
      "  sluice bench modes job.yaml\n"
      "  sluice bench modes job.yaml --samples 60000 --target 90 --plot modes.svg\n\n"
      "Each mode trains on the same number of samples, in batches of the same size per worker. "
      "The\n"
      "trained models are not kept.\n");
  bench->add_option("WHAT", flags->what, "modes: Synchronous, BoundedStaleness, Asynchronous")
      ->required()
      ->check(CLI::IsMember({"modes"}));
  bench->add_option("FILE", flags->manifest, "the manifest")->required();
  bench
      ->add_option("--samples", flags->options.samples,
                   "number of samples to train on in each mode (default: the manifest's)")
      ->check(CLI::PositiveNumber);
  bench
      ->add_option("--max-staleness", flags->options.max_staleness,
                   "maximum staleness of BoundedStaleness, if the manifest sets none")
      ->capture_default_str()
      ->check(NumberBetween<uint64_t>(0, 1'000'000));
  bench->add_option("--target", flags->target,
                    "target value of the metric for the time measurement (default: the worst final "
                    "value of the modes)");
  bench->add_option("--output", flags->output, "text: a table, or json: one object")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  bench->add_option("--plot", flags->plot, "file to draw the metric into, as SVG");
  bench->add_option("--bin-dir", flags->program_directory,
                    "directory of the programs (default: beside sluice; SLUICE_BIN_DIR)");
  bench->callback([=, &environment] {
    *action = [=, &environment] { return BenchModes(environment, *flags); };
  });
}

}  // namespace sluice::cli
