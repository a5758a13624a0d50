#ifndef SLUICE_CLI_COMMON_RUN_FLAGS_H_
#define SLUICE_CLI_COMMON_RUN_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::cli {

// The flags of `sluice run`. Commands that run a job in another way (chaos, verify) have them, too.
struct RunFlags {
  // The manifest's path.
  std::string manifest;
  // text, json (an object on each line) or plain (evaluations, the final metric and the time).
  std::string output = "text";
  // Instead of the manifest's numbers.
  std::optional<uint32_t> workers;
  std::optional<uint32_t> shards;
  // --dry-run: shows what would start, and changes nothing.
  bool dry_run = false;
  // --quiet: only the final metric and errors. --verbose: also the processes' logs.
  bool quiet = false;
  bool verbose = false;

  // On this machine only.
  std::string state_directory = ".sluice";
  std::string program_directory;  // empty: the environment's
  std::string log_level;          // empty: debug with `verbose`, else info
  // The coordinator's; 0: any free one.
  int port = 0;
  // --fresh: deletes the checkpoints and starts over; asks before, unless `yes`.
  bool fresh = false;
  bool yes = false;
  // --take-over: stops the running job, with a checkpoint, and continues it with this manifest.
  bool take_over = false;
  // --foreground: the only worker's program gets this terminal, for a debugger.
  bool foreground = false;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_RUN_FLAGS_H_
