// The flags of `sluice chaos`.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/chaos/chaos_run.h"
#include "cli/command.h"
#include "services/common/process/number_range.h"

namespace sluice::cli {
namespace {

// Adds an option that takes a time: "5s", "500ms", or seconds without a unit.
CLI::Option* AddDuration(CLI::App* command, const char* name, absl::Duration* duration,
                         const char* description) {
  return command
      ->add_option_function<std::string>(
          name,
          [duration, name](const std::string& text) {
            absl::Duration value;
            const bool parsed = absl::ParseDuration(text, &value) ||
                                absl::ParseDuration(absl::StrCat(text, "s"), &value);
            if (!parsed || value <= absl::ZeroDuration() || value == absl::InfiniteDuration()) {
              throw CLI::ValidationError(
                  name,
                  absl::StrCat("'", text,
                               "' is not a time above 0; write 5s, 500ms or 2m, for example"));
            }
            *duration = value;
          },
          description)
      ->type_name("TIME");
}

}  // namespace

void AddChaosCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<ChaosFlags>();
  CLI::App* chaos = app->add_subcommand(
      "chaos",
      "Train a job on this machine while its processes, links and disk fail, and judge it\n\n"
      "  sluice chaos job.yaml\n"
      "  sluice chaos job.yaml --seed 7 --faults kill:worker,freeze:shard --every 10s\n"
      "  sluice chaos job.yaml --faults kill:worker+worker+shard,scale:shard,scale:worker\n"
      "  sluice chaos job.yaml --faults cut:worker,slow:shard,fill:disk --for 3s\n"
      "  sluice chaos job.yaml --baseline run\n\n"
      "The job trains from its beginning in a state directory of its own; your job and its\n"
      "checkpoints are not changed. The seed determines the faults. They are injected one at a\n"
      "time until the job ends, each after the job has recovered from the previous one. The "
      "verdict\n"
      "is `Passed` if the job succeeds. With a baseline, a job with `determinism: BitExact` must\n"
      "also end with the same bytes. Ctrl-C stops the job; there is no verdict then.\n");

  chaos->footer(ExitCodesText());
  chaos->add_option("FILE", flags->manifest, "the manifest")->required();

  chaos
      ->add_option(
          "--faults", flags->faults,
          "kinds of faults, separated by commas: kill (SIGKILL), freeze (SIGSTOP, later "
          "SIGCONT) or term (SIGTERM) of a worker, shard or coordinator; cut (no byte passes) or "
          "slow (bytes arrive late) of its connections; scale (another number) of the workers or "
          "shards; fill:disk (no checkpoint can be written); kill:worker+shard hits two processes "
          "at once")
      ->type_name("LIST")
      ->capture_default_str();

  chaos->add_option("--seed", flags->seed, "repeat the faults of this seed (default: a new seed)")
      ->check(NumberBetween<uint64_t>(0, UINT64_MAX));

  AddDuration(chaos, "--every", &flags->every,
              "mean time from a recovery to the next fault (default: 5s)");
  AddDuration(chaos, "--for", &flags->lasting,
              "how long freeze, cut, slow and fill last (default: a random time up to twice "
              "heartbeatTimeoutSeconds)");

  chaos->add_option("--count", flags->count, "inject at most this many faults")
      ->check(NumberBetween<uint64_t>(1, UINT64_MAX));

  chaos
      ->add_option("--baseline", flags->baseline,
                   "run: first train without faults, and compare speed and result")
      ->check(CLI::IsMember({"none", "run"}))
      ->capture_default_str();

  chaos
      ->add_option("--tolerance", flags->tolerance,
                   "fail if the final loss is more than this many percent above the baseline's")
      ->check(NumberBetween<double>(0, 1e6));

  AddDuration(chaos, "--stall", &flags->stall,
              "fail if the job completes no step for this long (default: 120s)");

  chaos->add_option("--workers", flags->workers, "number of workers instead of the manifest's")
      ->check(NumberBetween<uint32_t>(1, kMaxReplicas));
  chaos->add_option("--shards", flags->shards, "number of shards instead of the manifest's")
      ->check(NumberBetween<uint32_t>(1, kMaxReplicas));

  chaos->add_flag("-q,--quiet", flags->quiet, "print only the verdict and errors");
  chaos->add_flag("-v,--verbose", flags->verbose, "also show the processes' logs");
  chaos->add_option("--output", flags->output, "text, or json: one object on each line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();

  chaos
      ->add_option("--log-level", flags->log_level,
                   "log level of the processes (default: info; with --verbose debug)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));

  chaos->add_option("--bin-dir", flags->program_directory,
                    "directory of sluice-coordinator, sluice-ps and sluice-worker (default: beside "
                    "sluice; SLUICE_BIN_DIR)");
  AddStateDirectory(chaos, &flags->state_directory);

  chaos->callback(
      [=, &environment] { *action = [=, &environment] { return RunChaos(environment, *flags); }; });
}

}  // namespace sluice::cli
