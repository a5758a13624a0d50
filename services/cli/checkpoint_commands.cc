// inspect, export.
#include "services/cli/command.h"

namespace sluice::cli {

void AddCheckpointCommands(CLI::App*, const Environment&, Action*) {}

}  // namespace sluice::cli
