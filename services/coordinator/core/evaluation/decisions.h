// The decisions of evaluations about training: the learning rate's factor (optimizer.plateau) and
// the end (training.stopping).
//
// Intuition. A decision is a function of the decisions before it and of one evaluation, so a job
// that is interrupted anywhere decides the same again. The numbers are those of PyTorch's
// ReduceLROnPlateau, except that a relative threshold is a fraction of the best value's magnitude:
// PyTorch multiplies the value itself, so that a negative loss that rises slowly is an improvement.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_DECISIONS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_DECISIONS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::coordinator {

// Whether evaluations change how the job trains, or end it.
bool EvaluationsDecide(const v1::JobSpec& job);

// Whether `value` is better than `best`. No value is better than another one if it is NaN or
// infinite.
bool IsBetter(double value, double best, bool maximize);
// The direction that the manifest sets, or the metric's own.
bool Maximizes(absl::string_view metric, v1::Direction direction);

// The factor of the learning rate.
double LearningRateFactor(const v1::EvaluationDecisions& decisions);

// The decisions after this evaluation. An evaluation of the version of `before`, or of an earlier
// one, changes nothing. A metric that the evaluation does not have has not improved.
v1::EvaluationDecisions DecideAfter(const v1::JobSpec& job, const v1::EvaluationDecisions& before,
                                    const v1::Evaluation& evaluation);

// Sets the metrics by which the job compares its evaluations.
void NoteComparedMetrics(const v1::JobSpec& job, v1::CheckpointIndex* index);

// The decisions of a checkpoint of the job, without the histories of other metrics than those that
// its manifest names now.
v1::EvaluationDecisions DecisionsOf(const v1::JobSpec& job, const v1::CheckpointIndex& index);

// The decisions with which the job continues under a manifest whose patience may have changed.
v1::EvaluationDecisions DecideAgain(const v1::JobSpec& job, v1::EvaluationDecisions decisions);

// The new decisions in `after`, one sentence each, for the user; empty if nothing has changed.
std::vector<std::string> NewDecisions(const v1::JobSpec& job, const v1::EvaluationDecisions& before,
                                      const v1::EvaluationDecisions& after);

// Why the evaluations of these workers cannot decide what the job wants: they have no held-out
// samples. Empty: they have.
std::string MissingSamples(const v1::JobSpec& job, const v1::Ready& ready);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_EVALUATION_DECISIONS_H_
