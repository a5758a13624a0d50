// The operator without its process: connects caches, queue and reconciler.
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
#include "services/common/time/clock.h"

namespace sluice {

// A job is queued when it changes, when an object that it owns changes, when its coordinator
// reports a change, and at the time that its last reconciliation asked for. Everything else is in
// reconciler/.
class Operator {
 public:
  struct Options {
    std::vector<std::string> namespaces;  // empty: all
    reconciler::JobReconciler::Options reconciler;
    runtime::Controller::Options controller;
    // Threads that create pods, shared by all jobs.
    int creators = 0;
    // Delay of a job's reconciliation after a pod has begun or become ready. It gathers the changes
    // of a job's pods into one reconciliation. The end of a pod is handled at once.
    absl::Duration gather_pod_news = absl::ZeroDuration();
    // All jobs are reconciled at this interval, in case an event was missed.
    absl::Duration resync = absl::Minutes(10);
    kube::Reflector::Options reflector;               // ns and label_selector are set here
    runtime::ControllerObserver* observer = nullptr;  // outlives the operator; may be null
  };

  // `reads` lists and watches; `writes` does everything else, behind the leader's write gate. All
  // arguments outlive this.
  Operator(Options options, kube::Client* reads, kube::Client* writes,
           reconciler::Coordinators* coordinators, runtime::EventRecorder* events,
           const Clock* clock);
  ~Operator();

  // Any thread. The job is reconciled soon.
  void Enqueue(const kube::ObjectKey& job) { controller_->queue()->Add(job); }

  // Starts the threads that maintain the caches, as leader or not. `on_error` is called for watches
  // that failed. To be called once.
  using WatchError =
      std::function<void(const std::string& ns, const std::string& resource, const absl::Status&)>;
  void StartCaches(const WatchError& on_error);
  // Whether all first lists have arrived. If only some namespaces are watched, it does not wait for
  // one that the API server refuses to list (it was deleted, or the operator has no rights there).
  // Jobs of a namespace are not reconciled before all of its lists have arrived.
  bool HasSynced() const;
  // Starts the threads that reconcile. To be called once.
  void StartControllers();
  // Stops all threads, after the running reconciliations have finished.
  void Stop();

  // For tests: one round of each reflector; one key that is due.
  void SyncOnce();
  bool ReconcileOne() { return controller_->ProcessOne(); }
  // Called periodically: starts resyncs that are due.
  void Tick();

  // Namespaces of Options::namespaces that the API server currently refuses to list.
  std::vector<std::string> refused_namespaces() const;

  const runtime::Informer& jobs() const { return *informers_.front(); }
  runtime::WorkQueue* queue() { return controller_->queue(); }

 private:
  // ---- the parts; operator.cc says what each does
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

  // Whether every list of the namespace has arrived once.
  bool HasListed(const std::string& ns) const;
  // Makes the cache of a type, with one reflector for each namespace, and connects it to the
  // handler.
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
