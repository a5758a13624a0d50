// The calls of a Caller for the program's own metrics.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/protocol/metric_name.h"
#include "services/protocol/worker_limits.h"
#include "services/worker/library/caller.h"

namespace sluice::worker {
namespace {

constexpr char kNoComputation[] = "there is no work SLUICE_METRICS that this call belongs to";

}  // namespace

CallResult Caller::AddMetric(const std::string& name) {
  MutexLock lock(&mutex_);
  if (opened_) return WrongState("the model is open: a metric is added before");
  if (absl::Status status = CheckMetricName(name); !status.ok()) return Invalid(status.message());

  if (std::find(metrics_.begin(), metrics_.end(), name) != metrics_.end()) {
    return Invalid("there are two metrics '", name, "'");
  }

  if (metrics_.size() >= size_t{kMaxMetrics}) {
    return Invalid("metric '", name, "' is one too many: at most ", kMaxMetrics, " are possible");
  }

  metrics_.push_back(name);
  return {};
}

CallResult Caller::CheckMetric(uint32_t metric) const {
  if (metric >= metrics_.size()) {
    return Invalid("there is no metric ", metric, ": ", metrics_.size(),
                   " were added by sluice_worker_add_metric");
  }
  if (work_->given[metric]) {
    return WrongState("metric '", metrics_[metric],
                      "' was given already: it is given once for each work");
  }
  return {};
}

CallResult Caller::GiveMetricState(uint32_t metric, absl::string_view state) {
  MutexLock lock(&mutex_);
  if (!work_ || !std::holds_alternative<EvaluateSamples>(work_->request)) {
    return WrongState("there is no work SLUICE_EVALUATE that this state belongs to");
  }
  if (CallResult wrong = CheckMetric(metric); !wrong.ok()) return wrong;

  if (state.size() > kMaxMetricStateBytes) {
    return Invalid("the state of metric '", metrics_[metric], "' has ", state.size(),
                   " bytes: all states of an evaluation together may have ", kMaxMetricStateBytes,
                   ". Evaluate fewer samples, or let the metric keep sums or counts");
  }

  work_->given[metric] = true;
  work_->states[metric].set_name(metrics_[metric]);
  work_->states[metric].set_state(std::string(state));
  return {};
}

const v1::ComputeMetrics* Caller::Computation() const {
  if (!work_ || !std::holds_alternative<ComputeMetrics>(work_->request)) return nullptr;
  return &std::get<ComputeMetrics>(work_->request).request;
}

CallResult Caller::MetricParts(size_t* parts) const {
  MutexLock lock(&mutex_);
  const v1::ComputeMetrics* request = Computation();
  if (request == nullptr) return WrongState(kNoComputation);
  *parts = static_cast<size_t>(request->parts_size());
  return {};
}

CallResult Caller::MetricPart(uint32_t metric, size_t part, const void** state,
                              size_t* bytes) const {
  MutexLock lock(&mutex_);
  const v1::ComputeMetrics* request = Computation();
  if (request == nullptr) return WrongState(kNoComputation);

  if (part >= static_cast<size_t>(request->parts_size())) {
    return Invalid("there is no part ", part, " of ", request->parts_size());
  }

  const v1::ComputeMetrics::Part& from = request->parts(static_cast<int>(part));
  if (metric >= static_cast<uint32_t>(from.metrics_size())) {
    return Invalid("there is no metric ", metric, " of ", from.metrics_size());
  }

  const std::string& content = from.metrics(static_cast<int>(metric)).state();
  *state = content.data();
  *bytes = content.size();
  return {};
}

CallResult Caller::GiveMetricValue(uint32_t metric, double value, absl::string_view note) {
  MutexLock lock(&mutex_);
  if (Computation() == nullptr) return WrongState(kNoComputation);
  if (CallResult wrong = CheckMetric(metric); !wrong.ok()) return wrong;
  work_->given[metric] = true;
  work_->values.mutable_metrics(static_cast<int>(metric))->set_value(value);
  if (!note.empty()) {
    absl::StrAppend(work_->values.mutable_error(), work_->values.error().empty() ? "" : "; ", note);
  }
  return {};
}

}  // namespace sluice::worker
