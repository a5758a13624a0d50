// The jobs of one place (a directory of this machine, or a namespace of a cluster), behind one
// interface for the commands that show and stop jobs.
#ifndef SLUICE_CLI_COMMON_JOBS_H_
#define SLUICE_CLI_COMMON_JOBS_H_

#include <cstddef>
#include <cstdint>
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
#include "cli/common/job_result.h"
#include "cli/common/progress_text.h"
#include "services/snapshot/running_snapshot.h"

namespace sluice::cli {

// Not thread-safe. An error of code NOT_FOUND names the jobs that exist.
class Jobs {
 public:
  virtual ~Jobs() = default;

  // "namespace team of context here", ".sluice".
  virtual std::string Place() const = 0;

  // A job in a list.
  struct Line {
    std::string name;
    std::string state;  // "training: step 300 of 1,876 (16 %), ..."
  };
  // Every job of the place, in the order of their names.
  virtual absl::StatusOr<std::vector<Line>> List() = 0;

  // One job in detail.
  struct Details {
    std::optional<JobSummary> view;  // of a running job
    std::vector<std::string> lines;  // further lines to print
    bool running = false;
    // How the job's last run ended; none while it runs, or if it has not ended in an orderly way.
    std::optional<JobResult> result;
    std::string checkpoint;  // the newest one, where a job that does not run has it
    std::string logs;        // their directory
  };
  // Describes one job, running or not.
  virtual absl::StatusOr<Details> Describe(const std::string& name) = 0;

  // Which lines to read.
  struct LogOptions {
    std::string process;                               // "worker-1"; empty: all
    size_t tail = std::numeric_limits<size_t>::max();  // of each process, how many earlier lines
    bool follow = false;                               // until the job ends
  };
  // Takes a line; returns false to stop.
  using LogSink = std::function<bool(absl::string_view process, absl::string_view line)>;
  // NOT_FOUND also if no process has a log.
  virtual absl::Status Logs(const std::string& name, const LogOptions& options,
                            const LogSink& sink) = 0;

  // `timeout`: how long Stop waits until the job has stopped.
  struct StopOptions {
    bool now = false;  // without a checkpoint
    absl::Duration timeout = absl::Minutes(2);
  };
  // Has the job save a checkpoint and stop, and waits until it has. Calls `say` to report progress.
  // Returns the job's final state. DEADLINE_EXCEEDED: it is still running.
  virtual absl::StatusOr<std::string> Stop(const std::string& name, const StopOptions& options,
                                           const std::function<void(const std::string&)>& say) = 0;

  // A number that is not set stays as it is.
  struct ScaleOptions {
    std::optional<uint32_t> shards;
    std::optional<uint32_t> workers;
  };
  // Has a running job use other numbers of processes. Returns what changes, once the request was
  // accepted: processes start and leave while the job trains. INVALID_ARGUMENT: the job's manifest
  // would be invalid with these numbers.
  virtual absl::StatusOr<std::string> Scale(const std::string& name,
                                            const ScaleOptions& options) = 0;

  // Access to the processes of a running job, for the life of this object.
  class Access {
   public:
    virtual ~Access() = default;
    // Namespace/name/uid.
    virtual std::string Identity() const = 0;
    virtual SnapshotSource Source() = 0;
    // Whether the job is still running.
    virtual bool Running() = 0;
  };
  // FAILED_PRECONDITION: it is not running.
  virtual absl::StatusOr<std::unique_ptr<Access>> Reach(const std::string& name) = 0;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_COMMON_JOBS_H_
