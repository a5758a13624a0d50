// The gradients of one step on their way from a partition's owner to its copies.
#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_COPY_STEP_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_COPY_STEP_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/state/block_update.h"
#include "services/ps/core/state/gradient_sum.h"

namespace sluice::ps {

// How a step closes.
struct StepClose {
  UpdateArguments arguments;
  bool unchanged = false;  // the step is skipped: the next version equals the current one
};

// One part of a step, as a frame's body and payload.
using CopyStepPart = std::pair<v1::CopyStep, absl::Cord>;

// The parts of a step of a partition, over the sums' own memory. `sums`: of each block of the
// partition, settled (GradientSum::Settle); they must not change before the parts are gone. A part
// has at most `max_bytes` of payload, unless a single block is larger.
std::vector<CopyStepPart> EncodeStep(const ShardModel& model, uint32_t partition, uint64_t step,
                                     const StepClose& close, const std::vector<GradientSum>& sums,
                                     uint64_t max_bytes);

// Adds the blocks of one part to the sums of the partition's blocks. INVALID_ARGUMENT, with nothing
// changed, names the misfit: a block of another partition, a counter, a block that has a sum
// already, a size or an encoding that does not fit.
absl::Status AddPart(const ShardModel& model, const v1::CopyStep& part, const absl::Cord& payload,
                     std::vector<GradientSum>* sums);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_COPY_STEP_H_
