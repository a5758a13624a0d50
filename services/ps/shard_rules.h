#ifndef SLUICE_SERVICES_PS_SHARD_RULES_H_
#define SLUICE_SERVICES_PS_SHARD_RULES_H_

namespace sluice::ps {

// The rules of the protocol that the shard keeps, each as a question that it asks itself where the
// rule decides. Every answer is yes; no shipped program says anything else. A simulator derives
// from it, answers one question with no, and must then find what goes wrong. What cannot show in a
// simulated job has a unit test that fails without it; tests/simulation/mutations.cc names it.
class ShardRules {
 public:
  virtual ~ShardRules() = default;

  // R1: messages of a coordinator with a lower term are refused.
  virtual bool FenceTerms() const { return true; }
  // R1: an Install counts only if it answers the last Pause that was replied to.
  virtual bool FenceInstalls() const { return true; }
  // R2: after the reply to a Pause nothing changes until the Install.
  virtual bool KeepPromise() const { return true; }
  // R5: AfterStep waits for every partition; no: the first one that is past the step replies.
  virtual bool WaitForEveryPartition() const { return true; }
  // R5: a Now overrides a waiting AfterStep.
  virtual bool NowOverrides() const { return true; }
  // Messages of older views are refused.
  virtual bool RefuseOlderViews() const { return true; }
  // R9: a repeated block is ignored.
  virtual bool IgnoreRepeatedBlocks() const { return true; }
  // A partition closes by the set of members; no: by the number of `complete` received.
  virtual bool CloseBySet() const { return true; }
  // Where stragglers are dropped, a step closes with the set that one shard decided; no: each
  // partition with whoever is complete for it first.
  virtual bool AgreeOnSet() const { return true; }
  // Accumulators are dropped at an Install.
  virtual bool DropAccumulators() const { return true; }
  // Undo is kept until every member has pushed the next step; no: until the partition's own next
  // close begins, that is, it is gone at once.
  virtual bool KeepUndo() const { return true; }
  // A version is committed once every member has pushed its step; no: once one member has.
  virtual bool AwaitEveryHolder() const { return true; }
  // R12: version 0 is of one ask.
  virtual bool CheckAsk() const { return true; }
  // R8, asynchronous: an update whose clock was applied is acked without effect.
  virtual bool IgnoreAppliedClocks() const { return true; }
  // Asynchronous: staged updates that did not win are dropped at an Install.
  virtual bool DropStaged() const { return true; }
  // Asynchronous: an Install applies the winning clocks from what is staged.
  virtual bool ApplyWinners() const { return true; }
  // R8: the unfinished rest of a recorded lease is given again first.
  virtual bool RepeatLeases() const { return true; }
  // R13: whoever is given a lease and held none is raised to the lease holders' lowest clock.
  virtual bool RaiseClocks() const { return true; }
  // R13: other shards wait for the lease holders that the arbiter counted.
  virtual bool WaitForCounted() const { return true; }
  // R13: parked pulls are looked at again whenever leases change.
  virtual bool WakeParkedPulls() const { return true; }
  // R14: a pin is reported and written only once its version is committed.
  virtual bool WriteOnlyCommitted() const { return true; }
  // R14: a fall-back drops pins of the version that it takes back.
  virtual bool DropPinsAtFallBack() const { return true; }
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_RULES_H_
