#ifndef SLUICE_SERVICES_PS_BLOCK_UPDATE_H_
#define SLUICE_SERVICES_PS_BLOCK_UPDATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/protocol/codec/rows.h"
#include "services/ps/block.h"
#include "services/ps/gradient_sum.h"
#include "services/ps/optimizer/optimizer.h"
#include "services/ps/shard_model.h"
#include "services/ps/staleness.h"

namespace sluice::ps {

// One block of a version: immutable, shared by everything that refers to the version.
struct BlockState {
  BlockRef parameters;
  // Optimizer state, in the order of Optimizer::slots(); null while count is 0 (initial values).
  std::array<BlockRef, kMaxSlots> slots;
  uint64_t count = 0;  // updates received
};

// What one step (asynchronous: one update) is to all blocks.
struct UpdateArguments {
  uint64_t schedule_step = 0;  // what learning-rate schedules count
  double gradient_scale = 1;   // 1 / samples, times the factor of norm clipping
  double buffer_scale = 1;     // 1 / microbatches
  bool check_finite = false;   // refuse NaN and infinity
  StalenessEffect staleness;   // asynchronous
};

// What norm clipping and the non-finite policy want to know of one block's gradient.
struct GradientNorm {
  double square_sum = 0;  // of the scaled gradient; 0 for what is no PARAMETER
  bool non_finite = false;
};

// Writes the block's next version beside `now`, from the sum of its gradients (null: none; then
// only a COUNTER changes and everything else is shared with `now`). Uses the sum up.
//
// `base`: the parameters that the gradient was computed on, for delay compensation; null where they
// are not known, or the present ones.
//
// OUT_OF_RANGE if check_finite is set and the gradient has a NaN or an infinity; nothing changes.
// Thread-safe for different blocks.
absl::Status UpdateBlock(const ShardModel& model, const BlockInfo& info,
                         const UpdateArguments& arguments, const BlockState& now,
                         const BlockRef& base, Sum* sum, BlockPool& pool, BlockState* next);

// ---- by rows
//
// Intuition. A table has a million rows, a step touches thousands. A version must not be written
// over while anything refers to it, and copying a table for a few of its rows costs more than all
// else. But two steps later the version before last lies idle, and differs from the present one
// only in the rows of the last step. So these rows are copied to it, and then it is updated where
// this step has a gradient. Two versions take turns; what is written is in proportion to rows.

// A block's version that lies idle, and where the present one differs from it.
struct EarlierBlock {
  BlockState state;
  std::vector<RowPart> behind;  // ascending, apart
};

// A version that nobody else refers to, to be written over.
struct WritableBlock {
  MutableBlockRef parameters;
  std::array<MutableBlockRef, kMaxSlots> slots;
};
// Null if anything else refers to it, or if it has not all `slots` of the optimizer.
std::optional<WritableBlock> WritableIfOwned(const BlockState& state, size_t slots);

// Whether UpdateRows may take the place of UpdateBlock: this update leaves what has no gradient.
bool MayUpdateRows(const BlockInfo& info, const UpdateArguments& arguments, const Sum& sum);

// OUT_OF_RANGE if check_finite is set and the sum has a NaN or an infinity.
absl::Status CheckRows(const BlockInfo& info, const UpdateArguments& arguments, const RowSum& sum);

// The block's next version, of the bits that UpdateBlock writes, over `target`: a version that
// differs from `now` in `behind` at most, or `now` itself, which is updated in place. Every element
// of `now` was written by the optimizer, and may stay where the sum has none (MayUpdateRows).
BlockState UpdateRows(const ShardModel& model, const BlockInfo& info,
                      const UpdateArguments& arguments, const BlockState& now,
                      const WritableBlock& target, absl::Span<const RowPart> behind,
                      const RowSum& sum);

// Turns the sum into a block, so that the result has the same bits whatever slices it came in.
absl::Status MeasureGradient(const BlockInfo& info, double gradient_scale, Sum* sum,
                             BlockPool& pool, GradientNorm* norm);

// A block as it is before any training, to be filled with version 0.
BlockState InitialBlock(MutableBlockRef parameters);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_BLOCK_UPDATE_H_
