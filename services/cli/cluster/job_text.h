// A TrainingJob and its pods, as an API server holds them, in the terms of the views. Pure;
// whatever is in the objects, these never fail.
#ifndef SLUICE_SERVICES_CLI_CLUSTER_JOB_TEXT_H_
#define SLUICE_SERVICES_CLI_CLUSTER_JOB_TEXT_H_

#include <map>
#include <optional>
#include <string>

#include "operator/kube/object.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/pod_view.h"
#include "proto/jobcontrol.pb.h"
#include "services/cli/progress_text.h"

namespace sluice::cli {

// How far the job is; the operator writes it every 15 seconds and at each change of state.
v1::JobProgress ProgressOf(const kube::Json& job);
// Whether the status says how far it is.
bool HasProgress(const kube::Json& job);
// What its state is beyond ProgressOf's phase; mostly empty. See JobView.
std::string StateWordsOf(const kube::Json& job);
// How it ended: succeeded, failed, or suspended with nothing running; nothing while it goes on.
std::optional<policy::Ending> EndingOf(const kube::Json& job);
uint32_t RestartsOf(const kube::Json& job);
// From its first acceptance to its end (or `now`).
absl::Duration ElapsedOf(const kube::Json& job, absl::Time now);

// The pod in words. `training`: the job is.
ProcessState StateOf(const reconciler::PodView& pod, bool training);
// By slot; of two pods of one slot the newer.
std::map<policy::Slot, ProcessState> StatesOf(
    const std::map<std::string, reconciler::PodView>& pods, const kube::Json& job);

// "training: step 300 of 2,000 (15 %), ...", or how it ended: one line of a list of jobs.
std::string StateLine(const kube::Json& job);

// `job` for the live view.
JobView ViewOf(const kube::Json& job, const std::map<std::string, reconciler::PodView>& pods);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_CLUSTER_JOB_TEXT_H_
