// sluice run --cluster
#ifndef SLUICE_CLI_CLUSTER_CLUSTER_RUN_H_
#define SLUICE_CLI_CLUSTER_CLUSTER_RUN_H_

#include "absl/status/statusor.h"
#include "cli/cluster/connection.h"
#include "cli/common/environment.h"
#include "cli/common/run_flags.h"
#include "operator/kube/object.h"

namespace sluice::cli {

// The flags of `sluice run --cluster`, in addition to those of `sluice run`.
struct ClusterRunFlags : RunFlags {
  ClusterFlags cluster;
  // Takes over fields that other field managers have set; without it they are conflicts.
  bool force_conflicts = false;
  // Returns once the manifest is applied, without following the job.
  bool detach = false;
};

// The job after the apply, and what has changed.
struct AppliedJob {
  enum class Change { kCreated, kConfigured, kUnchanged };
  kube::Json job;  // the API server's version after the apply
  Change change = Change::kUnchanged;
  bool resumed = false;  // the apply ended its suspension
};

// Server-side apply of the fields in the manifest, as field manager `sluice`. Resumes a job that
// was suspended outside its manifest (`sluice stop`). FAILED_PRECONDITION: the server refused; the
// message says why.
absl::StatusOr<AppliedJob> ApplyJob(const Connection& connection, const ClusterRunFlags& flags,
                                    const kube::Json& written, bool suspend);

// Applies the manifest and follows the job to its end, unless --detach is given. Ctrl-C detaches;
// the job continues. Returns the exit code.
int RunOnCluster(const Environment& environment, const ClusterRunFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_CLUSTER_RUN_H_
