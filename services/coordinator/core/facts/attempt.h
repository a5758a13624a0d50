#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_ATTEMPT_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_ATTEMPT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/model.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/decisions/view_decision.h"
#include "services/protocol/layout.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::coordinator {

// Which attempt this coordinator has claimed.
struct AttemptId {
  uint64_t number = 0;  // 0: none
  v1::Term term;        // of this coordinator; fixed by its first claim
};

// The model and the data, as the first worker reported them. Both are set once.
struct JobModel {
  std::optional<v1::Ready> ready;
  std::optional<JobLength> length;
};

// (R4) The loss records of the attempt.
struct LossRecords {
  uint64_t newest = 0;  // number; 0: none
};

// The current attempt: its identity, what does not change from its first state to its end, and
// which shards have its partitions now.
//
// It has the only list of the attempt's shards. Training has their reports, by shard, and a view is
// a message that names them.
class Attempt {
 public:
  // ---- each written by one part

  AttemptId id;                       // Claims
  JobModel model;                     // ModelCheck
  LossRecords losses;                 // Losses
  Goal goal = Goal::kNone;            // Ending
  v1::EvaluationDecisions decisions;  // Evaluations

  // ---- written by Initialization or Takeover; empty until the shards are chosen

  v1::Mode mode = v1::SYNCHRONOUS;
  uint64_t last_position = 0;  // Goal::kSwitch: the position at which training ends; 0: none
  std::optional<v1::CheckpointRef> base;  // with which it began
  v1::Layout layout;
  uint64_t layout_hash = 0;

  // The next number of a pause or an init request; they are counted over the whole term.
  uint64_t NextNumber() { return ++last_number_; }

  // ---- shards and partitions

  // The facts that decisions read.
  const AttemptFacts& facts() const { return facts_; }
  // In the order of facts().shards.
  const std::vector<v1::View::Shard>& shards() const { return shards_; }
  // The bytes of each partition.
  const std::vector<uint64_t>& bytes() const { return bytes_; }

  // The attempt after this one, in the job's mode. It has nothing of this one but the coordinator's
  // term and numbers, and the model.
  Attempt Next(v1::Mode job_mode) const;
  // The attempt's first shards, and the owner of each partition (a position).
  void BeginWith(std::vector<v1::View::Shard> shards, std::vector<uint32_t> owner,
                 const LayoutIndex& index);
  // The shards of an attempt that is taken over: they have its partitions, and know the owners.
  void TakeOverFrom(std::vector<v1::View::Shard> shards) { SetShards(std::move(shards)); }
  // The attempt continues from its newest view.
  void ContinueFrom(const v1::View& view, const LayoutIndex& index);
  // Keeps the shards (incarnations) for which `keep` is true.
  void KeepShards(const std::function<bool(uint64_t shard)>& keep);
  // The view's shards and owners are the attempt's from here on.
  void OnView(const v1::View& view);
  // The state with which the attempt begins.
  void SetBase(uint64_t version, v1::Ledger ledger);
  void SetInitId(const v1::InitId& init_id) { facts_.init_id = init_id; }
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
    SLUICE_DCHECK(!facts_.owner.empty() && facts_.owner[0] < facts_.shards.size(),
                  "partition 0 has an owner");
    return facts_.shards[facts_.owner[0]];
  }

  // A checkpoint may be past the end of a job that was made shorter. Require the job's length.
  uint64_t LastStep() const;
  uint64_t LastSample() const;

 private:
  void SetShards(std::vector<v1::View::Shard> shards);
  // Sets which partitions have blocks, and their bytes.
  void SetPartitions(const LayoutIndex& index);

  uint64_t last_number_ = 0;
  AttemptFacts facts_;
  std::vector<v1::View::Shard> shards_;
  std::vector<uint64_t> bytes_;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_ATTEMPT_H_
