// The gradients of a step or an update on their way from a partition's owner to its copies.
#ifndef SLUICE_SERVICES_PS_CORE_REPLICATION_GRADIENTS_H_
#define SLUICE_SERVICES_PS_CORE_REPLICATION_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "proto/control.pb.h"
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

// One part of a partition's gradients, as a frame's body and payload.
using GradientsPart = std::pair<v1::CopyEntry::Gradients, absl::Cord>;

// The gradients of a partition in parts, over the sums' own memory. `number`: the step, or the
// update's clock. `sums`: of each block of the partition, settled (GradientSum::Settle); they must
// not change before the parts are gone. A part has at most `max_bytes` of payload, unless a single
// block is larger.
std::vector<GradientsPart> EncodeGradients(const ShardModel& model, uint32_t partition,
                                           uint64_t number, const StepClose& close,
                                           const std::vector<GradientSum>& sums,
                                           uint64_t max_bytes);

// The gradients of a partition at a shard with its copy, while their parts arrive and until they
// are applied: a step, or an asynchronous update.
struct CopiedUpdate {
  uint64_t number = 0;        // the step; asynchronous: the clock
  std::vector<bool> arrived;  // parts
  size_t missing = 0;
  uint64_t bytes = 0;  // as received
  StepClose close;
  std::vector<GradientSum> sums;  // of each block of the partition
  v1::ClockRecord record;         // asynchronous: of the owner, which has applied the update

  // Whether it is a synchronous step. Of an asynchronous update, known once it has its record.
  bool is_step() const { return record.worker() == 0; }
  // Adds a part to those that have arrived. INVALID_ARGUMENT, with nothing changed, names the
  // misfit: a part that has arrived or is of other gradients, a block of another partition, a
  // counter, a block that has a sum already, a size or an encoding that does not fit.
  absl::Status Add(const ShardModel& model, const v1::CopyEntry::Gradients& part,
                   const absl::Cord& payload);
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_REPLICATION_GRADIENTS_H_
