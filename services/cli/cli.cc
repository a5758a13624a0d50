#include "services/cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "services/cli/cluster/cluster_jobs.h"
#include "services/cli/command.h"
#include "services/cli/completion.h"
#include "services/cli/local_jobs.h"
#include "services/common/exit_code.h"
#include "services/common/version.h"

namespace sluice::cli {
namespace {

constexpr char kDescription[] =
    "Sluice trains PyTorch models with a parameter server: on this machine, or with the same\n"
    "manifest on Kubernetes.\n"
    "\n"
    "  sluice init -o job.yaml          write a first manifest\n"
    "  sluice run job.yaml              train it here; Ctrl-C stops, the same command goes on\n"
    "  sluice run --cluster job.yaml    train it on the cluster of your kubeconfig, and look on\n"
    "  sluice export NAME -o model.safetensors\n";

}  // namespace

int Complain(const Environment& environment, const absl::Status& status) {
  *environment.err << "sluice: " << status.message() << std::endl;
  switch (status.code()) {
    // The request is what has to change: wrong, of something that is not there, or refused.
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
      return kExitUsage;
    default:
      return kExitFailed;
  }
}

void AddStateDirectory(CLI::App* command, std::string* state_directory) {
  command
      ->add_option("--state-dir", *state_directory, "folder that holds the jobs' states and logs")
      ->capture_default_str();
}

void AddClusterFlags(CLI::App* command, ClusterFlags* flags) {
  command->add_flag("--cluster", flags->cluster,
                    "on the cluster of the kubeconfig's current context");
  command->add_option("-n,--namespace", flags->ns,
                      "on the cluster, in this namespace (default: the context's)");
  command->add_option("--context", flags->context, "on the cluster of this context");
  command->add_option("--kubeconfig", flags->kubeconfig,
                      "on the cluster of this file (default: KUBECONFIG, or ~/.kube/config)");
}

absl::StatusOr<std::unique_ptr<Jobs>> FindJobs(const Environment& environment,
                                               const std::string& state_directory,
                                               const ClusterFlags& flags) {
  if (!flags.wanted()) return MakeLocalJobs(environment, state_directory);
  absl::StatusOr<Connection> connection = Connect(environment, flags);
  if (!connection.ok()) return connection.status();
  return MakeClusterJobs(environment, flags, *std::move(connection));
}

int RunCommandLine(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app{kDescription, "sluice"};
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("sluice ", Version()));
  Action action;
  AddRunCommand(&app, environment, &action);
  AddPlanCommand(&app, environment, &action);
  AddBenchCommand(&app, environment, &action);
  AddManifestCommands(&app, environment, &action);
  AddStateCommands(&app, environment, &action);
  AddCheckpointCommands(&app, environment, &action);
  AddCertificateCommand(&app, environment, &action);
  app.add_subcommand("version", "Print the version and how it was built")->callback([&] {
    action = [&] {
      *environment.out << BuildDescription() << "\n";
      return +kExitOk;
    };
  });
  auto shell = std::make_shared<std::string>();
  CLI::App* completion = app.add_subcommand("completion",
                                            "Print a script that completes sluice in a shell\n\n"
                                            "  source <(sluice completion bash)\n"
                                            "  sluice completion fish | source\n");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([&, shell] {
    action = [&, shell] {
      const std::vector<CommandCompletion> commands = CommandsOf(app);
      *environment.out << (*shell == "bash"  ? BashCompletion(commands)
                           : *shell == "zsh" ? ZshCompletion(commands)
                                             : FishCompletion(commands));
      return +kExitOk;
    };
  });
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error, *environment.out, *environment.err);
    return code == 0 ? kExitOk : kExitUsage;
  }
  const int code = action();
  environment.out->flush();
  return code;
}

}  // namespace sluice::cli
