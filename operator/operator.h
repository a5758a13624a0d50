// The operator without its process: caches, queue, reconciler, put together.
#ifndef SLUICE_OPERATOR_OPERATOR_H_
#define SLUICE_OPERATOR_OPERATOR_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/client.h"
#include "operator/kube/reflector.h"
#include "operator/reconciler/coordinators.h"
#include "operator/reconciler/job_reconciler.h"
#include "operator/runtime/controller.h"
#include "operator/runtime/events.h"
#include "operator/runtime/informer.h"
#include "operator/runtime/task_pool.h"
#include "services/common/clock.h"

namespace sluice {

// A change of a job, or of anything that a job owns, puts the job into the queue; so does its
// coordinator's word, and time. Everything else is in reconciler/.
class Operator {
 public:
  struct Options {
    std::vector<std::string> namespaces;  // empty: all
    reconciler::JobReconciler::Options reconciler;
    runtime::Controller::Options controller;
    // Threads that help to make pods, of all jobs together.
    int creators = 0;
    // News of a pod that only begins, or gets ready, wait so long for others of their job: a job of
    // a hundred pods is not looked at for each of them. An end is looked at at once.
    absl::Duration gather_pod_news = absl::ZeroDuration();
    // All jobs are looked at again this often, in case something was missed.
    absl::Duration resync = absl::Minutes(10);
    kube::Reflector::Options reflector;  // ns and label_selector are set here
  };

  // `reads` lists and watches, `writes` does all else and has the leader's gate. Both, and the
  // rest, outlive this; `observer` may be null.
  Operator(Options options, kube::Client* reads, kube::Client* writes,
           reconciler::Coordinators* coordinators, runtime::EventRecorder* events,
           const Clock* clock, runtime::ControllerObserver* observer);
  ~Operator();

  // Any thread. The job is looked at soon.
  void Enqueue(const kube::ObjectKey& job) { controller_->queue()->Add(job); }

  // Threads that keep the caches: from here on, leader or not. `on_error` hears of watches that
  // broke. Once.
  using WatchError =
      std::function<void(const std::string& ns, const std::string& resource, const absl::Status&)>;
  void StartCaches(const WatchError& on_error);
  // All first lists are there; but where only some namespaces are watched, one that the API server
  // refuses to list (it is gone, or the operator has no rights there) is not waited for. Its jobs
  // are not reconciled before all of its lists are there.
  bool HasSynced() const;
  // Threads that reconcile. Once.
  void StartControllers();
  // Ends all threads. Waits for reconciliations that run.
  void Stop();

  // By hand, for tests: each reflector one round; one key that is due.
  void SyncOnce();
  bool ReconcileOne() { return controller_->ProcessOne(); }
  // Now and then: resyncs that are due.
  void Tick();

  // Namespaces of Options::namespaces that the API server refuses to list, at present.
  std::vector<std::string> refused_namespaces() const;

  const runtime::Informer& jobs() const { return *informers_.front(); }
  runtime::WorkQueue* queue() { return controller_->queue(); }

 private:
  class Gate;
  class Handler;
  class Sink;
  // One namespace (or all) of one type.
  struct Source {
    const kube::ResourceType* type;
    runtime::Informer* informer;
    std::unique_ptr<Sink> sink;
    std::unique_ptr<kube::Reflector> reflector;
  };

  // Whether each list of the namespace has come once.
  bool HasListed(const std::string& ns) const;
  runtime::Informer* AddCache(kube::Client* reads, const kube::ResourceType& type);

  const Options options_;
  const Clock* const clock_;
  std::unique_ptr<Handler> handler_;
  std::vector<std::unique_ptr<runtime::Informer>> informers_;  // the jobs' first
  std::vector<Source> sources_;
  runtime::TaskPool creators_;
  std::unique_ptr<reconciler::JobReconciler> reconciler_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<runtime::Controller> controller_;
  kube::Cancellation cancellation_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice

#endif  // SLUICE_OPERATOR_OPERATOR_H_
