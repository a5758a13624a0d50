// A coordinator's last message to its parent, in no more bytes than a kubelet reads of a
// termination message.
#ifndef SLUICE_SERVICES_COORDINATOR_TERMINATION_MESSAGE_H_
#define SLUICE_SERVICES_COORDINATOR_TERMINATION_MESSAGE_H_

#include <cstddef>
#include <string>

#include "proto/jobcontrol.pb.h"

namespace sluice::coordinator {

// The kubelet truncates a longer message, and truncated JSON cannot be parsed.
inline constexpr size_t kMaxTerminationBytes = 4096;

// JobProgress as JSON, of at most kMaxTerminationBytes: without events, processes and losses, and
// only with the id of the view. Long texts are truncated.
std::string TerminationMessage(v1::JobProgress progress);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_TERMINATION_MESSAGE_H_
