// The flags of `sluice verify`.
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/verify/verify_run.h"
#include "services/common/process/number_range.h"

namespace sluice::cli {

void AddVerifyCommand(CLI::App* app, const Environment& environment, Action* action) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* verify = app->add_subcommand(
      "verify",
      "Train steps of a job again, and compare with its checkpoints\n\n"
      "  sluice verify fashion-mnist\n"
      "  sluice verify fashion-mnist --from 500 --to 1000\n"
      "  sluice verify fashion-mnist --all\n\n"
      "A synchronous job's result does not depend on its processes: trained again from one of\n"
      "its checkpoints by one worker, it must reach the state of the next one.\n"
      "With `determinism: BitExact` every byte must be equal, otherwise every element up to a\n"
      "tolerance. The first difference is named by partition, tensor and step: exactly, if the\n"
      "job was trained with `checkpoint.hashIntervalSteps: 1`. The job must not be running. Its\n"
      "checkpoints are only read.\n");

  verify->footer(ExitCodesText());
  verify->add_option("NAME", flags->job, "a job that was trained on this machine")->required();

  CLI::Option* from =
      verify
          ->add_option("--from", flags->selection.from,
                       "begin with the checkpoint of this step; 0: with the job's beginning "
                       "(default: the one before --to)")
          ->type_name("STEP")
          ->check(NumberBetween<uint64_t>(0, UINT64_MAX));

  CLI::Option* to = verify
                        ->add_option("--to", flags->selection.to,
                                     "end with the checkpoint of this step (default: the newest)")
                        ->type_name("STEP")
                        ->check(NumberBetween<uint64_t>(1, UINT64_MAX));

  verify
      ->add_flag("--all", flags->selection.all,
                 "replay every interval between two checkpoints that the job has kept")
      ->excludes(from)
      ->excludes(to);

  verify
      ->add_option("--tolerance", flags->tolerance,
                   "accept differences of an element up to this, relative to the larger of 1 and "
                   "its magnitude (default: 0.001; with BitExact every byte must be equal)")
      ->check(NumberBetween<double>(0, 1e6));

  verify->add_flag("-q,--quiet", flags->quiet, "print only the verdict and errors");
  verify->add_flag("-v,--verbose", flags->verbose, "also show the processes' logs");
  verify->add_option("--output", flags->output, "text, or json: one object on each line")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();

  verify
      ->add_option("--log-level", flags->log_level,
                   "log level of the processes (default: info; with --verbose debug)")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));

  verify->add_option("--bin-dir", flags->program_directory,
                     "directory of sluice-coordinator, sluice-ps and sluice-worker (default: "
                     "beside sluice; SLUICE_BIN_DIR)");
  AddStateDirectory(verify, &flags->state_directory);

  verify->callback([=, &environment] {
    *action = [=, &environment] { return RunVerify(environment, *flags); };
  });
}

}  // namespace sluice::cli
