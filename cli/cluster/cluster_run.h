// sluice run --cluster
#ifndef SLUICE_CLI_CLUSTER_CLUSTER_RUN_H_
#define SLUICE_CLI_CLUSTER_CLUSTER_RUN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "cli/cluster/connection.h"
#include "cli/common/environment.h"
#include "operator/kube/object.h"

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
  kube::Json job;  // the API server's version after the apply
  Change change = Change::kUnchanged;
  bool resumed = false;  // the apply ended its suspension
};

// Server-side apply of what the manifest says, as field manager `sluice`. Resumes a job that was
// suspended outside its manifest (`sluice stop`). FAILED_PRECONDITION: the server refused; the
// message says why.
absl::StatusOr<AppliedJob> ApplyJob(const Connection& connection, const ClusterRunFlags& flags,
                                    const kube::Json& written, bool suspend);

// Applies the manifest and follows the job to its end. Ctrl-C detaches; the job continues. Returns
// the exit code: 0 succeeded (or applied, with --detach); 1 failed, or the API server was not
// reached; 2 the manifest was refused; 130 interrupted, or the job was suspended.
int RunOnCluster(const Environment& environment, const ClusterRunFlags& flags);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_CLUSTER_RUN_H_
