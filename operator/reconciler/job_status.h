// The status of a TrainingJob: what users read, and everything that the operator must remember.
//
// The operator has no other persistent state: each decision starts from the status, and is carried
// out only after it has been written to the status (docs/decisions/operator-memory.md). State that
// is not meant for users is in `status.recovery`:
//
//   activeSince        when this activation (start or resumption) began
//   shards             number of shards of the activation; the spec may already have another one
//   mode, maxStaleness how the activation applies updates; the spec may already have another mode
//   images             images of the activation's pods; the spec or the operator's defaults may
//                      already name others
//   worked             roles of which a process was ever ready, in any activation
//   trainedSteps       the step that the job had reached when it was resumed, until the resumed job
//                      reports its own step
//   sizedWorkers       the last number of workers that were all ready (0: not yet)
//   progressInstance   the last instance of the coordinator that reported: with it, an operator
//                      that has just started does not report a running job as idle
//   suspendingSince    when the operator began to wait for the checkpoint of a suspension
//   restorations       counted against backoffLimit
//   workerFailures, workerFailuresSince   counted against the limit within a window. Only the
//                      count and the time of the oldest are kept, so after a restart of the
//                      operator failures may be forgotten too early, but never too late
//   outcome            kind, code, reason, since, leaveSeconds: the end that is in progress, or
//                      was reached
//   processes          by replica, until the outcome and only where needed: the pods whose exit
//                      was handled and that were replaced; failures in a row, and whether the
//                      reason was missing data or a refusal by the coordinator; when to start
//                      again; the pod that is missing at the coordinator, and since when
#ifndef SLUICE_OPERATOR_RECONCILER_JOB_STATUS_H_
#define SLUICE_OPERATOR_RECONCILER_JOB_STATUS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/observed_job.h"

namespace sluice::reconciler {

// status.recovery, as values.
struct Recovery {
  policy::Memory memory;
  uint32_t shards = 0;  // 0: not active yet
  UpdateMode mode;      // unspecified: not active yet, or an older operator wrote the status
  PodImages images;     // empty in the same cases
  uint32_t sized_workers = 0;
  int64_t trained_steps = 0;
  std::string progress_instance;
};

// Reads what WriteRecovery has written. Fields that are missing or malformed have their initial
// values, so that statuses of other releases can be read.
Recovery ReadRecovery(const kube::Json& status);

// The value of status.recovery. Empty fields are left out.
kube::Json WriteRecovery(const Recovery& recovery);

// Parses "worker-3" into a replica; false if it is not a replica name.
bool ParseReplicaName(absl::string_view name, policy::Replica* replica);

// A condition without its type and times.
struct ConditionValue {
  bool holds = false;
  std::string reason;
  std::string message;
  int64_t generation = 0;  // that was observed
};
// Sets the condition of this type. lastTransitionTime changes only if the status changes. Returns
// whether the status or the reason has changed.
bool SetCondition(absl::string_view type, const ConditionValue& value, absl::Time now,
                  kube::Json* status);
// Whether the condition exists and is True.
bool HasCondition(const kube::Json& status, absl::string_view type);
// Null if it does not exist.
const kube::Json* FindCondition(const kube::Json& status, absl::string_view type);

// The most important difference of two statuses. It keeps the operator from writing every step of
// training, and every one of hundreds of pods that become ready.
enum class StatusChange {
  kProgress,    // training progress, or no difference
  kCounts,      // numbers of pods and of ready pods, their images, the view; messages
  kTransition,  // anything else
};
StatusChange CompareStatus(const kube::Json& before, const kube::Json& after);

}  // namespace sluice::reconciler

#endif  // SLUICE_OPERATOR_RECONCILER_JOB_STATUS_H_
