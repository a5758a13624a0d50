// The names of the program's own metrics, which its evaluations report beside the loss.
#ifndef SLUICE_SERVICES_PROTOCOL_METRIC_NAME_H_
#define SLUICE_SERVICES_PROTOCOL_METRIC_NAME_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"

namespace sluice {

// Whether every evaluation has a metric of this name by itself: loss, accuracy, perplexity.
bool IsBuiltInMetric(absl::string_view name);

// INVALID_ARGUMENT: not 1 to 63 letters, digits and underscores that begin with a letter (they are
// labels of Prometheus), or a built-in metric.
absl::Status CheckMetricName(absl::string_view name);

// INVALID_ARGUMENT: the job names a metric that is neither built in nor one of the worker's.
absl::Status CheckMetricsOfJob(const v1::JobSpec& job, const v1::Ready& ready);

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_METRIC_NAME_H_
