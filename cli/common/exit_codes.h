// The exit codes of the command `sluice`, in one table, from which help texts are made. The page
// docs/operating.md has the same table (docs/commands_test.py compares them). The codes of the
// processes of a job are another table: services/common/exit_code.h.
#ifndef SLUICE_CLI_COMMON_EXIT_CODES_H_
#define SLUICE_CLI_COMMON_EXIT_CODES_H_

#include <string>

#include "absl/status/status.h"
#include "cli/common/environment.h"
#include "operator/policy/policy.h"
#include "services/common/exit_code.h"

namespace sluice::cli {

inline constexpr int kExitInterrupted = 130;  // the shells' exit code for SIGINT

// A row of the table.
struct ExitCodeMeaning {
  int code;
  const char* meaning;
};

inline constexpr ExitCodeMeaning kExitCodes[] = {
    {kExitOk, "done: the job has trained, or there was nothing to do"},
    {kExitFailed,
     "failed: the job, its verdict, or something outside it, such as a disk or a connection"},
    {kExitUsage, "wrong arguments, an invalid manifest, or a refused request"},
    {kExitInterrupted, "interrupted, or the job was suspended"},
};

// How a followed job ended.
int ExitCodeOf(policy::OutcomeKind outcome);

// Why a command ended early. kExitUsage if the user must change the request: it is invalid, names a
// missing object, or was refused. Not for OK.
int ExitCodeOf(const absl::Status& error);

// The table for --help, a line for each code.
std::string ExitCodesText();

// Prints "sluice: <message>" and returns the error's exit code.
int PrintError(const Environment& environment, const absl::Status& error);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_EXIT_CODES_H_
