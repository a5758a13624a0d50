#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_RULES_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_RULES_H_

namespace sluice::worker {

// The rules of the protocol that the worker keeps, each as a question that it asks itself where the
// rule decides. Every answer is yes; no shipped program says anything else. A simulator derives
// from it, answers one question with no, and must then find what goes wrong. What cannot show in a
// simulated job has a unit test that fails without it; tests/simulation/mutations.cc names it.
class WorkerRules {
 public:
  virtual ~WorkerRules() = default;

  // R1: a view that is not newer than the present one changes nothing.
  virtual bool CompareViews() const { return true; }
  // R9: at a view change every version pulled in an older view is dropped, except the view's first.
  virtual bool DropOlderVersions() const { return true; }
  // R9: and all of them if a view was skipped.
  virtual bool DropAllIfSkipped() const { return true; }
  // Data of another view than the present one is ignored.
  virtual bool IgnoreDataOfOtherViews() const { return true; }
  // Only gradients that lie wholly inside the new assignment are sent again.
  virtual bool UseOnlyContainedGradients() const { return true; }
  // R9: the gradient is kept until the next version is whole; no: dropped once it was sent.
  virtual bool KeepGradient() const { return true; }
  // What may have been lost with a stream is sent again on the next one.
  virtual bool SendAgainAfterReconnect() const { return true; }
  // The last push to a shard says for which partitions it was the last, of all the shard's.
  virtual bool NameEveryPartition() const { return true; }
  // Asynchronous: an update is pushed with a permit only.
  virtual bool AwaitPermit() const { return true; }
  // Asynchronous: Apply is sent only after all shards have staged the update.
  virtual bool AwaitAllStaged() const { return true; }
  // Asynchronous: the update is kept, and sent again in a new view, until all shards applied it.
  virtual bool KeepUpdate() const { return true; }
  // R13: other shards are asked with the lease holders that the arbiter named; no: at once.
  virtual bool AskArbiterFirst() const { return true; }
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_RULES_H_
