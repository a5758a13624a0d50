// Publishes the job's progress, and what the coordinator refused, as metrics.

#ifndef SLUICE_SERVICES_COORDINATOR_COORDINATOR_PUBLISHER_H_
#define SLUICE_SERVICES_COORDINATOR_COORDINATOR_PUBLISHER_H_

#include "proto/jobcontrol.pb.h"
#include "services/common/metrics.h"
#include "services/coordinator/core/coordinator_core.h"

namespace sluice::coordinator {

class CoordinatorPublisher {
 public:
  // `metrics` has the table CoordinatorMetrics, and must outlive it.
  explicit CoordinatorPublisher(Metrics* metrics) : metrics_(metrics) {}

  void Publish(const v1::JobProgress& progress);
  void Publish(const CoordinatorCore::Refusals& refusals);

 private:
  Metrics* const metrics_;
  CoordinatorCore::Refusals refusals_;  // as published last
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_COORDINATOR_PUBLISHER_H_
