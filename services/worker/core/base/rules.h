#ifndef SLUICE_SERVICES_WORKER_CORE_BASE_RULES_H_
#define SLUICE_SERVICES_WORKER_CORE_BASE_RULES_H_

namespace sluice::worker {

// The rules of the protocol that the worker keeps. Each is a question that the worker asks where
// the rule decides. Every answer is yes in every shipped program. A simulator derives from this
// class, answers one question with no, and must then find the resulting failure. A rule whose
// violation cannot show in a simulated job has a unit test that fails without it;
// tests/simulation/mutations.cc names that test.
class WorkerRules {
 public:
  virtual ~WorkerRules() = default;

  // R1: a view that is not newer than the current one changes nothing.
  virtual bool CompareViews() const { return true; }
  // R9: at a view change every version pulled in an older view is dropped, except the view's first.
  virtual bool DropOlderVersions() const { return true; }
  // R9: and all of them if a view was skipped.
  virtual bool DropAllIfSkipped() const { return true; }
  // Data of any view but the current one is ignored.
  virtual bool IgnoreDataOfOtherViews() const { return true; }
  // Only gradients that are wholly inside the new assignment are sent again.
  virtual bool UseOnlyContainedGradients() const { return true; }
  // Where computations need sums over their step, a view change drops all gradients of the step.
  virtual bool DropGradientsOfOldSums() const { return true; }
  // R9: the gradient is kept until the next version is whole; no: it is dropped once it was sent.
  virtual bool KeepGradient() const { return true; }
  // Frames that may have been lost with a stream are sent again on the next one.
  virtual bool SendAgainAfterReconnect() const { return true; }
  // The last push to a shard names all of the shard's partitions for which it was the last.
  virtual bool NameEveryPartition() const { return true; }
  // The pushes that complete a contribution have its weight.
  virtual bool SendWeights() const { return true; }
  // Asynchronous: an update is pushed with a permit only.
  virtual bool AwaitPermit() const { return true; }
  // Asynchronous: Apply is sent only after all shards have staged the update.
  virtual bool AwaitAllStaged() const { return true; }
  // Asynchronous: the update is kept, and sent again in a new view, until all shards applied it.
  virtual bool KeepUpdate() const { return true; }
  // R13: the other shards are pulled from with the lease holders that the arbiter named; no: at
  // once.
  virtual bool AskArbiterFirst() const { return true; }
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_BASE_RULES_H_
