#ifndef SLUICE_SERVICES_PS_CORE_STATE_BLOCK_UPDATE_H_
#define SLUICE_SERVICES_PS_CORE_STATE_BLOCK_UPDATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "services/protocol/codec/rows.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/base/staleness.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/gradient_sum.h"
#include "services/ps/optimizer/optimizer.h"

namespace sluice::ps {

// One block of a version: immutable, shared by everything that refers to the version.
struct BlockState {
  BlockRef parameters;
  // Optimizer state, in the order of Optimizer::slots(); null while count is 0 (initial values).
  std::array<BlockRef, kMaxSlots> slots;
  uint64_t count = 0;  // updates received
};

// The arguments of one step (asynchronous: one update) that all blocks share.
struct UpdateArguments {
  uint64_t schedule_step = 0;       // what learning-rate schedules count
  double gradient_scale = 1;        // 1 / samples, times the factor of norm clipping
  double buffer_scale = 1;          // 1 / microbatches
  bool check_finite = false;        // refuse NaN and infinity
  StalenessEffect staleness;        // asynchronous
  double learning_rate_factor = 1;  // of OptimizerSpec.plateau
};

// The facts about one block's gradient that norm clipping and the non-finite policy need.
struct GradientNorm {
  double square_sum = 0;  // of the scaled gradient; 0 unless a PARAMETER
  bool non_finite = false;
};

// One block on its way to the next version. Refers to what its maker keeps.
struct BlockUpdate {
  const ShardModel& model;
  const BlockInfo& info;
  const UpdateArguments& arguments;
  const BlockState& now;
};

// Writes the block's next version from `now`, which stays intact, and the sum of its gradients
// (null: no gradient; then only a COUNTER changes and everything else is shared with `now`).
// Consumes the sum.
//
// `base`: the parameters that the gradient was computed on, for delay compensation; null if they
// are unknown, or the current ones.
//
// OUT_OF_RANGE if check_finite is set and the gradient has a NaN or an infinity; nothing changes.
// Thread-safe for different blocks.
absl::Status UpdateBlock(const BlockUpdate& update, const BlockRef& base, Sum* sum, BlockPool& pool,
                         BlockState* next);

// ---- by rows
//
// Intuition. A table has a million rows, a step touches thousands. A version must not be
// overwritten while anything refers to it, and copying a table for a few of its rows costs more
// than the rest of the step. But two steps later the version before last is idle, and differs from
// the current one only in the rows of the last step. So these rows are copied to it, and then it is
// updated where this step has a gradient. Two versions take turns, and the bytes written are
// proportional to the rows touched.

// An idle version of a block, and the rows in which the current version differs from it.
struct EarlierBlock {
  BlockState state;
  std::vector<RowPart> behind;  // ascending, apart
};

// A version of a block that may be overwritten, because nothing else refers to it.
struct WritableBlock {
  MutableBlockRef parameters;
  std::array<MutableBlockRef, kMaxSlots> slots;
};
// Null if anything else refers to it, or if it lacks one of the optimizer's `slots`.
std::optional<WritableBlock> WritableIfOwned(const BlockState& state, size_t slots);

// Whether UpdateRows may replace UpdateBlock: this update does not change elements without a
// gradient.
bool MayUpdateRows(const BlockInfo& info, const UpdateArguments& arguments, const Sum& sum);

// OUT_OF_RANGE if check_finite is set and the sum has a NaN or an infinity.
absl::Status CheckRows(const BlockInfo& info, const UpdateArguments& arguments, const RowSum& sum);

// Writes the block's next version over `target`, with the same bits that UpdateBlock writes.
// `target` is a version that differs from `now` in `behind` at most, or `now` itself, which is
// updated in place. Every element of `now` was written by the optimizer, and stays as it is where
// the sum has no row (MayUpdateRows).
BlockState UpdateRows(const BlockUpdate& update, const WritableBlock& target,
                      absl::Span<const RowPart> behind, const RowSum& sum);

// Turns the sum into a block first, so that the result has the same bits however the sum was
// sliced.
absl::Status MeasureGradient(const BlockInfo& info, double gradient_scale, Sum* sum,
                             BlockPool& pool, GradientNorm* norm);

// A block before any training, to be filled with version 0.
BlockState InitialBlock(MutableBlockRef parameters);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_BLOCK_UPDATE_H_
