#ifndef SLUICE_SERVICES_PS_CORE_STATE_PARTITION_H_
#define SLUICE_SERVICES_PS_CORE_STATE_PARTITION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/step_hashes.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/base/parallel.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/block_update.h"
#include "services/ps/core/state/gradient_sum.h"

namespace sluice::ps {

// One version of a partition. Immutable; shares its blocks.
struct PartitionContent {
  std::shared_ptr<const ShardModel> model;
  uint32_t partition = 0;
  uint64_t version = 0;  // synchronous: steps closed; asynchronous: updates applied
  std::vector<BlockState> blocks;
  // Asynchronous: the shard's records, which are saved with every partition.
  std::vector<v1::ClockRecord> clocks;
  // The hashes of this version and earlier ones, if the job records them (hashes.h).
  std::vector<StepHash> step_hashes;
};

// A block's gradient as received in a frame. `block` is an index into the layout.
struct ReceivedBlock {
  uint32_t block = 0;
  v1::Codec codec = v1::CODEC_RAW;
  absl::Cord payload;
};

// A partition that this shard owns, or has a copy of: its current version, the previous one while
// it may be needed, and the contributions to the next one.
//
//   contributions ──Add──> sums ──Close──> version v + 1 ; v becomes the undo
//                                          undo ──DropUndo──> gone   (v + 1 is committed)
//                                          v + 1 ──RollBack──> v     (a view change took it back)
//
// Has no notion of views; members are numbers. Not thread-safe.
class Partition {
 public:
  Partition(std::shared_ptr<const ShardModel> model, uint32_t id, uint64_t version,
            std::vector<BlockState> blocks);

  // The partition's number in the layout.
  uint32_t id() const { return id_; }
  // Synchronous: steps closed. Asynchronous: updates applied.
  uint64_t version() const { return version_; }
  bool has_undo() const { return undo_.has_value(); }
  const std::vector<BlockState>& blocks() const { return blocks_; }
  // Null if the partition does not have that version.
  const std::vector<BlockState>* At(uint64_t version) const;
  // Null if the partition does not have that version.
  std::shared_ptr<PartitionContent> Pin(uint64_t version) const;

  // ---- contributions

  // Drops all contributions; the next version requires the contributions of all `members` members
  // (0: it never completes). `selective`: contributions are kept per member, and some members are
  // chosen before the close (Select).
  void Reset(size_t members, bool selective = false);
  // Number of members whose contributions the next version requires.
  size_t members() const { return members_.size(); }

  // Describes the origin of a block: the member and the microbatches that its gradient covers.
  struct Source {
    size_t member = 0;
    Interval microbatches;
    bool tree_node = false;      // BitExact
    bool allow_repeats = false;  // true only in the simulator
  };
  // Whether the block must be added; false if (member, microbatches, block) is a repetition (R9).
  // INVALID_ARGUMENT for a block that is not allowed: a COUNTER, a block after the member's
  // completion, microbatches that overlap others of the member.
  absl::StatusOr<bool> IsNew(const Source& source, const ReceivedBlock& block) const;
  // Adds a block that is new. INVALID_ARGUMENT, with nothing changed, if its payload does not fit.
  absl::Status Add(const Source& source, const ReceivedBlock& block, BlockPool& pool);

  // A member's whole contribution to a step.
  struct Contribution {
    uint64_t samples = 0;
    uint64_t microbatches = 0;
    double weight = 0;  // in the mean over the step; normally the samples
  };
  // The member has contributed all of its microbatches; repetitions have no effect.
  // INVALID_ARGUMENT if a repetition differs from the first.
  absl::Status Complete(size_t member, const Contribution& contribution, bool by_set);
  // Whether all members are complete. `by_set`: counts members, as the protocol demands; otherwise
  // counts completions (only in the simulator).
  bool IsComplete(bool by_set) const;
  bool HasCompleted(size_t member) const { return members_[member].complete; }
  // Whether all of `members` (numbers) have contributed everything.
  bool IsComplete(const std::vector<size_t>& members) const;
  // Selective: sums the contributions of `members`, in their order. The other members'
  // contributions to this version, also later ones, are dropped.
  absl::Status Select(const std::vector<size_t>& members, BlockPool& pool, ParallelRunner& runner);
  uint64_t SamplesOf(size_t member) const { return members_[member].contribution.samples; }
  // The sums over the members.
  Contribution total() const;
  // Drops the gradients, not the buffers' changes: no sample has a weight.
  void DropGradients();

  // ---- the next version

  // Merges the contributions of each block to one sum, for which later contributions are too late.
  absl::Status Settle(BlockPool& pool, ParallelRunner& runner);
  // One for each block of the partition.
  const std::vector<GradientSum>& sums() const { return sums_; }

  // The norms of the contributions; blocks in order, so that the sum has the same bits everywhere.
  // `offender` is the first block that is not finite.
  absl::Status Measure(double gradient_scale, BlockPool& pool, ParallelRunner& runner,
                       GradientNorm* norm, std::optional<uint32_t>* offender);

  // Writes the next version from the contributions and drops them. OUT_OF_RANGE if a gradient is
  // not finite (see UpdateBlock), naming tensor and elements; the version is then unchanged, and
  // the contributions are lost.
  absl::Status Close(const UpdateArguments& arguments, BlockPool& pool, ParallelRunner& runner);

  // The same from sums that the caller holds, one for each block of the partition, which it
  // consumes.
  absl::Status CloseWith(const UpdateArguments& arguments, std::vector<GradientSum>* sums,
                         BlockPool& pool, ParallelRunner& runner);

  // Keeps memory for the first update, which would otherwise take it from the system while a step
  // waits: blocks of the pool, of the sizes of this partition's.
  void Reserve(std::vector<BlockRef> memory) { reserved_ = std::move(memory); }

  // Makes the next version equal to this one: parameters, state and counters are unchanged.
  void CloseUnchanged();

  // Asynchronous: the same for an update whose sums the caller holds, without undo. `sums` has one
  // element for each block of the partition. `base`: this partition's blocks as the update's sender
  // had them; null if not known.
  absl::Status Apply(const UpdateArguments& arguments, const std::vector<BlockRef>* base,
                     std::vector<GradientSum>* sums, BlockPool& pool, ParallelRunner& runner);
  absl::Status MeasureSums(double gradient_scale, std::vector<GradientSum>* sums, BlockPool& pool,
                           ParallelRunner& runner, GradientNorm* norm,
                           std::optional<uint32_t>* offender) const;
  // Asynchronous: the version counts the updates of all partitions, also of those without a
  // gradient.
  void SetVersion(uint64_t version) { version_ = version; }

  // Call when no view change can take the version back. The old blocks become the target of updates
  // by rows, or are dropped.
  void DropUndo();
  // Returns to the previous version. Requires an undo.
  void RollBack();

 private:
  // A block that arrived: repetitions are recognized by it (R9).
  struct Received {
    size_t member;
    Interval microbatches;
  };
  struct Member {
    bool complete = false;
    bool dropped = false;  // not chosen by Select
    Contribution contribution;
  };

  // The state for updates of a block by its rows (block_update.h).
  struct RowVersions {
    bool settled = false;  // the optimizer has written every element of the current version
    std::optional<EarlierBlock> earlier;
    // The rows in which the current version and the undo differ. Unset: not known, or they are
    // equal.
    std::optional<std::vector<RowPart>> changed;
  };
  // One block's way to the next version.
  struct Writing {
    bool touched = false;
    bool by_rows = false;
    Sum sum;                                   // by_rows: the sum still to be added
    WritableBlock target;                      // by_rows: the block to write to
    std::optional<std::vector<RowPart>> rows;  // that differ afterwards; unset: perhaps all
    BlockState next;
    absl::Status status;
  };
  // Whether the current version is kept as the undo, or may be overwritten.
  enum class Keep { kUndo, kNothing };
  // The partition's way to the next version. Refers to what the caller keeps.
  struct Update {
    Keep keep;
    const UpdateArguments& arguments;
    const std::vector<BlockRef>* base;  // null: not known
    std::vector<GradientSum>* sums;
    BlockPool& pool;
    ParallelRunner& runner;
    std::vector<Writing> writings;  // one for each block
  };

  const BlockInfo& Info(size_t place) const { return model_->block(first_block_ + place); }
  // Writes the new blocks that do not overwrite the current version, and checks the others. Finish
  // then completes the next version and cannot fail.
  absl::Status Write(Update* update) const;
  // Prepares block `place`: takes its sum, chooses between rows and whole block, and writes or
  // checks.
  void Begin(size_t place, Update* update) const;
  // Writes the blocks that are updated by rows, and returns the next version.
  std::vector<BlockState> Finish(Update* update);
  // Makes `next` the current version and the current version the undo; drops the contributions.
  void Advance(std::vector<BlockState> next);

  const std::shared_ptr<const ShardModel> model_;
  const uint32_t id_;
  const uint32_t first_block_;
  uint64_t version_;
  std::vector<BlockState> blocks_;
  std::optional<std::vector<BlockState>> undo_;
  std::vector<RowVersions> row_versions_;
  std::vector<BlockRef> reserved_;  // until the first update

  std::vector<GradientSum> sums_;
  bool selective_ = false;
  std::vector<std::vector<GradientSum>> sums_of_;           // selective: by member
  std::vector<absl::InlinedVector<Received, 2>> received_;  // of each block
  std::vector<Member> members_;
  size_t completions_ = 0;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_PARTITION_H_
