// The flags of `sluice run`.
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/cluster/cluster_run.h"
#include "cli/command.h"
#include "cli/run/local_run.h"
#include "services/common/process/number_range.h"

namespace sluice::cli {
namespace {

// A cluster has no use for these flags.
absl::Status CheckClusterFlags(const RunFlags& flags) {
  const std::pair<const char*, bool> here_only[] = {
      {"--fresh", flags.fresh},
      {"--take-over", flags.take_over},
      {"--port", flags.port != 0},
      {"--foreground", flags.foreground},
      {"--bin-dir", !flags.program_directory.empty()}};

  for (const auto& [flag, given] : here_only) {
    if (!given) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " applies to jobs of this machine, not of a cluster"));
  }
  return absl::OkStatus();
}

int Run(const Environment& environment, const ClusterRunFlags& flags) {
  if (!flags.cluster.wanted()) return RunOnThisMachine(environment, flags);
  const absl::Status checked = CheckClusterFlags(flags);
  return checked.ok() ? RunOnCluster(environment, flags) : PrintError(environment, checked);
}

void AddLocalFlags(CLI::App* run, RunFlags* flags) {
  run->add_flag("--fresh", flags->fresh, "start over: delete the existing checkpoints");
  run->add_flag("--take-over", flags->take_over,
                "if the job is already running: save a checkpoint, stop it, and continue with this "
                "manifest (another training.mode, number of shards, ...)")
      ->excludes("--fresh");
  run->add_flag("-y,--yes", flags->yes, "do not ask before --fresh removes anything");
  run->add_flag("--foreground", flags->foreground,
                "run the program of the only worker (--workers 1) on this terminal, for a "
                "debugger: breakpoint() works, and no process is lost because it waits");
}

}  // namespace

void AddRunCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<ClusterRunFlags>();
  CLI::App* run = app->add_subcommand(
      "run",
      "Train a job, on this machine or on a cluster, and follow its progress\n\n"
      "  sluice run job.yaml\n"
      "  sluice run job.yaml --workers 4 --shards 2\n"
      "  sluice run job.yaml --output json | tee run.jsonl\n"
      "  sluice run --cluster job.yaml\n"
      "  sluice run --context prod --namespace vision --detach job.yaml\n\n"
      "On this machine, Ctrl-C saves a checkpoint and stops; the same command resumes the job.\n"
      "On a cluster, Ctrl-C detaches, and the job continues; run the same command to re-attach,\n"
      "or to resume a job that `sluice stop` has suspended.\n");

  run->footer(ExitCodesText());
  run->add_option("FILE", flags->manifest, "the manifest")->required();
  AddLocalFlags(run, flags.get());

  run->add_flag("--dry-run", flags->dry_run, "show what would start, but change nothing");
  run->add_option("--workers", flags->workers, "number of workers instead of the manifest's")
      ->check(NumberBetween<uint32_t>(1, kMaxReplicas));
  run->add_option("--shards", flags->shards, "number of shards instead of the manifest's")
      ->check(NumberBetween<uint32_t>(1, kMaxReplicas));

  run->add_flag("-q,--quiet", flags->quiet, "print only the final metric and errors");
  run->add_flag("-v,--verbose", flags->verbose,
                "also show the processes' logs, with a line for each push, pull and step");

  run->add_option("--output", flags->output,
                  "text; json: one object on each line; plain: evaluations, the final metric and "
                  "the time")
      ->excludes("--foreground")
      ->check(CLI::IsMember({"text", "json", "plain"}))
      ->capture_default_str();

  run->add_option("--port", flags->port, "the coordinator's port (default: any free port)")
      ->check(CLI::Range(0, 65535));
  run->add_option("--log-level", flags->log_level,
                  "log level of the processes (default: info; with --verbose debug)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));

  run->add_option("--bin-dir", flags->program_directory,
                  "directory of sluice-coordinator, sluice-ps and sluice-worker (default: beside "
                  "sluice; SLUICE_BIN_DIR)");

  AddStateDirectory(run, &flags->state_directory);
  AddClusterFlags(run, &flags->cluster);

  run->add_flag("-d,--detach", flags->detach,
                "on a cluster: apply the manifest, and do not follow the job");
  run->add_flag("--force-conflicts", flags->force_conflicts,
                "on a cluster: take over fields that other tools have set");

  run->callback(
      [=, &environment] { *action = [=, &environment] { return Run(environment, *flags); }; });
}

}  // namespace sluice::cli
