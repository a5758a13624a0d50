// The conditions of a TrainingJob and its summary. A condition is a pure judgement on the facts and
// on the status so far; the table of conditions is at the end of conditions.cc.
#ifndef SLUICE_OPERATOR_RECONCILER_CONDITIONS_H_
#define SLUICE_OPERATOR_RECONCILER_CONDITIONS_H_

#include <vector>

#include "operator/kube/object.h"
#include "operator/reconciler/facts.h"
#include "operator/runtime/events.h"

namespace sluice::reconciler {

// Reasons of exits and of the condition Degraded, as policy::ReasonOf returns them.
inline constexpr char kDataMissing[] = "DataMissing";
inline constexpr char kRefused[] = "Refused";

// Updates status.conditions and status.summary, and appends an event for each condition that users
// should know of when its status or its reason changes. status.lastFailures and status.training are
// up to date.
void JudgeConditions(const Facts& facts, kube::Json* status,
                     std::vector<runtime::EventRecord>* events);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_CONDITIONS_H_
