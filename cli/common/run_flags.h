#ifndef SLUICE_CLI_COMMON_RUN_FLAGS_H_
#define SLUICE_CLI_COMMON_RUN_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::cli {

// The flags of `sluice run`. Commands that run a job in another way (chaos, verify) have them, too.
struct RunFlags {
  std::string manifest;
  std::string output = "text";
  // Instead of the manifest's numbers.
  std::optional<uint32_t> workers;
  std::optional<uint32_t> shards;
  bool dry_run = false;
  bool quiet = false;
  bool verbose = false;

  // On this machine only.
  std::string state_directory = ".sluice";
  std::string program_directory;  // empty: the environment's
  std::string log_level;          // empty: debug with `verbose`, else info
  int port = 0;
  bool fresh = false;
  bool yes = false;
  bool take_over = false;
  bool foreground = false;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_RUN_FLAGS_H_
