#ifndef SLUICE_SERVICES_COORDINATOR_CORE_BASE_RULES_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_BASE_RULES_H_

namespace sluice::coordinator {

// The rules of the protocol that the coordinator follows, each as a question that the code asks
// where the rule decides. In every shipped program every answer is yes. A simulator derives from
// this class, answers one question with no, and must then find the resulting error. A rule whose
// violation cannot show in a simulated job has a unit test that fails without the rule;
// tests/simulation/mutations.cc names the test.
class CoordinatorRules {
 public:
  virtual ~CoordinatorRules() = default;

  // R1: a term's counter is above all counters that were seen.
  virtual bool TakeHigherTerm() const { return true; }
  // R1: a reply counts only for its own Pause.
  virtual bool MatchReplies() const { return true; }
  // R4: a view that leaves out a shard that did not answer waits for its loss record.
  virtual bool RecordLosses() const { return true; }
  // R5: if a member dies while an AfterStep is pending, a Pause(Now) begins.
  virtual bool NowOverrides() const { return true; }
  // R7: an expelled incarnation is refused.
  virtual bool RefuseExpelled() const { return true; }
  // R2: the view starts at the lowest version; no: at the highest.
  virtual bool RollBackToLowest() const { return true; }
  // R8: applied samples are removed from the leases that are kept.
  virtual bool KeepLeases() const { return true; }
  // R10: only whole copies that have the view's first step are kept, and may become owners.
  virtual bool KeepOnlyWholeCopies() const { return true; }
  // R11: an attempt is claimed before it begins.
  virtual bool ClaimAttempts() const { return true; }
  // R11: the end of the job takes the next name in the sequence of claims.
  virtual bool ClaimTheEnd() const { return true; }
  // R12: a StateReady counts only for its own init request.
  virtual bool MatchInitIds() const { return true; }
  // R14: the Install names the open snapshot.
  virtual bool CarrySnapshots() const { return true; }
  // R14: a snapshot with a missing pin is abandoned.
  virtual bool AbandonIncompleteSnapshots() const { return true; }
  // A request of the parent that is older than another one does not change the wanted sizes.
  virtual bool IgnoreOlderRequests() const { return true; }
  // The loss of an evaluation is the mean over the weights of its parts. False: over samples.
  virtual bool WeighEvaluations() const { return true; }
  // A coordinator that hears no process expels none.
  virtual bool SuspectItself() const { return true; }
  // The coordinator sends Committed for the last version.
  virtual bool SendCommitted() const { return true; }
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_BASE_RULES_H_
