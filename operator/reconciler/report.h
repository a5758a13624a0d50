// What people are told about a TrainingJob: its status and its events. Pure.
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

// The end of a pod that was handled just now.
struct HandledEnd {
  const PodView* pod;
  policy::Exit exit;
  bool counted = false;
};

struct Findings {
  const World* world = nullptr;
  const Recovery* recovery = nullptr;  // as it is from now on
  // Of the coordinator's present life; STARTING if it said nothing.
  v1::JobProgress::Phase phase = v1::JobProgress::STARTING;
  const v1::JobProgress* progress = nullptr;  // the newest, of whatever life; null: none
  bool progress_is_new = false;               // of the present life
  bool unheard = false;    // this operator has not heard the coordinator; one before it had
  uint32_t workers = 0;    // wanted
  bool resizing = false;   // stopping so as to go on with another number of shards
  bool switching = false;  // stopping so as to go on in another mode
  bool stopped = false;    // the end is reached: nothing runs any more
  std::vector<HandledEnd> ends;
  std::map<v1::Role, int> restarts;  // pods replaced just now
  absl::Time now;
};

// Brings `status` up to date, and appends what is worth an event.
void Report(const Findings& findings, kube::Json* status,
            std::vector<runtime::EventRecord>* events);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_REPORT_H_
