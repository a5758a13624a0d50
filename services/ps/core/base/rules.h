#ifndef SLUICE_SERVICES_PS_CORE_BASE_RULES_H_
#define SLUICE_SERVICES_PS_CORE_BASE_RULES_H_

namespace sluice::ps {

// The protocol rules that the shard follows. Each is a function that the shard calls where the rule
// applies. Every function returns true in every shipped program. The simulator overrides one
// function to return false, and must then find the resulting failure. A rule whose violation cannot
// show in a simulated job has a unit test that fails without the rule;
// tests/simulation/mutations.cc names the test.
class ShardRules {
 public:
  virtual ~ShardRules() = default;

  // R1: messages of a coordinator with a lower term are refused.
  virtual bool FenceTerms() const { return true; }
  // R1: an Install counts only if it answers the last Pause that was replied to.
  virtual bool FenceInstalls() const { return true; }
  // R2: after the reply to a Pause nothing changes until the Install.
  virtual bool KeepPromise() const { return true; }
  // R5: AfterStep waits for every partition. False: the shard replies once the first one is past
  // the step.
  virtual bool WaitForEveryPartition() const { return true; }
  // R5: a Now overrides a waiting AfterStep.
  virtual bool NowOverrides() const { return true; }
  // Messages of older views are refused.
  virtual bool RefuseOlderViews() const { return true; }
  // R9: a repeated block is ignored.
  virtual bool IgnoreRepeatedBlocks() const { return true; }
  // A partition closes by the set of members. False: by the number of `complete` received.
  virtual bool CloseBySet() const { return true; }
  // Where stragglers are dropped, a step closes with the set that one shard decided. False: each
  // partition closes with the members that complete it first.
  virtual bool AgreeOnSet() const { return true; }
  // A mean is over the weights of the contributions. False: over their samples.
  virtual bool CountWeights() const { return true; }
  // Accumulators are dropped at an Install.
  virtual bool DropAccumulators() const { return true; }
  // Undo is kept until every member has pushed the next step. False: until the partition's own next
  // close begins, so it is gone at once.
  virtual bool KeepUndo() const { return true; }
  // A version is committed once every member has pushed its step. False: once one member has.
  virtual bool AwaitEveryHolder() const { return true; }
  // A step closes, and an asynchronous update is acked (R6), once each copy of the partition has
  // its gradients.
  virtual bool AwaitCopies() const { return true; }
  // Asynchronous: an Apply is answered once each copy has applied the update.
  virtual bool AnswerAfterCopies() const { return true; }
  // Asynchronous: a copy gets what its owner has staged, and the arbiter's leases, before its
  // state.
  virtual bool SendStagedToNewCopies() const { return true; }
  // R8: a lease is given once the copies of partition 0 have recorded it.
  virtual bool RecordLeasesAtCopies() const { return true; }
  // R10: AfterStep waits for whole copies as for owned partitions.
  virtual bool WaitForCopies() const { return true; }
  // R12: all of version 0 belongs to one init request.
  virtual bool CheckInitId() const { return true; }
  // R8, asynchronous: an update whose clock was applied is acked without effect.
  virtual bool IgnoreAppliedClocks() const { return true; }
  // Asynchronous: staged updates that did not win are dropped at an Install.
  virtual bool DropStaged() const { return true; }
  // Asynchronous: an Install applies the winning clocks from what is staged.
  virtual bool ApplyWinners() const { return true; }
  // R8: the unfinished rest of a recorded lease is given again first.
  virtual bool RepeatLeases() const { return true; }
  // R13: a worker that gets a lease and held none is raised to the lease holders' lowest clock.
  virtual bool RaiseClocks() const { return true; }
  // R13: other shards wait for the lease holders that the arbiter counted.
  virtual bool WaitForCounted() const { return true; }
  // R13: parked pulls are checked again whenever leases change.
  virtual bool WakeParkedPulls() const { return true; }
  // R14: a pin is reported and written only once its version is committed.
  virtual bool WriteOnlyCommitted() const { return true; }
  // R14: a rollback drops pins of the version that it takes back.
  virtual bool DropPinsAtRollBack() const { return true; }
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_RULES_H_
