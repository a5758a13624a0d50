#ifndef SLUICE_OPERATOR_RUNTIME_CONTROLLER_H_
#define SLUICE_OPERATOR_RUNTIME_CONTROLLER_H_

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/runtime/work_queue.h"
#include "services/common/time/clock.h"

namespace sluice::runtime {

// The outcome of a reconciliation: when the key is reconciled next.
struct Result {
  enum class Kind {
    kDone,          // not until something changes
    kRequeue,       // again, with the key's backoff
    kRequeueAfter,  // again after `after`, but not before Options::shortest_wait; no failure
    kError,         // failed with `status`: again, with the key's backoff
  };
  Kind kind = Kind::kDone;
  absl::Duration after;
  absl::Status status;

  // Done and RequeueAfter also reset the key's backoff.
  static Result Done() { return {}; }
  static Result Requeue() { return {Kind::kRequeue, absl::ZeroDuration(), absl::OkStatus()}; }
  static Result RequeueAfter(absl::Duration after) {
    return {Kind::kRequeueAfter, after, absl::OkStatus()};
  }
  static Result Error(absl::Status status) {
    return {Kind::kError, absl::ZeroDuration(), std::move(status)};
  }
};

// "done", "requeue", "requeue_after", "error": a label of metrics.
const char* KindName(Result::Kind kind);

// Brings the world to the state that the named object describes. The request is a name, not an
// event: the reconciler finds out what has changed. Several threads, but one at a time for each
// key.
class Reconciler {
 public:
  virtual ~Reconciler() = default;
  // May block. The controller passes the result to the observer.
  virtual Result Reconcile(const Key& key) = 0;
};

// Called after each reconciliation, for metrics and logs. Any thread; must not block.
class ControllerObserver {
 public:
  virtual ~ControllerObserver() = default;
  // `waited`: the time in the queue since the key was due. `retry_in`: zero if there is no retry.
  virtual void OnReconciled(const Key& key, const Result& result, absl::Duration waited,
                            absl::Duration took, absl::Duration retry_in) = 0;
};

// A queue of keys and threads that reconcile them.
class Controller {
 public:
  // `workers`: threads; each reconciles one key at a time.
  struct Options {
    std::string name;
    int workers = 4;
    QueueCore::Options queue;
    // The shortest delay of kRequeueAfter, so that one key does not occupy a whole thread.
    absl::Duration shortest_wait = absl::Milliseconds(10);
  };

  // All arguments outlive this; `observer` may be null.
  Controller(Options options, Reconciler* reconciler, const Clock* clock,
             ControllerObserver* observer);
  ~Controller();

  // Event handlers add keys here.
  WorkQueue* queue() { return &queue_; }

  // Takes one key that is due and reconciles it on this thread; returns false if none is due.
  bool ProcessOne();

  // To be called once. Stop (also called by the destructor) waits for running reconciliations;
  // waiting keys are dropped.
  void Start();
  void Stop();

 private:
  // Reconciles one key, reports it, and returns it to the queue as the result says.
  void Process(const QueueCore::Taken& taken);

  const Options options_;
  Reconciler* const reconciler_;
  const Clock* const clock_;
  ControllerObserver* const observer_;
  WorkQueue queue_;
  std::vector<std::thread> workers_;
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_CONTROLLER_H_
