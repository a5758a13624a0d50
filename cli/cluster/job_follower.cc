#include "cli/cluster/job_follower.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"

namespace sluice::cli {

using kube::GetString;
using kube::Json;

JobFollower::JobFollower(Options options, RunDisplay* display)
    : options_(std::move(options)), display_(display) {}

void JobFollower::Take(JobNews news, absl::Time now) {
  if (outcome_.has_value()) return;

  TakeProblems(news.problems);
  if (news.pods.has_value()) TakePods(*news.pods);

  v1::JobProgress progress;
  if (news.job_listed) TakeJob(std::move(news.job));
  if (!job_.is_null()) progress = ProgressOf(job_);

  for (const std::vector<Json>* events : {&news.old_events, &news.events}) {
    for (const Json& event : *events) {
      v1::Event shown;
      const bool is_news = TakeEvent(event, &shown);
      if (is_news && (events == &news.events || options_.is_new)) pending_events_.push_back(shown);
    }
  }

  v1::Event evaluation;
  if (news.job_listed && NewEvaluation(&evaluation)) pending_events_.push_back(evaluation);
  // Events may come before the job does.
  if (!job_.is_null() && (news.job_listed || !pending_events_.empty())) {
    for (const v1::Event& event : pending_events_) *progress.add_events() = event;
    pending_events_.clear();
    display_->OnProgress(progress, ViewOf(job_, {}).state);
  }

  WarnWithoutOperator(now);
  display_->OnTick(job_.is_null() ? std::map<policy::Replica, ProcessState>()
                                  : StatesOf(pods_, job_));
}

void JobFollower::TakeJob(Json job) {
  if (job.is_null() || kube::UidOf(job) != options_.uid) {
    outcome_.emplace();
    outcome_->kind = policy::OutcomeKind::kFailed;
    outcome_->code = "Deleted";
    outcome_->reason =
        job.is_null() ? "it was deleted" : "it was deleted, and a new job has the same name";
    return;
  }
  job_ = std::move(job);
  outcome_ = OutcomeOf(job_);
}

void JobFollower::TakePods(const std::vector<Json>& pods) {
  PodStatuses now = ReadPods(pods, options_.uid);

  // The pods that exist when following begins are not shown as changes.
  const bool show = pods_known_ || options_.is_new;

  for (const auto& [name, pod] : now) {
    if (!show) break;
    const auto found = pods_.find(name);
    const bool same = found != pods_.end() && found->second.uid == pod.uid;
    const ProcessInstance instance{pod.replica, 0, name};
    if (pod.begun && !(same && found->second.begun)) display_->OnProcessStarted(instance);
    if (pod.ended && !(same && found->second.ended)) display_->OnProcessEnded(instance, pod.exit);
  }

  pods_ = std::move(now);
  pods_known_ = true;
}

bool JobFollower::TakeEvent(const Json& event, v1::Event* shown) {
  if (GetString(event, {"involvedObject", "uid"}) != options_.uid) return false;
  // A repeated event has the same uid.
  if (!seen_events_.insert(kube::UidOf(event)).second) return false;

  const std::string reason = GetString(event, {"reason"});
  std::string message = GetString(event, {"message"});
  const bool warning = GetString(event, {"type"}) == "Warning";
  shown->set_kind(warning ? v1::Event::WARNING : v1::Event::INFO);
  if (message.empty()) message = reason;
  shown->set_message(warning && message != reason ? absl::StrCat(reason, ": ", message) : message);
  shown->set_time(absl::ToDoubleSeconds(TimeOfEvent(event) - absl::UnixEpoch()));
  return true;
}

bool JobFollower::NewEvaluation(v1::Event* shown) {
  if (job_.is_null()) return false;
  const v1::JobProgress progress = ProgressOf(job_);

  const bool first = !evaluated_at_.has_value();
  const uint64_t step = progress.has_last_evaluation() ? progress.last_evaluation().step() : 0;
  const bool changed = first || step != *evaluated_at_;
  evaluated_at_ = step;

  if (!progress.has_last_evaluation() || !changed || (first && !options_.is_new)) return false;
  shown->set_kind(v1::Event::EVALUATION);
  *shown->mutable_evaluation() = progress.last_evaluation();
  shown->set_message(EvaluationText(progress.last_evaluation()));
  return true;
}

void JobFollower::TakeProblems(const std::map<std::string, absl::Status>& problems) {
  for (const auto& [resource, status] : problems) {
    if (status.ok()) {
      display_->Note(absl::StrCat("Watching ", resource, " again"));
    } else if (absl::IsPermissionDenied(status)) {
      const std::optional<kube::ApiError> error = kube::ApiErrorOf(status);
      display_->Note(absl::StrCat("You may not read ", resource, ", so they are not shown: ",
                                  error.has_value() ? error->message : status.message()));
    } else {
      display_->Note(absl::StrCat("Warning: cannot watch ", resource,
                                  "; retrying. This does not affect the job: ", status.message()));
    }
  }
}

void JobFollower::WarnWithoutOperator(absl::Time now) {
  const bool not_accepted =
      !job_.is_null() && kube::Find(job_, {"status", "conditions"}) == nullptr;
  if (!not_accepted || warned_about_operator_ || now < options_.begin + options_.operator_patience)
    return;
  warned_about_operator_ = true;
  display_->Note(absl::StrCat(
      "Warning: no operator has accepted the job yet. Check that the operator runs (kubectl get "
      "pods "
      "--all-namespaces -l app.kubernetes.io/name=sluice-operator) and watches namespace ",
      kube::KeyOf(job_).ns));
}

}  // namespace sluice::cli
