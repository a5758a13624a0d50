// sluice run --cluster
#ifndef SLUICE_SERVICES_CLI_CLUSTER_CLUSTER_RUN_H_
#define SLUICE_SERVICES_CLI_CLUSTER_CLUSTER_RUN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "operator/kube/object.h"
#include "services/cli/cluster/connection.h"
#include "services/cli/environment.h"

namespace sluice::cli {

struct ClusterRunFlags {
  std::string manifest;
  std::string output = "text";
  std::optional<uint32_t> workers;
  std::optional<uint32_t> shards;
  ClusterFlags cluster;
  bool force_conflicts = false;
  bool detach = false;
  bool dry_run = false;
  bool quiet = false;
  bool verbose = false;
};

struct AppliedJob {
  enum class Change { kCreated, kConfigured, kUnchanged };
  kube::Json job;  // as the API server has it now
  Change change = Change::kUnchanged;
  bool resumed = false;  // it was suspended, and is no longer
};

// Server-side apply of what the manifest says, as field manager `sluice`. A job that was suspended
// besides its manifest (`sluice stop`) is resumed. FAILED_PRECONDITION: refused, by whom and why.
absl::StatusOr<AppliedJob> ApplyJob(const Connection& connection, const ClusterRunFlags& flags,
                                    const kube::Json& written, bool suspend);

// Applies the manifest and follows the job to its end: what Ctrl-C ends is the looking on, the job
// goes on. Returns the exit code: 0 succeeded (or applied, with --detach); 1 failed, or the API
// server was not reached; 2 the manifest was refused; 130 interrupted, or the job was suspended.
int RunOnCluster(const Environment& environment, const ClusterRunFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_CLUSTER_CLUSTER_RUN_H_
