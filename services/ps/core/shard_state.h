// The state that the parts of the shard's core share: the view, the partitions and the pending
// actions.
#ifndef SLUICE_SERVICES_PS_CORE_SHARD_STATE_H_
#define SLUICE_SERVICES_PS_CORE_SHARD_STATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/execution/references.h"
#include "services/protocol/interval_set.h"
#include "services/protocol/job_length.h"
#include "services/protocol/member_exit.h"
#include "services/protocol/sequence.h"
#include "services/ps/core/block.h"
#include "services/ps/core/bounds.h"
#include "services/ps/core/parallel.h"
#include "services/ps/core/partition.h"
#include "services/ps/core/shard_action.h"
#include "services/ps/core/shard_model.h"
#include "services/ps/core/shard_options.h"
#include "services/ps/core/shard_rules.h"

namespace sluice::ps {

// An installed view, with the lookups that a shard needs.
class InstalledView {
 public:
  InstalledView() = default;
  // `self` is the shard's incarnation.
  InstalledView(v1::View view, uint64_t self, const ShardModel& model);

  const v1::View& proto() const { return view_; }
  const v1::ViewId& id() const { return view_.id(); }
  bool synchronous() const { return IsSynchronous(view_.mode()); }

  size_t members() const { return assigned_.size(); }
  std::optional<size_t> MemberIndex(uint64_t incarnation) const;
  uint64_t MemberIncarnation(size_t member) const {
    return view_.workers(static_cast<int>(member)).process().incarnation();
  }
  // Microbatches of a member.
  const IntervalSet& Assigned(size_t member) const { return assigned_[member]; }
  // Of a step, over all members.
  uint64_t microbatches() const { return microbatches_; }

  // Partitions that this shard owns and that are not empty, ascending.
  const std::vector<uint32_t>& owned() const { return owned_; }
  bool Owns(uint32_t partition) const;
  // Requires a partition of the layout.
  const v1::View::Shard& OwnerOf(uint32_t partition) const {
    return view_.shards(static_cast<int>(view_.owner(static_cast<int>(partition))));
  }
  // Whether a shard (its incarnation) is the follower or the target of the partition.
  bool HasCopy(uint32_t partition, uint64_t shard) const;
  // Whether a process is one of the view's shards.
  bool HasShard(uint64_t incarnation) const;
  bool is_arbiter() const { return is_arbiter_; }

 private:
  v1::View view_;
  absl::flat_hash_map<uint64_t, size_t> member_index_;
  std::vector<IntervalSet> assigned_;
  uint64_t microbatches_ = 0;
  std::vector<uint32_t> owned_;
  bool is_arbiter_ = false;
};

// Owner lists refer to positions in `shards`.
std::vector<uint32_t> OwnedPartitions(
    const google::protobuf::RepeatedPtrField<v1::View::Shard>& shards,
    const google::protobuf::RepeatedField<uint32_t>& owner, uint64_t self, const ShardModel& model);

struct ShardState {
  ShardState(ShardOptions options, ParallelRunner* parallel, const ShardRules* rules);

  const ShardOptions options;
  ParallelRunner& parallel;
  const ShardRules& rules;
  const std::shared_ptr<BlockPool> pool;

  absl::Time now = absl::InfinitePast();
  std::vector<ShardAction> actions;

  v1::JobSpec job;
  uint64_t training_samples = 0;
  std::optional<StepSchedule> plan;  // unset: the job does not define microbatches
  uint64_t last_position = 0;        // PrepareState.last_position
  std::shared_ptr<const ShardModel> model;

  std::optional<InstalledView> view;
  std::vector<std::unique_ptr<Partition>> partitions;  // by number; null: not owned, or empty
  std::map<uint32_t, std::unique_ptr<Partition>>
      copies;           // whole copies of other shards' partitions
  bool frozen = false;  // R2
  uint64_t committed = 0;
  uint64_t barrier =
      0;  // no step is closed at this version; asynchronous: leases end here; 0: none
  v1::EvaluationDecisions decisions;  // the newest
  // What the decisions since the Install have made of the learning rate: from the step on,
  // ascending.
  std::vector<std::pair<uint64_t, double>> learning_rate_factors;
  uint64_t steps_skipped = 0;
  uint64_t dropped_contributions =
      0;                 // owner of partition 0: contributions missing from committed steps
  uint64_t updates = 0;  // asynchronous: applied
  uint64_t repeated_blocks = 0;
  std::array<uint64_t, kBounds> reached{};  // how often, of each bound
  std::string failure;  // if not empty, no step closes and no update is applied any more
  bool exited = false;  // Exit is the last action: no event has an effect any more

  // Takes the decisions with which a view begins; newer ones, in the view.
  void BeginDecisions(const v1::EvaluationDecisions& begun);
  void AddDecisions(const v1::EvaluationDecisions& newer);
  double LearningRateFactorAt(uint64_t step) const;
  // Whether the step may close only with decisions that this shard does not have yet.
  bool AwaitsDecisions(uint64_t step) const {
    return job.optimizer().has_plateau() && view->synchronous() && barrier > 0 && step >= barrier;
  }

  uint64_t self() const { return options.identity.process().incarnation(); }
  bool MayChange() const {
    return (!frozen || !rules.KeepPromise()) && failure.empty() && view.has_value();
  }

  // Null unless this shard owns the partition.
  Partition* Find(uint32_t partition) const {
    return partition < partitions.size() ? partitions[partition].get() : nullptr;
  }
  // Over the owned partitions; the view's first step if the shard owns none.
  uint64_t LowestVersion() const;
  uint64_t HighestVersion() const;
  // The same over the whole copies too.
  uint64_t LowestHeld() const;
  // The job's length: steps (0: not known), and positions of its sample sequence.
  uint64_t LastStep() const;
  uint64_t TotalSamples() const;

  // Whether blocks are sent to and received from workers as references.
  bool ByReference() const {
    return options.references != nullptr && job.training().execution() == v1::TrainingSpec::SERVER;
  }

  // Makes whole copies partitions of this shard, and the other way round, as the next view says,
  // and drops what it does not give to this shard. Returns an error text, with nothing changed, if
  // the shard does not hold what the view gives to it.
  std::optional<std::string> Adopt(const InstalledView& next, const v1::Install& install);
  // Brings all partitions to the view's first step; a partition one past it returns by its undo.
  // False: one cannot, and the job has failed.
  bool RollBackTo(uint64_t first_step);
  // Drops the references of workers that are no longer members. In a view without members, the
  // previous members evaluate the final version, so they keep theirs.
  void RetainReferences();

  // A header of the current view.
  v1::Header NewHeader() const;
  void Reached(Bound bound) { ++reached[static_cast<size_t>(bound)]; }
  // Counts a refusal because of a bound and returns its error.
  absl::Status Full(Bound bound, absl::string_view what) {
    Reached(bound);
    return Exceeded(bound, what);
  }
  void Send(StreamId stream, v1::Header header, absl::Cord payload = absl::Cord()) {
    actions.push_back(SendFrame{stream, std::move(header), std::move(payload)});
  }
  void Report(v1::MemberMessage message) {
    actions.push_back(SendToCoordinator{std::move(message)});
  }
  void ExitNow(ExitReason reason, std::string message,
               v1::Refusal::Code refusal = v1::Refusal::UNSPECIFIED) {
    exited = true;
    actions.push_back(Exit{reason, std::move(message), refusal});
  }
  // The job cannot continue. Reported once, and again on each new connection.
  void Fail(std::string reason);
  void ReportFailure();

 private:
  InlineRunner calling_thread_;
  ShardRules all_rules_;
};

// Splits a frame's payload into its blocks. INVALID_ARGUMENT names the misfit: a block of another
// partition, a block named twice, a codec that cannot carry the block, sizes that do not add up.
absl::Status SplitPayload(const ShardModel& model, uint32_t partition,
                          const google::protobuf::RepeatedPtrField<v1::BlockHeader>& headers,
                          const absl::Cord& payload, std::vector<ReceivedBlock>* blocks);

// The same for a worker's push: with server-side execution, returns the blocks behind its
// references.
absl::Status SplitPush(const ShardState& state, uint64_t worker, const v1::Push& push,
                       const absl::Cord& payload, std::vector<ReceivedBlock>* blocks);

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SHARD_STATE_H_
