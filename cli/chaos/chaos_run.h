#ifndef SLUICE_CLI_CHAOS_CHAOS_RUN_H_
#define SLUICE_CLI_CHAOS_CHAOS_RUN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "cli/chaos/faults.h"
#include "cli/common/environment.h"
#include "cli/common/run_flags.h"

namespace sluice::cli {

// The flags of `sluice chaos`.
struct ChaosFlags : RunFlags {
  ChaosFlags() { state_directory = ".sluice-chaos"; }

  // The kinds of faults, as ParseFaults reads them.
  std::string faults = chaos::kDefaultFaults;
  // Nullopt: a new one, which the report names.
  std::optional<uint64_t> seed;
  // The mean time from a recovery to the next fault.
  absl::Duration every = absl::Seconds(5);
  absl::Duration lasting;  // --for; zero: it differs from fault to fault
  // The most faults; nullopt: no limit.
  std::optional<uint64_t> count;
  // "none", or "run": the job first trains without faults.
  std::string baseline = "none";
  std::optional<double> tolerance;  // in percent
  // The run does not pass if the job completes no step for this long, or a process is missing.
  absl::Duration stall = absl::Seconds(120);
};

// `sluice chaos`: trains the job from its beginning in a state directory of its own, without faults
// if a baseline is wanted, then with faults, and prints a verdict. The first interrupt saves a
// checkpoint and stops, the second stops immediately. Returns the exit code.
int RunChaos(const Environment& environment, const ChaosFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CHAOS_CHAOS_RUN_H_
