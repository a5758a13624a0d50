#ifndef SLUICE_OPERATOR_OPERATOR_METRICS_H_
#define SLUICE_OPERATOR_OPERATOR_METRICS_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/runtime/controller.h"
#include "operator/runtime/informer.h"
#include "services/common/process/metrics.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice {

// The table of sluice-operator's metrics.
std::vector<MetricDescriptor> OperatorMetrics();

// Updates these metrics. Any thread.
class OperatorMeter final : public runtime::ControllerObserver {
 public:
  // Both arguments outlive this.
  OperatorMeter(Metrics* metrics, const Clock* clock);

  void OnReconciled(const runtime::Key& key, const runtime::Result& result, absl::Duration waited,
                    absl::Duration took, absl::Duration retry_in) override;
  // For HttpClient::Options::on_call.
  void OnCall(const std::string& verb, const std::string& resource, int code, absl::Duration took);
  // For JobReconciler::Options::on_status.
  void OnStatus(const kube::ObjectKey& job, const kube::Json& before, const kube::Json& after);
  // For JobReconciler::Options::on_certificates.
  void OnCertificates(const kube::ObjectKey& job, absl::Time expiry);
  // For Operator::StartCaches.
  void OnWatchError(const std::string& resource);

  // Updates the metrics that are counted periodically rather than at each change. One thread.
  void Update(const runtime::Informer& jobs, size_t queue_depth, size_t running, bool leader,
              int64_t events_dropped, size_t namespaces_refused);

 private:
  // Sets operator_job_problem for jobs with a problem or a recent failure; removes the other
  // series.
  void UpdateProblems(const runtime::Informer& jobs);

  Metrics* const metrics_;
  const Clock* const clock_;
  // Used only by the thread that calls Update.
  std::map<std::string, double> jobs_by_state_;
  std::set<std::vector<std::string>> problems_;  // label values that have a series
  Mutex mutex_;                                  // protects what follows
  std::map<std::vector<std::string>, absl::Time> failed_ ABSL_GUARDED_BY(mutex_);
  std::set<kube::ObjectKey> with_certificates_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice

#endif  // SLUICE_OPERATOR_OPERATOR_METRICS_H_
