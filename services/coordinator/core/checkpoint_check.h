#ifndef SLUICE_SERVICES_COORDINATOR_CORE_CHECKPOINT_CHECK_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_CHECKPOINT_CHECK_H_

#include <optional>
#include <string>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/actions.h"

namespace sluice::coordinator {

std::string CheckpointName(const v1::CheckpointRef& checkpoint);

// Why the newest checkpoint does not fit the model. Empty: it fits, or one of the two is not known
// yet.
std::string CheckCheckpoint(const StorageContents& storage, const std::optional<v1::Ready>& model);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_CHECKPOINT_CHECK_H_
