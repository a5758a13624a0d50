#include "services/ps/shard_extension.h"

namespace sluice::ps {

std::unique_ptr<ShardExtension> MakeShardExtension(const Logger& /*logger*/, Metrics* /*metrics*/) {
  return nullptr;
}

}  // namespace sluice::ps
