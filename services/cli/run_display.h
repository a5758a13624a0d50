// What a user sees of `sluice run`.
#ifndef SLUICE_SERVICES_CLI_RUN_DISPLAY_H_
#define SLUICE_SERVICES_CLI_RUN_DISPLAY_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/local/local_job.h"
#include "services/cli/environment.h"
#include "services/cli/log_follower.h"
#include "services/cli/progress_text.h"

namespace sluice::cli {

// Everything on one thread.
class RunDisplay : public local::JobListener {
 public:
  // A sentence for people.
  virtual void Note(absl::string_view text) = 0;
  // The job was asked to stop; shown until it has.
  virtual void Stopping() = 0;
  // The end. `log_lines`: the last of the process that is to blame.
  virtual void Finish(const SummaryFacts& facts, int exit_code,
                      const std::vector<std::string>& log_lines) = 0;
};

struct DisplayOptions {
  std::string job;
  bool quiet = false;  // only the final line and errors
  // Streams the processes' logs.
  std::optional<LogFollower> logs;
};

// Lines of text; on a terminal with a live view below them, redrawn at most five times a second.
std::unique_ptr<RunDisplay> MakeTextDisplay(const Environment& environment, DisplayOptions options);

// One JSON object on each line.
std::unique_ptr<RunDisplay> MakeJsonDisplay(const Environment& environment, DisplayOptions options);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_RUN_DISPLAY_H_
