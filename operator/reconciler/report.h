// The status and the events of a TrainingJob, as a function of the input. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_REPORT_H_
#define SLUICE_OPERATOR_RECONCILER_REPORT_H_

#include <vector>

#include "operator/kube/object.h"
#include "operator/reconciler/report_input.h"
#include "operator/runtime/events.h"

namespace sluice::reconciler {

// Updates `status`, and appends events for the changes that users should see.
void Report(const ReportInput& input, kube::Json* status,
            std::vector<runtime::EventRecord>* events);

// Reasons of exits and of the condition Degraded, as policy::ReasonOf returns them.
inline constexpr char kDataMissing[] = "DataMissing";
inline constexpr char kRefused[] = "Refused";

// The part of Report that updates the conditions and the summary. A condition is a judgement on the
// input and on the rest of the status; conditions.cc ends with a table of them. Some conditions
// also have an event, which is added when the condition's status or reason changes.
void JudgeConditions(const ReportInput& input, kube::Json* status,
                     std::vector<runtime::EventRecord>* events);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REPORT_H_
