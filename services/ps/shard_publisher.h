// Publishes a shard's status as metrics.

#ifndef SLUICE_SERVICES_PS_SHARD_PUBLISHER_H_
#define SLUICE_SERVICES_PS_SHARD_PUBLISHER_H_

#include <array>
#include <cstdint>

#include "services/common/metrics.h"
#include "services/ps/core/bounds.h"
#include "services/ps/core/shard_core.h"

namespace sluice::ps {

class ShardPublisher {
 public:
  // `metrics` has the table ShardMetrics, and must outlive it.
  explicit ShardPublisher(Metrics* metrics) : metrics_(metrics) {}

  void Publish(const ShardStatus& status);

 private:
  Metrics* const metrics_;
  std::array<uint64_t, kBounds> reached_{};  // of each bound, as published last
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_PUBLISHER_H_
