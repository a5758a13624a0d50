// The jobs of one place - a folder of this machine, or a namespace of a cluster - for the commands
// that look at jobs: the same questions, whatever runs the job.
#ifndef SLUICE_SERVICES_CLI_JOBS_H_
#define SLUICE_SERVICES_CLI_JOBS_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/cli/progress_text.h"
#include "services/cli/running_snapshot.h"

namespace sluice::cli {

// One thread at a time. An error of code NOT_FOUND names the jobs that there are.
class Jobs {
 public:
  virtual ~Jobs() = default;

  // "namespace team of context here", ".sluice".
  virtual std::string Place() const = 0;

  struct Line {
    std::string name;
    std::string state;  // "training: step 300 of 1,876 (16 %), ..."
  };
  virtual absl::StatusOr<std::vector<Line>> List() = 0;

  struct Details {
    std::optional<JobView> view;     // of a job that runs
    std::vector<std::string> lines;  // what else there is to say
  };
  virtual absl::StatusOr<Details> Describe(const std::string& name) = 0;

  struct LogOptions {
    std::string process;                               // "worker-1"; empty: all
    size_t tail = std::numeric_limits<size_t>::max();  // of each process, so many lines at first
    bool follow = false;                               // until the job ends
  };
  // Takes a line; false: nobody listens any more.
  using LogSink = std::function<bool(absl::string_view process, absl::string_view line)>;
  // NOT_FOUND also if no process has a log.
  virtual absl::Status Logs(const std::string& name, const LogOptions& options,
                            const LogSink& sink) = 0;

  struct StopOptions {
    bool now = false;  // without a checkpoint
    absl::Duration timeout = absl::Minutes(2);
  };
  // Checkpoints and stops; waits for it. `say` hears what goes on. Returns how the job is then.
  // DEADLINE_EXCEEDED: it still runs.
  virtual absl::StatusOr<std::string> Stop(const std::string& name, const StopOptions& options,
                                           const std::function<void(const std::string&)>& say) = 0;

  // A way to the processes of a job that runs; open as long as this exists.
  class Access {
   public:
    virtual ~Access() = default;
    // Namespace/name/uid.
    virtual std::string Identity() const = 0;
    virtual SnapshotSource Source() = 0;
    // Whether the job still runs.
    virtual bool Running() = 0;
  };
  // FAILED_PRECONDITION: it does not run.
  virtual absl::StatusOr<std::unique_ptr<Access>> Reach(const std::string& name) = 0;
};

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_JOBS_H_
