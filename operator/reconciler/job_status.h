// The status of a TrainingJob: what people read, and all that the operator must not forget.
//
// The operator keeps nothing to itself: each decision begins with what the status says, and is
// carried out only after what it decided is written there. So an operator that is killed at any
// moment is followed by one that knows as much. What is for no reader's eyes lies in
// `status.recovery`:
//
//   activeSince        when this activation (start or resumption) began
//   shards             how many the activation has; the spec may already want another number
//   mode, maxStaleness how the activation applies updates; the spec may already want another way
//   images             of the activation's pods: the spec, or the operator's defaults, may already
//                      name others
//   worked             the roles of which a process was ready once, in any activation
//   sizedWorkers       the last number of workers that were all ready (0: not yet)
//   heardLife          the last life of the coordinator that was heard: an operator that has just
//                      begun need not take a job for idle because it has not heard of it yet
//   suspendingSince    since when the checkpoint of a suspension is waited for
//   restorations       counted against backoffLimit
//   workerFailures, workerFailuresSince   counted against the limit within a window. The count is
//                      kept with the time of the oldest, so that it may be forgotten too early
//                      after the operator was restarted, never too late
//   ending             outcome, code, reason, since, leaveSeconds: the end that is under way, or
//                      was reached
//   processes          by slot, where there is something to remember: the pods whose end was
//                      handled and that were replaced, failures in a row, whether they were for
//                      want of data or refused by the coordinator, when to start again; which pod
//                      the coordinator does not have a living process of, and since when
#ifndef SLUICE_OPERATOR_RECONCILER_JOB_STATUS_H_
#define SLUICE_OPERATOR_RECONCILER_JOB_STATUS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/job_view.h"

namespace sluice::reconciler {

// status.recovery, as values.
struct Recovery {
  policy::Memory memory;
  uint32_t shards = 0;  // 0: not active yet
  TrainingMode mode;    // unspecified: not active yet, or an older operator wrote the status
  PodImages images;     // likewise
  uint32_t sized_workers = 0;
  std::string heard_life;
};

Recovery ReadRecovery(const kube::Json& status);
kube::Json WriteRecovery(const Recovery& recovery);

// "worker-3" as a slot; false if it is none.
bool ParseSlotName(absl::string_view name, policy::Slot* slot);

// Sets the condition of that type. Its lastTransitionTime stays unless its status changes. Returns
// whether its status or reason has changed.
bool SetCondition(absl::string_view type, bool holds, const std::string& reason,
                  const std::string& message, int64_t generation, absl::Time now,
                  kube::Json* status);
bool HasCondition(const kube::Json& status, absl::string_view type);  // and it is True
// Null: there is none.
const kube::Json* FindCondition(const kube::Json& status, absl::string_view type);

// In what two statuses differ, the weightiest. The API server is not asked to write each step of
// training, nor each pod of hundreds that becomes ready.
enum class StatusChange {
  kProgress,    // how far training has come, or nothing
  kCounts,      // how many pods there are and are ready, of which images, the view; messages
  kTransition,  // anything else
};
StatusChange CompareStatus(const kube::Json& before, const kube::Json& after);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_JOB_STATUS_H_
