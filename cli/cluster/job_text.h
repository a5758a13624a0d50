// Translates a TrainingJob and its pods, as the API server stores them, for the displays. Pure;
// these functions never fail, whatever the objects contain.
#ifndef SLUICE_CLI_CLUSTER_JOB_TEXT_H_
#define SLUICE_CLI_CLUSTER_JOB_TEXT_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/progress_text.h"
#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/pod_status.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::cli {

using PodStatuses = std::map<std::string, reconciler::PodStatus>;  // by the pod's name

// Those of the pods that belong to the job with this uid.
PodStatuses ReadPods(const std::vector<kube::Json>& pods, const std::string& uid);

// The job's progress; the operator writes it every 15 seconds and at each change of state.
v1::JobProgress ProgressOf(const kube::Json& job);
// Whether the status has progress.
bool HasProgress(const kube::Json& job);
// The state in words, if it is more precise than ProgressOf's phase; usually empty. See JobSummary.
std::string StateWordsOf(const kube::Json& job);
// How it ended: succeeded, failed, or suspended with nothing running; nullopt while it is in
// progress.
std::optional<policy::Outcome> OutcomeOf(const kube::Json& job);

// How many of the job's processes were restarted in all.
uint32_t RestartsOf(const kube::Json& job);
// From its first acceptance to its end (or `now`).
absl::Duration ElapsedOf(const kube::Json& job, absl::Time now);

// The pod's state in words. `training`: whether the job is training.
ProcessState StateOf(const reconciler::PodStatus& pod, bool training);
// By replica; if a replica has two pods, the newer one.
std::map<policy::Replica, ProcessState> StatesOf(const PodStatuses& pods, const kube::Json& job);

// "training: step 300 of 2,000 (15 %), ...", or how it ended: one line of a list of jobs.
std::string StateLine(const kube::Json& job);

// `job` for the live view.
JobSummary ViewOf(const kube::Json& job, const PodStatuses& pods);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_JOB_TEXT_H_
