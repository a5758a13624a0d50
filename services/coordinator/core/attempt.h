#ifndef SLUICE_SERVICES_COORDINATOR_CORE_ATTEMPT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_ATTEMPT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/view_decision.h"
#include "services/protocol/job_length.h"
#include "services/protocol/layout.h"

namespace sluice::coordinator {

// The current attempt: its identity, what does not change from its first state to its end, and
// which shards have its partitions now.
struct Attempt {
  uint64_t number = 0;       // 0: this coordinator has claimed none
  v1::Term term;             // of this coordinator; fixed by its first claim
  uint64_t last_number = 0;  // of pauses and init requests, over the whole term

  // The model and the data, as the first worker reported them. Both are set once.
  std::optional<v1::Ready> model;
  std::optional<JobLength> length;

  // ---- of this attempt alone: empty from Forget until its shards are chosen

  v1::Mode mode = v1::SYNCHRONOUS;
  uint64_t last_position = 0;  // Goal::kSwitch: the position at which training ends; 0: none
  std::optional<v1::CheckpointRef> base;  // with which it began
  v1::Layout layout;
  uint64_t layout_hash = 0;
  AttemptFacts facts;
  std::vector<uint64_t> bytes;          // of each partition
  std::vector<v1::View::Shard> shards;  // in the order of facts.shards
  uint64_t loss_record = 0;             // (R4) the number of the newest one; 0: none

  uint64_t NextNumber() { return ++last_number; }

  // The next attempt begins in the job's mode.
  void Forget(v1::Mode job_mode) {
    mode = job_mode;
    last_position = 0;
    base.reset();
    facts = {};
    bytes.clear();
    shards.clear();
    loss_record = 0;
  }

  // Sets which partitions have blocks, and their bytes.
  void SetPartitions(const LayoutIndex& index);
  // The view's shards and owners are the attempt's from here on.
  void OnView(const v1::View& view);
  // Whether a partition with blocks has another owner in the view than now.
  bool OwnersChange(const v1::View& view) const;

  // Whether the shard (an incarnation) is in the newest view, or among the attempt's first shards.
  bool HasShard(uint64_t shard) const;
  // The shard's partitions that have blocks, ascending. A shard without any closes nothing, and
  // pins any version at once.
  std::vector<uint32_t> PartitionsWithBlocks(uint64_t shard) const;
  bool HasBlocks(uint64_t shard) const;
  // The shard that owns partition 0.
  uint64_t arbiter() const {
    SLUICE_DCHECK(!facts.owner.empty() && facts.owner[0] < facts.shards.size(),
                  "partition 0 has an owner");
    return facts.shards[facts.owner[0]];
  }

  // A checkpoint may be past the end of a job that was made shorter. Require `length`.
  uint64_t LastStep() const;
  uint64_t LastSample() const;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_ATTEMPT_H_
