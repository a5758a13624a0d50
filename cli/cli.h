// The command `sluice`.
#ifndef SLUICE_CLI_CLI_H_
#define SLUICE_CLI_CLI_H_

#include <string>
#include <vector>

#include "cli/common/environment.h"

namespace sluice::cli {

// Runs one command line (without the program's name) and returns the exit code
// (cli/common/exit_codes.h).
int RunCommandLine(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLI_H_
