// Writes the status and the events of a TrainingJob. Pure.
#ifndef SLUICE_OPERATOR_RECONCILER_REPORT_H_
#define SLUICE_OPERATOR_RECONCILER_REPORT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/reconciler/decide.h"
#include "operator/reconciler/job_status.h"
#include "operator/runtime/events.h"

namespace sluice::reconciler {

// The exit of a pod that this reconciliation has handled.
struct HandledEnd {
  const PodStatus* pod;
  policy::Exit exit;
  bool counted = false;
};

struct Findings {
  const World* world = nullptr;
  const Recovery* recovery = nullptr;  // to be written
  // Of the coordinator's current instance; STARTING if it has reported nothing.
  v1::JobProgress::Phase phase = v1::JobProgress::STARTING;
  const v1::JobProgress* progress = nullptr;  // the newest, of any instance; null: none
  bool progress_is_new = false;               // `progress` is of the current instance
  bool unsynced = false;   // this operator has no report of the coordinator; a previous one had
  uint32_t workers = 0;    // desired
  bool resizing = false;   // stopping, to continue with another number of shards
  bool switching = false;  // stopping, to continue in another mode
  bool stopped = false;    // the job has ended and no pod runs
  std::vector<HandledEnd> ends;
  std::map<v1::Role, int> restarts;  // pods replaced by this reconciliation
  absl::Time now;
};

// Updates `status`, and appends events for the changes that users should see.
void Report(const Findings& findings, kube::Json* status,
            std::vector<runtime::EventRecord>* events);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REPORT_H_
