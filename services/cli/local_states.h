#ifndef SLUICE_SERVICES_CLI_LOCAL_STATES_H_
#define SLUICE_SERVICES_CLI_LOCAL_STATES_H_

#include <map>

#include "operator/local/local_job.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"
#include "services/cli/progress_text.h"

namespace sluice::cli {

// The processes of a job on this machine in words: from what is known of the children, and what the
// coordinator last said (null: nothing yet).
std::map<policy::Slot, ProcessState> LocalProcessStates(
    const std::map<policy::Slot, local::ProcessView>& processes, const v1::JobProgress* progress);

// The same for who does not have the children: from the coordinator's word alone. A slot is in the
// state of the life that it has; only if it has none, in that of the last that went.
std::map<policy::Slot, ProcessState> ReportedProcessStates(const v1::JobProgress& progress);

}  // namespace sluice::cli

#endif  // SLUICE_SERVICES_CLI_LOCAL_STATES_H_
