#ifndef SLUICE_CLI_LOCAL_LOCAL_STATES_H_
#define SLUICE_CLI_LOCAL_LOCAL_STATES_H_

#include <map>

#include "cli/common/progress_text.h"
#include "cli/local/local_job.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"

namespace sluice::cli {

// Describes the processes of a job on this machine, from the children's states and the
// coordinator's last progress (null: none yet).
std::map<policy::Replica, ProcessState> LocalProcessStates(
    const std::map<policy::Replica, local::ProcessInfo>& processes,
    const v1::JobProgress* progress);

// The same for a caller that is not the processes' parent: from the coordinator's progress alone. A
// replica has the state of its current instance; if it has none, that of the last one that
// departed.
std::map<policy::Replica, ProcessState> ReportedProcessStates(const v1::JobProgress& progress);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_LOCAL_LOCAL_STATES_H_
