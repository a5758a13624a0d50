// The tensors of a running job, all at one committed version.
#ifndef SLUICE_SERVICES_CLI_RUNNING_SNAPSHOT_H_
#define SLUICE_SERVICES_CLI_RUNNING_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/checkpoint/safetensors.h"

namespace sluice::cli {

struct RunningSnapshot {
  uint64_t version = 0;
  std::vector<SafetensorsArray> tensors;  // in the table's order
};

// Has the coordinator pin a version, pulls it from all shards as a reader, and lets it go. Training
// goes on meanwhile. `job` is namespace/name/uid. UNAVAILABLE: try again; DEADLINE_EXCEEDED.
absl::StatusOr<RunningSnapshot> PullSnapshot(const std::string& coordinator, const std::string& job,
                                             absl::Duration timeout);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_RUNNING_SNAPSHOT_H_
