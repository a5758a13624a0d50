// Publishes a worker's progress and status as metrics.

#ifndef SLUICE_SERVICES_WORKER_WORKER_PUBLISHER_H_
#define SLUICE_SERVICES_WORKER_WORKER_PUBLISHER_H_

#include "proto/control.pb.h"
#include "services/common/metrics.h"
#include "services/worker/core/worker_core.h"

namespace sluice::worker {

class WorkerPublisher {
 public:
  // `metrics` has the table WorkerMetrics, and must outlive it.
  explicit WorkerPublisher(Metrics* metrics) : metrics_(metrics) {}

  // Of a report that is sent to the coordinator.
  void Add(const v1::WorkerProgress& progress);
  void Publish(const WorkerStatus& status);

 private:
  Metrics* const metrics_;
  prometheus::Counter& steps_ = metrics_->counter("steps_total");
  prometheus::Counter& samples_ = metrics_->counter("samples_total");
  prometheus::Counter& time_data_ = metrics_->counter("step_time_seconds_total", {"data"});
  prometheus::Counter& time_compute_ = metrics_->counter("step_time_seconds_total", {"compute"});
  prometheus::Counter& time_push_ = metrics_->counter("step_time_seconds_total", {"push"});
  prometheus::Counter& time_wait_ = metrics_->counter("step_time_seconds_total", {"wait"});
  prometheus::Counter& time_pull_ = metrics_->counter("step_time_seconds_total", {"pull"});
  prometheus::Counter& pushed_bytes_ = metrics_->counter("pushed_bytes_total");
  prometheus::Counter& gradient_bytes_ = metrics_->counter("pushed_gradient_bytes_total");
  prometheus::Gauge& loss_ = metrics_->gauge("loss");
  prometheus::Histogram& staleness_ = metrics_->histogram("staleness_updates");
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_WORKER_PUBLISHER_H_
