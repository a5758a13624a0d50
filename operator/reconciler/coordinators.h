// The operator's connections to coordinators.
#ifndef SLUICE_OPERATOR_RECONCILER_COORDINATORS_H_
#define SLUICE_OPERATOR_RECONCILER_COORDINATORS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/kube/write_gate.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/threads/mutex.h"
#include "services/transport/job_control_client.h"

namespace sluice::reconciler {

// The newest report that has arrived from a job's coordinator.
struct LastProgress {
  std::string instance;                             // the coordinator's instance that reported
  std::shared_ptr<const v1::JobProgress> progress;  // null: no report yet
  absl::Time at = absl::InfinitePast();             // when the report arrived
};

// Any thread; never blocks.
class Coordinators {
 public:
  virtual ~Coordinators() = default;
  // Sets the instance and address of the job's coordinator. `desired` is sent until the coordinator
  // has received it, and its progress is polled. Each death is reported once; deaths that cannot be
  // delivered soon are dropped, because the coordinator detects them itself.
  virtual void Sync(const kube::ObjectKey& job, const std::string& instance,
                    const ControlAddress& address, const v1::SetDesiredRequest& desired,
                    std::vector<v1::SetDesiredRequest::Death> deaths) = 0;
  // Stops the calls to the job's coordinator; its last report is kept.
  virtual void Pause(const kube::ObjectKey& job) = 0;
  // The job is gone: its calls end, and its report is forgotten.
  virtual void Forget(const kube::ObjectKey& job) = 0;
  // The last report, of any instance; empty if there is none.
  virtual LastProgress Latest(const kube::ObjectKey& job) const = 0;
};

// Over gRPC.
class GrpcCoordinators final : public Coordinators {
 public:
  // As JobControlClient::Options.
  struct Options {
    absl::Duration poll_interval = absl::Seconds(1);
    absl::Duration call_timeout = absl::Seconds(2);
    absl::Duration deaths_last = absl::Seconds(3);
    // Checked before each request that sends desired state, as before each write: a former leader
    // that wakes up must not send outdated state. When it refuses, the progress is still polled.
    // Null: always allowed. Outlives this.
    kube::WriteGate* gate = nullptr;
  };

  // `on_news` is called, on any thread and without locks, for a job whose coordinator has reported
  // a change other than growing steps and samples.
  GrpcCoordinators(Options options, std::function<void(const kube::ObjectKey&)> on_news);
  // Cancels pending calls and waits for them.
  ~GrpcCoordinators() override;

  void Sync(const kube::ObjectKey& job, const std::string& instance, const ControlAddress& address,
            const v1::SetDesiredRequest& desired,
            std::vector<v1::SetDesiredRequest::Death> deaths) override;
  void Pause(const kube::ObjectKey& job) override;
  void Forget(const kube::ObjectKey& job) override;
  LastProgress Latest(const kube::ObjectKey& job) const override;

 private:
  // A job's last report. A changed `gist` makes it news.
  struct Report {
    kube::ObjectKey job;
    LastProgress last;
    std::string gist;
  };

  // Keeps the report; calls on_news_ if its gist or the instance has changed.
  void OnProgress(const std::string& job, const std::string& instance, v1::JobProgress progress);

  const std::function<void(const kube::ObjectKey&)> on_news_;
  mutable Mutex mutex_;  // not held while the client or on_news_ is called
  std::map<std::string, Report> reports_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<JobControlClient> client_;
};

// Progress without the fields that change all the time: steps, samples, rates, ages.
std::string Gist(const v1::JobProgress& progress);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_COORDINATORS_H_
