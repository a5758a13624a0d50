// Writes the status and the events of a TrainingJob. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_REPORT_H_
#define SLUICE_OPERATOR_RECONCILER_REPORT_H_

#include <vector>

#include "operator/kube/object.h"
#include "operator/reconciler/facts.h"
#include "operator/runtime/events.h"

namespace sluice::reconciler {

// Updates `status`, and appends events for the changes that users should see.
void Report(const Facts& facts, kube::Json* status, std::vector<runtime::EventRecord>* events);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REPORT_H_
