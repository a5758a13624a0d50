#include "cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/cluster/cluster_jobs.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/local/local_jobs.h"
#include "services/common/status_macros.h"
#include "services/common/version.h"
#include "services/manifest/suggest.h"

namespace sluice::cli {
namespace {

constexpr char kDescription[] =
    "Sluice trains PyTorch models with a parameter server: on this machine, or with the same\n"
    "manifest on Kubernetes.\n"
    "\n"
    "  sluice init -o job.yaml          write a first manifest\n"
    "  sluice run job.yaml              train it here; Ctrl-C stops, the same command resumes\n"
    "  sluice run --cluster job.yaml    train it on the cluster of your kubeconfig\n"
    "  sluice export NAME -o model.safetensors\n"
    "\n"
    "`sluice COMMAND --help` explains a command.\n";

// CLI11's help with one line per command and readable value types.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_subcommand(const CLI::App* command) const override {
    const std::string description = command->get_description();
    return absl::StrCat("  ", command->get_name(),
                        std::string(14 - std::min<size_t>(13, command->get_name().size()), ' '),
                        description.substr(0, description.find('\n')), "\n");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_type_size() == 0 || option->get_positional()) return "";
    std::string type = option->get_type_name();
    type = type.substr(0, type.find(':'));
    if (type == "UINT" || type == "INT" || type == "FLOAT") type = "NUMBER";
    return absl::StrCat(" ", type, option->get_required() ? " (required)" : "");
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string value = option->get_default_str();
    if (value.empty()) return option->get_description();
    return absl::StrCat(option->get_description(), " (default: ", value, ")");
  }
};

std::string DidYouMean(absl::string_view name, const std::vector<std::string>& candidates) {
  const int closest = api::ClosestName(name, candidates);
  if (closest < 0) return "";
  return absl::StrCat("; did you mean ", candidates[static_cast<size_t>(closest)], "?");
}

std::vector<std::string> FlagsOf(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// Reports the first command or flag that does not exist, with the nearest one that does. CLI11
// lists every argument that it could not place, which is often more than the wrong one.
absl::Status CheckNames(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* command = &app;
  for (const std::string& argument : arguments) {
    if (argument == "--") break;

    if (absl::StartsWith(argument, "--")) {
      const std::string flag = argument.substr(0, argument.find('='));
      const std::vector<std::string> known = FlagsOf(*command);
      if (std::find(known.begin(), known.end(), flag) != known.end()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(command == &app ? "" : command->get_name() + ": ", "there is no flag ", flag,
                       DidYouMean(flag, known)));
    }

    if (command != &app || absl::StartsWith(argument, "-")) continue;

    std::vector<std::string> known;
    for (const CLI::App* one : app.get_subcommands({})) {
      known.push_back(one->get_name());
      if (one->get_name() == argument) command = one;
    }

    if (command != &app) continue;
    return absl::InvalidArgumentError(absl::StrCat("there is no command ", argument,
                                                   DidYouMean(argument, known),
                                                   " (`sluice --help` lists the commands)"));
  }
  return absl::OkStatus();
}

}  // namespace

void AddStateDirectory(CLI::App* command, std::string* state_directory) {
  command
      ->add_option("--state-dir", *state_directory,
                   "directory of the states, logs and checkpoints of jobs on this machine")
      ->capture_default_str();
}

void AddClusterFlags(CLI::App* command, ClusterFlags* flags) {
  command->add_flag("--cluster", flags->cluster,
                    "use the cluster of the kubeconfig's current context");
  command->add_option("-n,--namespace", flags->ns,
                      "use this namespace of the cluster (default: the context's)");
  command->add_option("--context", flags->context, "use the cluster of this context");
  command->add_option(
      "--kubeconfig", flags->kubeconfig,
      "use the cluster of this kubeconfig (default: KUBECONFIG, or ~/.kube/config)");
}

absl::StatusOr<std::unique_ptr<Jobs>> FindJobs(const Environment& environment,
                                               const std::string& state_directory,
                                               const ClusterFlags& flags) {
  if (!flags.wanted()) return MakeLocalJobs(environment, state_directory);
  ASSIGN_OR_RETURN(Connection connection, Connect(environment, flags));
  return MakeClusterJobs(environment, flags, std::move(connection));
}

int RunCommandLine(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app{kDescription, "sluice"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("--version", absl::StrCat("sluice ", Version()));

  Action action;
  AddRunCommand(&app, environment, &action);
  AddChaosCommand(&app, environment, &action);
  AddVerifyCommand(&app, environment, &action);
  AddPlanCommand(&app, environment, &action);
  AddManifestCommands(&app, environment, &action);
  AddStateCommands(&app, environment, &action);
  AddCheckpointCommands(&app, environment, &action);
  AddImportCommand(&app, environment, &action);
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

  app.footer(ExitCodesText());  // set last: commands inherit the footer that is there
  if (arguments.empty()) {
    *environment.err << app.help();
    return kExitUsage;
  }

  RETURN_IF_ERROR(CheckNames(app, arguments), PrintError(environment, _));
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error, *environment.out, *environment.err);
    return code == 0 ? kExitOk : kExitUsage;
  }

  const int code = action();
  environment.out->flush();
  if (environment.out->good() || environment.reader_gone()) return code;
  *environment.err << "sluice: the output could not be written" << std::endl;
  return code == kExitOk ? +kExitFailed : code;
}

}  // namespace sluice::cli
