// The commands of `sluice` and their common flags.
#ifndef SLUICE_CLI_COMMAND_H_
#define SLUICE_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/cluster/connection.h"
#include "cli/common/environment.h"
#include "cli/common/exit_codes.h"
#include "cli/common/jobs.h"

namespace sluice::cli {

// The action of a command line; set while it is parsed, called afterwards. Returns the exit code.
using Action = std::function<int()>;

// Each function adds its commands to `app`. `environment` and `action` must outlive it.
void AddManifestCommands(CLI::App* app, const Environment& environment, Action* action);
void AddPlanCommand(CLI::App* app, const Environment& environment, Action* action);
void AddRunCommand(CLI::App* app, const Environment& environment, Action* action);
void AddChaosCommand(CLI::App* app, const Environment& environment, Action* action);
void AddVerifyCommand(CLI::App* app, const Environment& environment, Action* action);
void AddStateCommands(CLI::App* app, const Environment& environment, Action* action);
void AddCheckpointCommands(CLI::App* app, const Environment& environment, Action* action);
void AddImportCommand(CLI::App* app, const Environment& environment, Action* action);
void AddCertificateCommand(CLI::App* app, const Environment& environment, Action* action);

// ---- flags that several commands have

// --state-dir
void AddStateDirectory(CLI::App* command, std::string* state_directory);

// --cluster, --namespace, --context, --kubeconfig
void AddClusterFlags(CLI::App* command, ClusterFlags* flags);

// The jobs of the cluster that the flags select, or else of this machine. `environment` outlives
// them.
absl::StatusOr<std::unique_ptr<Jobs>> FindJobs(const Environment& environment,
                                               const std::string& state_directory,
                                               const ClusterFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMAND_H_
