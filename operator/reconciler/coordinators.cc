#include "operator/reconciler/coordinators.h"

#include <utility>

#include "absl/time/clock.h"

namespace sluice::reconciler {
std::string Gist(const v1::JobProgress& progress) {
  v1::JobProgress gist;
  gist.set_phase(progress.phase());
  gist.set_reason(progress.reason());
  gist.set_attempt(progress.attempt());
  gist.set_restored(progress.restored());
  gist.set_total_steps(progress.total_steps());

  if (progress.has_view()) *gist.mutable_view()->mutable_id() = progress.view().id();
  gist.mutable_checkpoint()->set_error(progress.checkpoint().error());

  for (const v1::ProcessStatus& process : progress.processes()) {
    v1::ProcessStatus* kept = gist.add_processes();
    *kept->mutable_process() = process.process();
    kept->set_state(process.state());
  }
  return gist.SerializeAsString();
}

GrpcCoordinators::GrpcCoordinators(Options options,
                                   std::function<void(const kube::ObjectKey&)> on_news)
    : on_news_(std::move(on_news)) {
  JobControlClient::Options control;
  control.poll_interval = options.poll_interval;
  control.call_timeout = options.call_timeout;
  control.deaths_last = options.deaths_last;
  control.with_events = false;  // the operator records its own

  if (options.gate != nullptr) {
    control.may_send = [gate = options.gate] { return gate->Check().ok(); };
  }

  client_ = std::make_unique<JobControlClient>(
      std::move(control),
      [this](const std::string& job, const std::string& instance, v1::JobProgress progress) {
        OnProgress(job, instance, std::move(progress));
      });
}

GrpcCoordinators::~GrpcCoordinators() { client_.reset(); }

void GrpcCoordinators::Sync(const kube::ObjectKey& job, const std::string& instance,
                            const ControlAddress& address, const v1::SetDesiredRequest& desired,
                            std::vector<v1::SetDesiredRequest::Death> deaths) {
  {
    MutexLock lock(&mutex_);
    reports_[job.ToString()].job = job;
  }
  client_->Sync(job.ToString(), instance, address, desired, std::move(deaths));
}

// A job may exist for weeks after its end; its connection is not needed.
void GrpcCoordinators::Pause(const kube::ObjectKey& job) { client_->Pause(job.ToString()); }

void GrpcCoordinators::Forget(const kube::ObjectKey& job) {
  client_->Forget(job.ToString());
  MutexLock lock(&mutex_);
  reports_.erase(job.ToString());
}

LastProgress GrpcCoordinators::Latest(const kube::ObjectKey& job) const {
  MutexLock lock(&mutex_);
  const auto found = reports_.find(job.ToString());
  return found == reports_.end() ? LastProgress() : found->second.last;
}

void GrpcCoordinators::OnProgress(const std::string& job, const std::string& instance,
                                  v1::JobProgress progress) {
  kube::ObjectKey key;
  {
    MutexLock lock(&mutex_);
    const auto found = reports_.find(job);
    if (found == reports_.end()) return;  // forgotten

    Report& report = found->second;
    std::string gist = Gist(progress);

    const bool news = report.last.instance != instance || gist != report.gist;
    report.gist = std::move(gist);
    report.last = {instance, std::make_shared<v1::JobProgress>(std::move(progress)), absl::Now()};

    if (!news) return;
    key = report.job;
  }
  on_news_(key);
}

}  // namespace sluice::reconciler
