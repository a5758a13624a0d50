#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_RETENTION_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_RETENTION_H_

#include <cstdint>
#include <vector>

#include "proto/common.pb.h"

namespace sluice::coordinator {

// The checkpoints that may be deleted now that `current` has an index: all of its own and older
// attempts except the newest `keep` (0: all are kept). `current` is always kept. Call it only after
// the running attempt has written an index of its own: from then on no coordinator restores from
// its parent (R11).
std::vector<v1::CheckpointRef> Superseded(std::vector<v1::CheckpointRef> checkpoints,
                                          const v1::CheckpointRef& current, uint64_t keep);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_RETENTION_H_
