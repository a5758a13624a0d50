#ifndef SLUICE_CLI_VERIFY_VERIFY_RUN_H_
#define SLUICE_CLI_VERIFY_VERIFY_RUN_H_

#include <optional>
#include <string>

#include "cli/common/environment.h"
#include "cli/common/run_flags.h"
#include "cli/verify/history.h"

namespace sluice::cli {

// The flags of `sluice verify`.
struct VerifyFlags : RunFlags {
  std::string job;  // its name
  verify::Selection selection;
  // The accepted difference of an element, relative to the larger of 1 and its magnitude. Nullopt:
  // the default; with BitExact, every byte must be equal.
  std::optional<double> tolerance;
};

// `sluice verify`: trains the selected intervals between the job's checkpoints again, each in a
// directory of its own, and compares. The job's own files are only read. An interrupt stops at
// once. Returns the exit code.
int RunVerify(const Environment& environment, const VerifyFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_VERIFY_VERIFY_RUN_H_
