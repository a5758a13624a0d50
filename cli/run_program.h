#ifndef SLUICE_CLI_RUN_PROGRAM_H_
#define SLUICE_CLI_RUN_PROGRAM_H_

#include <string>
#include <vector>

namespace sluice::cli {

// Runs a program to its end with this process's input and output. Returns its exit code; 128 + the
// signal that killed it; 127 if it could not be started.
int RunProgram(const std::vector<std::string>& arguments);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_RUN_PROGRAM_H_
