// The additions to a shard in a program that extends sluice-ps. The linked implementation decides;
// both programs share one main.
#ifndef SLUICE_SERVICES_PS_SHARD_EXTENSION_H_
#define SLUICE_SERVICES_PS_SHARD_EXTENSION_H_

#include <memory>
#include <vector>

#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/execution/references.h"
#include "services/transport/server/grpc_server.h"

namespace sluice::ps {

class ShardExtension {
 public:
  virtual ~ShardExtension() = default;

  // Owned by the extension.
  virtual References* references() = 0;
  // Served on the shard's port; owned by the extension.
  virtual std::vector<GrpcServer::Service*> services() = 0;
};

// Defined by the program; null: no extension (no_extension.cc). `metrics` (the shard's) must
// outlive it.
std::unique_ptr<ShardExtension> MakeShardExtension(const Logger& logger, Metrics* metrics);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_EXTENSION_H_
