#ifndef SLUICE_SERVICES_COORDINATOR_COORDINATOR_RULES_H_
#define SLUICE_SERVICES_COORDINATOR_COORDINATOR_RULES_H_

namespace sluice::coordinator {

// The rules of the protocol that the coordinator keeps, each as a question that it asks itself
// where the rule decides. Every answer is yes; no shipped program says anything else. A simulator
// derives from it, answers one question with no, and must then find what goes wrong. What cannot
// show in a simulated job has a unit test that fails without it; tests/simulation/mutations.cc
// names it.
class CoordinatorRules {
 public:
  virtual ~CoordinatorRules() = default;

  // R1: a term's counter is above all that were seen.
  virtual bool TakeHigherTerm() const { return true; }
  // R1: a reply counts only for its own Pause.
  virtual bool MatchReplies() const { return true; }
  // R5: a death while an AfterStep is waited for begins a Pause(Now).
  virtual bool NowOverrides() const { return true; }
  // R7: an expelled incarnation is refused.
  virtual bool RefuseExpelled() const { return true; }
  // R2: the view starts at the lowest version; no: at the highest.
  virtual bool FallBackToLowest() const { return true; }
  // R8: samples that were applied are taken out of the leases that stay.
  virtual bool KeepLeases() const { return true; }
  // R11: an attempt is claimed before it begins.
  virtual bool ClaimAttempts() const { return true; }
  // R11: the end is the next name in the sequence of claims.
  virtual bool ClaimTheEnd() const { return true; }
  // R12: "whole" counts for its own ask only.
  virtual bool MatchAsks() const { return true; }
  // R14: the Install names the open cut.
  virtual bool CarryCuts() const { return true; }
  // R14: a cut of which a pin is missing is given up.
  virtual bool AbandonIncompleteCuts() const { return true; }
  // Shards are told that the last version is committed.
  virtual bool TellCommitted() const { return true; }
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_COORDINATOR_RULES_H_
