// The tensors of a running job, all at one committed version.
#ifndef SLUICE_SERVICES_CLI_RUNNING_SNAPSHOT_H_
#define SLUICE_SERVICES_CLI_RUNNING_SNAPSHOT_H_

#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "services/checkpoint/safetensors.h"

namespace sluice::cli {

struct RunningSnapshot {
  uint64_t version = 0;
  std::vector<SafetensorsArray> tensors;  // in the table's order
  // By tensor: the shards that hold it, "ps-0" or "ps-0, ps-1".
  std::map<std::string, std::string> owners;
};

// Where the processes of a running job are reached from here.
struct SnapshotSource {
  std::string coordinator;  // host:port
  // host:port of a shard; null: the address that the view has of it.
  std::function<absl::StatusOr<std::string>(const v1::View::Shard&)> shard_address;
  // Null: plain text.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // What helps where the two sides cannot agree on TLS or plain text; empty: what processes with
  // --tls-directory are told.
  std::string handshake_help;
};

// Has the coordinator pin a version, pulls it from all shards as a reader, and lets it go. Training
// continues meanwhile. If the job needs the place of the version before all has come, another
// version is pinned and pulled. `job` is namespace/name/uid. UNAVAILABLE, ABORTED: try again;
// DEADLINE_EXCEEDED.
absl::StatusOr<RunningSnapshot> PullSnapshot(const SnapshotSource& source, const std::string& job,
                                             absl::Duration timeout);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_RUNNING_SNAPSHOT_H_
