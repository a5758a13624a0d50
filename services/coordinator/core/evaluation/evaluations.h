// The evaluations of a job: when they are due, the one that is under way, and its result.
//
// Members evaluate a version that all shards have pinned. While the job trains they evaluate the
// first `maxSamples` held-out samples; the version that the job ends with is evaluated on all of
// them.
//
// Where evaluations decide (decisions.h), synchronous training waits at each version
// that is due until it is evaluated, and the decision holds from this version on.
//
// It writes Facts::last_evaluation and Facts::decisions.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_EVALUATIONS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_EVALUATIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/evaluation/evaluation.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/facts/snapshot.h"

namespace sluice::coordinator {

class Evaluations {
 public:
  // All must outlive it.
  Evaluations(const Facts& facts, const std::optional<Snapshot>& open,
              std::optional<v1::Evaluation>* last_result, v1::EvaluationDecisions* decisions,
              Output* output);

  // The attempt begins with these decisions, or is taken over with them.
  void Begin(const v1::EvaluationDecisions& decisions);
  // The attempt is over.
  void LeaveAttempt();
  // A snapshot was opened, to be evaluated or not.
  void OnOpened(bool evaluate) { pending_ = evaluate; }
  // The open snapshot is about to be closed.
  void OnClose() {
    pending_ = false;
    evaluation_.reset();
  }

  IntervalSchedule& schedule() { return schedule_; }
  const IntervalSchedule& schedule() const { return schedule_; }

  // Begins the evaluation of the open snapshot once it is pinned, gives samples to members, and
  // notes the result.
  void Advance(absl::Time now);
  void OnResult(uint64_t worker, const v1::EvaluationResult& result);
  void OnMetricValues(uint64_t worker, const v1::MetricValues& values);
  void ResendTo(const Process& worker);

  // The open snapshot is still to be evaluated.
  bool pending() const { return pending_; }
  bool running() const { return evaluation_.has_value(); }
  // Requires running().
  uint64_t version() const {
    SLUICE_DCHECK(running(), "an evaluation is under way");
    return evaluation_->version();
  }
  // Whether evaluations decide, and training waits for them at the versions that are due.
  bool HoldTraining() const;
  // The version is evaluated, as far as the decisions tell.
  bool HasDecided(uint64_t version) const { return decisions_.step() >= version; }
  // training.target was reached while the job trained.
  bool target_reached() const { return target_reached_; }
  // The version that the job ends with needs no evaluation (any more).
  bool FinalDone(uint64_t version) const;

  absl::Time NextDeadline() const;

 private:
  void Start(absl::Time now);
  void Decide(const v1::Evaluation& result, absl::Time now);
  void Finish(absl::Time now);
  void Note(v1::Evaluation result, absl::Time now);
  std::vector<Evaluator> Evaluators() const;

  const Facts& facts_;
  const std::optional<Snapshot>& snapshot_;
  std::optional<v1::Evaluation>& last_result_;
  v1::EvaluationDecisions& decisions_;
  Output& output_;
  IntervalSchedule schedule_;
  bool pending_ = false;
  std::optional<Evaluation> evaluation_;  // of the open snapshot
  uint64_t last_id_ = 0;
  bool target_reached_ = false;
  bool final_given_up_ = false;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_EVALUATIONS_H_
