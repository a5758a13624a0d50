// What the commands of `sluice` have in common.
#ifndef SLUICE_SERVICES_CLI_COMMAND_H_
#define SLUICE_SERVICES_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "services/cli/environment.h"

namespace sluice::cli {

inline constexpr int kExitInterrupted = 130;  // as shells have it for SIGINT

// What a command line asks for; set while it is parsed, called afterwards. Returns the exit code.
using Action = std::function<int()>;

// Each adds its commands to `app`. `environment` and `action` must outlive it.
void AddManifestCommands(CLI::App* app, const Environment& environment, Action* action);
void AddRunCommand(CLI::App* app, const Environment& environment, Action* action);
void AddStateCommands(CLI::App* app, const Environment& environment, Action* action);
void AddCheckpointCommands(CLI::App* app, const Environment& environment, Action* action);

// Prints "sluice: <message>" and returns the exit code that fits.
int Complain(const Environment& environment, const absl::Status& status);

// --state-dir
void AddStateDirectory(CLI::App* command, std::string* state_directory);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_COMMAND_H_
