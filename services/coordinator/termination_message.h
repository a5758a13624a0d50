// What the parent of a coordinator must know of its end, in as few bytes as a kubelet reads of a
// termination message.
#ifndef SLUICE_SERVICES_COORDINATOR_TERMINATION_MESSAGE_H_
#define SLUICE_SERVICES_COORDINATOR_TERMINATION_MESSAGE_H_

#include <cstddef>
#include <string>

#include "proto/jobcontrol.pb.h"

namespace sluice::coordinator {

inline constexpr size_t kMaxTerminationBytes = 4096;

// JobProgress as JSON, of at most kMaxTerminationBytes: without events, processes and losses, and
// of the view its id alone. Texts that are too long are cut.
std::string TerminationMessage(v1::JobProgress progress);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_TERMINATION_MESSAGE_H_
