// Checkpoints by the values of their evaluations (checkpoint.keepBest).
#ifndef SLUICE_SERVICES_CHECKPOINT_BEST_CHECKPOINTS_H_
#define SLUICE_SERVICES_CHECKPOINT_BEST_CHECKPOINTS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "proto/common.pb.h"

namespace sluice {

// A checkpoint, and the value of checkpoint.keepBest's metric in the evaluation of its version.
using ValuedCheckpoint = std::pair<v1::CheckpointRef, double>;

// The `count` checkpoints with the best values, the best one first; of equal values the earlier
// checkpoint is better. A value that is NaN or infinite is none.
std::vector<v1::CheckpointRef> BestCheckpoints(std::vector<ValuedCheckpoint> checkpoints,
                                               bool maximize, uint64_t count);

}  // namespace sluice

#endif  // SLUICE_SERVICES_CHECKPOINT_BEST_CHECKPOINTS_H_
