#ifndef SLUICE_SERVICES_COMMON_PROCESS_METRICS_H_
#define SLUICE_SERVICES_COMMON_PROCESS_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/common/io/page_server.h"

namespace sluice {

// One row of a binary's table of metrics. The table has all of a binary's names, so that they can
// be listed and documented, and a test can keep them stable.
struct MetricDescriptor {
  enum class Type { kCounter, kGauge, kHistogram };

  std::string name;  // without the prefix `sluice_`; counters end in _total, units are base units
                     // (_seconds, _bytes)
  Type type;
  std::string help;                 // one sentence, on one line
  std::vector<std::string> labels;  // names; their values must be few
  std::vector<double> buckets;      // histograms: upper bounds, ascending
};

// `count` buckets from `first`, each `factor` times the one before.
std::vector<double> ExponentialBuckets(double first, double factor, int count);

// A histogram that ignores values that are not finite: prometheus-cpp would count NaN in the
// smallest bucket, and the sum would be NaN or infinite for ever.
class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}

  void Observe(double value) {
    if (std::isfinite(value)) histogram_->Observe(value);
  }

 private:
  prometheus::Histogram* histogram_;
};

// The metrics of one process. Look them up once and keep the reference, which lives as long as this
// object; updating is lock-free and may be done on any thread.
class Metrics {
 public:
  // Every metric gets the `constant_labels` (training_job, role, index). A row of the table
  // that Prometheus would refuse is a broken invariant and fatal: a malformed or repeated name, a
  // help text of several lines, buckets that do not ascend.
  Metrics(std::vector<MetricDescriptor> table, std::map<std::string, std::string> constant_labels);

  ~Metrics();

  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The metric of that name with those label values, in the table's order. A name that is not in
  // the table, or a wrong type or number of labels, is fatal.
  prometheus::Counter& counter(absl::string_view name, std::vector<std::string> label_values = {});
  prometheus::Gauge& gauge(absl::string_view name, std::vector<std::string> label_values = {});
  Histogram histogram(absl::string_view name, std::vector<std::string> label_values = {});

  // Removes the series of these label values (of a worker that has left); references to it become
  // invalid.
  void RemoveGauge(absl::string_view name, const std::vector<std::string>& label_values);

  // All series, in Prometheus' text format.
  std::string Serialize() const;

 private:
  struct Family;

  Family& Find(absl::string_view name, MetricDescriptor::Type type, size_t labels);

  prometheus::Registry registry_;
  std::map<std::string, Family, std::less<>> families_;  // unchanged after construction
};

// Serves /metrics, /healthz (200 while the process is alive) and /readyz (200 while it is ready);
// both answer 503 and the reason otherwise. A kubelet's probe, which has a period, waits for the
// first readiness (page_server.h).
class MetricsServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";  // host:port; port 0: any
    // OK if the process is ready. Called on the server's thread; must not block. Null: always.
    std::function<absl::Status()> ready;
    // OK if the process's core has answered in time: for a liveness probe. Called on the server's
    // thread; must not block. Null: always.
    std::function<absl::Status()> alive;
  };

  // `metrics` must outlive the server. UNAVAILABLE, naming the address: it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(Options options,
                                                              const Metrics* metrics);

  int port() const { return pages_->port(); }

  // To be called when the process is about to exit: blocks until no probe is expected before the
  // kubelet notices that the process is gone, or until `hurry` returns true.
  void AwaitProbes(const std::function<bool()>& hurry);

 private:
  explicit MetricsServer(std::unique_ptr<PageServer> pages) : pages_(std::move(pages)) {}

  const std::unique_ptr<PageServer> pages_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_COMMON_PROCESS_METRICS_H_
