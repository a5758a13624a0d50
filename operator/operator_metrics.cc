#include "operator/operator_metrics.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

using Type = MetricDescriptor::Type;
using kube::GetString;
using kube::Json;

const Json* Condition(const Json& status, absl::string_view type) {
  return kube::FindItem(status, {"conditions"}, "type", type);
}

// How long a failure is shown, even if its job was deleted at once: longer than the alert's window.
constexpr absl::Duration kFailureIsShown = absl::Minutes(30);

constexpr const char* kRoles[] = {"coordinator", "ps", "worker"};

// Roles of the pods in the status whose exits were listed since then. A time in a status has whole
// seconds, and the status lists an exit in the same write as its consequences.
std::set<std::string> RolesLostSince(const Json& status, absl::Time since) {
  std::set<std::string> roles;
  for (const Json& failure : kube::GetList(status, {"lastFailures"})) {
    const absl::Time at = kube::DecodeTime(GetString(failure, {"time"}));
    const std::string role = GetString(failure, {"role"});
    if (at < since || std::find(std::begin(kRoles), std::end(kRoles), role) == std::end(kRoles)) {
      continue;
    }
    roles.insert(role);
  }
  return roles;
}

}  // namespace

std::vector<MetricDescriptor> OperatorMetrics() {
  const std::vector<double> quick = ExponentialBuckets(0.001, 2, 15);
  const std::vector<double> slow = ExponentialBuckets(0.5, 2, 12);
  return {
      {"operator_reconcile_total",
       Type::kCounter,
       "Reconciliations of TrainingJobs, by result: done, requeue, requeue_after, error.",
       {"result"},
       {}},
      {"operator_reconcile_errors_total",
       Type::kCounter,
       "Reconciliations that failed; the operator retries them with growing delays.",
       {},
       {}},
      {"operator_reconcile_seconds",
       Type::kHistogram,
       "Duration of one reconciliation.",
       {},
       quick},
      {"operator_queue_wait_seconds",
       Type::kHistogram,
       "Time from when a job is due until its reconciliation begins.",
       {},
       quick},
      {"operator_queue_depth", Type::kGauge, "Jobs that wait to be reconciled.", {}, {}},
      {"operator_reconciles_running", Type::kGauge, "Reconciliations in progress.", {}, {}},
      {"operator_api_requests_total",
       Type::kCounter,
       "Requests to the API server, by verb, resource and HTTP code (0: no answer).",
       {"verb", "resource", "code"},
       {}},
      {"operator_api_request_seconds",
       Type::kHistogram,
       "Duration of a request to the API server, watches excepted.",
       {"verb"},
       quick},
      {"operator_watch_errors_total",
       Type::kCounter,
       "Watches that failed, by resource; the operator opens each of them again.",
       {"resource"},
       {}},
      {"operator_events_dropped",
       Type::kGauge,
       "Kubernetes events that were not sent because there were too many.",
       {},
       {}},
      {"operator_namespaces_refused",
       Type::kGauge,
       "Watched namespaces that the API server refuses to list: they were deleted, or the operator "
       "has no role there. Jobs in them are not reconciled.",
       {},
       {}},
      {"operator_job_problem",
       Type::kGauge,
       "1 for each job that is Degraded, has Failed or is not Accepted, with the condition's "
       "reason. A failure remains for 30 minutes, even if the job is deleted.",
       {"job_namespace", "training_job", "condition", "reason"},
       {}},
      {"operator_job_certificate_expiry_timestamp_seconds",
       Type::kGauge,
       "When the first certificate of a job's processes expires, for jobs with TLS.",
       {"job_namespace", "training_job"},
       {}},
      {"operator_leader", Type::kGauge, "1 while this replica leads.", {}, {}},
      {"operator_jobs", Type::kGauge, "TrainingJobs, by `status.summary`.", {"state"}, {}},
      {"operator_pod_failures_total",
       Type::kCounter,
       "Pod failures that the operator has handled, by role and reason.",
       {"role", "reason"},
       {}},
      {"operator_jobs_finished_total",
       Type::kCounter,
       "Finished TrainingJobs, by outcome: Succeeded, Failed.",
       {"outcome"},
       {}},
      {"operator_recovery_seconds",
       Type::kHistogram,
       "Time from the loss of a process until all processes are ready again, by role of the lost "
       "process.",
       {"role"},
       slow},
      {"operator_scale_seconds",
       Type::kHistogram,
       "Time from a change of a job's size until all processes are ready.",
       {},
       slow},
  };
}

OperatorMeter::OperatorMeter(Metrics* metrics, const Clock* clock)
    : metrics_(metrics), clock_(clock) {
  // Without a series from the start, its first change would not show as a change.
  for (const MetricDescriptor& row : OperatorMetrics()) {
    if (!row.labels.empty()) continue;
    switch (row.type) {
      case Type::kCounter:
        metrics_->counter(row.name);
        break;
      case Type::kGauge:
        metrics_->gauge(row.name);
        break;
      case Type::kHistogram:
        metrics_->histogram(row.name);
        break;
    }
  }

  for (const char* outcome : {"Succeeded", "Failed"}) {
    metrics_->counter("operator_jobs_finished_total", {outcome});
  }
  for (const char* role : kRoles) metrics_->histogram("operator_recovery_seconds", {role});
}

void OperatorMeter::OnReconciled(const runtime::Key&, const runtime::Result& result,
                                 absl::Duration waited, absl::Duration took, absl::Duration) {
  metrics_->counter("operator_reconcile_total", {runtime::KindName(result.kind)}).Increment();
  if (result.kind == runtime::Result::Kind::kError) {
    metrics_->counter("operator_reconcile_errors_total").Increment();
  }
  metrics_->histogram("operator_reconcile_seconds").Observe(absl::ToDoubleSeconds(took));
  metrics_->histogram("operator_queue_wait_seconds").Observe(absl::ToDoubleSeconds(waited));
}

void OperatorMeter::OnCall(const std::string& verb, const std::string& resource, int code,
                           absl::Duration took) {
  metrics_->counter("operator_api_requests_total", {verb, resource, absl::StrCat(code)})
      .Increment();
  if (verb == "watch") return;
  metrics_->histogram("operator_api_request_seconds", {verb}).Observe(absl::ToDoubleSeconds(took));
}

void OperatorMeter::OnWatchError(const std::string& resource) {
  metrics_->counter("operator_watch_errors_total", {resource}).Increment();
}

void OperatorMeter::OnCertificates(const kube::ObjectKey& job, absl::Time expiry) {
  constexpr char kName[] = "operator_job_certificate_expiry_timestamp_seconds";
  const std::vector<std::string> labels = {job.ns, job.name};
  MutexLock lock(&mutex_);
  if (expiry != absl::InfiniteFuture()) {
    metrics_->gauge(kName, labels).Set(static_cast<double>(absl::ToUnixSeconds(expiry)));
    with_certificates_.insert(job);
  } else if (with_certificates_.erase(job) > 0) {
    metrics_->RemoveGauge(kName, labels);
  }
}

void OperatorMeter::OnStatus(const kube::ObjectKey& job, const Json& before, const Json& after) {
  const auto holds = [](const Json* condition) {
    return condition != nullptr && GetString(*condition, {"status"}) == "True";
  };

  if (const Json* failed = Condition(after, "Failed"); holds(failed)) {
    if (!holds(Condition(before, "Failed"))) {
      MutexLock lock(&mutex_);
      failed_[{job.ns, job.name, "Failed", GetString(*failed, {"reason"})}] = clock_->Now();
    }
  }

  for (const char* outcome : {"Succeeded", "Failed"}) {
    if (!holds(Condition(before, outcome)) && holds(Condition(after, outcome))) {
      metrics_->counter("operator_jobs_finished_total", {outcome}).Increment();
    }
  }

  // When a condition that is now over had begun.
  const auto ended = [&](const char* type) -> std::optional<absl::Time> {
    const Json* was = Condition(before, type);
    if (!holds(was) || holds(Condition(after, type)) || holds(Condition(after, "Failed"))) {
      return std::nullopt;
    }
    const absl::Time since = kube::DecodeTime(GetString(*was, {"lastTransitionTime"}));
    if (since == absl::InfinitePast()) return std::nullopt;
    return since;
  };

  if (const auto since = ended("Degraded"); since.has_value()) {
    for (const std::string& role : RolesLostSince(before, *since)) {
      metrics_->histogram("operator_recovery_seconds", {role})
          .Observe(absl::ToDoubleSeconds(clock_->Now() - *since));
    }
  }
  if (const auto since = ended("Scaling"); since.has_value()) {
    metrics_->histogram("operator_scale_seconds")
        .Observe(absl::ToDoubleSeconds(clock_->Now() - *since));
  }

  const Json& old_failures = kube::GetList(before, {"lastFailures"});
  for (const Json& failure : kube::GetList(after, {"lastFailures"})) {
    // The list begins with the newest; the remaining entries were there before.
    if (!old_failures.empty() && failure == old_failures.front()) break;
    metrics_
        ->counter("operator_pod_failures_total",
                  {GetString(failure, {"role"}), GetString(failure, {"reason"})})
        .Increment();
  }
}

void OperatorMeter::Update(const runtime::Informer& jobs, size_t queue_depth, size_t running,
                           bool leader, int64_t events_dropped, size_t namespaces_refused) {
  metrics_->gauge("operator_queue_depth").Set(static_cast<double>(queue_depth));
  metrics_->gauge("operator_reconciles_running").Set(static_cast<double>(running));
  metrics_->gauge("operator_leader").Set(leader ? 1 : 0);
  metrics_->gauge("operator_events_dropped").Set(static_cast<double>(events_dropped));
  metrics_->gauge("operator_namespaces_refused").Set(static_cast<double>(namespaces_refused));

  for (auto& [state, count] : jobs_by_state_) count = 0;
  for (const runtime::ObjectPtr& job : jobs.List("")) {
    const std::string summary = GetString(*job, {"status", "summary"});
    ++jobs_by_state_[summary.empty() ? "Pending" : summary];
  }
  for (const auto& [state, count] : jobs_by_state_) {
    metrics_->gauge("operator_jobs", {state}).Set(count);
  }
  UpdateProblems(jobs);
}

void OperatorMeter::UpdateProblems(const runtime::Informer& jobs) {
  std::set<std::vector<std::string>> problems;
  for (const runtime::ObjectPtr& job : jobs.List("")) {
    const kube::ObjectKey key = kube::KeyOf(*job);
    const Json* status = kube::Find(*job, {"status"});
    if (status == nullptr) continue;
    for (const auto& [type, bad] :
         {std::pair{"Degraded", "True"}, {"Failed", "True"}, {"Accepted", "False"}}) {
      const Json* condition = Condition(*status, type);
      if (condition == nullptr || GetString(*condition, {"status"}) != bad) continue;
      problems.insert({key.ns, key.name, type, GetString(*condition, {"reason"})});
    }
  }

  {
    MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    for (auto it = failed_.begin(); it != failed_.end();) {
      if (now - it->second > kFailureIsShown) {
        it = failed_.erase(it);
        continue;
      }
      problems.insert(it->first);
      ++it;
    }
  }

  for (const auto& labels : problems_) {
    if (problems.count(labels) == 0) metrics_->RemoveGauge("operator_job_problem", labels);
  }
  for (const auto& labels : problems) metrics_->gauge("operator_job_problem", labels).Set(1);
  problems_ = std::move(problems);
}

}  // namespace sluice
