// Reads the tensors of a running job, all at one committed version.
#ifndef SLUICE_SERVICES_SNAPSHOT_RUNNING_SNAPSHOT_H_
#define SLUICE_SERVICES_SNAPSHOT_RUNNING_SNAPSHOT_H_

#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "services/checkpoint/safetensors.h"

namespace sluice {

// The tensors of one version, and where they came from.
struct RunningSnapshot {
  uint64_t version = 0;
  std::vector<SafetensorsArray> tensors;  // in the table's order
  // By tensor: the shards that own it, "ps-0" or "ps-0, ps-1".
  std::map<std::string, std::string> owners;
};

// How to reach the processes of a running job.
struct SnapshotSource {
  std::string coordinator;  // host:port
  // Returns host:port of a shard; null: use the address in the view.
  std::function<absl::StatusOr<std::string>(const v1::View::Shard&)> shard_address;
  // Null: plain text.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // A hint for errors where one side uses TLS and the other plain text; empty: the hint for
  // processes with --tls-directory.
  std::string handshake_help;
  bool shared_memory = true;  // with shards of this machine
};

// Has the coordinator pin a version, pulls it from all shards as a reader, and releases it.
// Training continues meanwhile. If the job releases the version before the pull is complete, pins
// and pulls another one. `job` is namespace/name/uid. UNAVAILABLE, ABORTED: try again;
// DEADLINE_EXCEEDED.
absl::StatusOr<RunningSnapshot> PullSnapshot(const SnapshotSource& source, const std::string& job,
                                             absl::Duration timeout);

}  // namespace sluice

#endif  // SLUICE_SERVICES_SNAPSHOT_RUNNING_SNAPSHOT_H_
