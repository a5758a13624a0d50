// The facts that the parts of the shard's core share.
#ifndef SLUICE_SERVICES_PS_CORE_STATE_SHARD_STATE_H_
#define SLUICE_SERVICES_PS_CORE_STATE_SHARD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/execution/references.h"
#include "services/protocol/samples/job_length.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/base/job_failure.h"
#include "services/ps/core/base/model.h"
#include "services/ps/core/base/options.h"
#include "services/ps/core/base/parallel.h"
#include "services/ps/core/base/rules.h"
#include "services/ps/core/state/block.h"
#include "services/ps/core/state/installed_view.h"
#include "services/ps/core/state/partition.h"
#include "services/ps/core/state/training_barrier.h"

namespace sluice::ps {

// By number.
using PartitionMap = std::map<uint32_t, Partition>;

// The job as its init request has prepared it.
struct PreparedJob {
  v1::JobSpec job;
  uint64_t training_samples = 0;
  std::optional<StepSchedule> plan;  // unset: the job does not define microbatches
  uint64_t last_position = 0;        // PrepareState.last_position
  std::shared_ptr<const ShardModel> model;
};

// The installed view, and the Pause in progress that ends it.
struct ViewState {
  enum class Pausing {
    kNo,
    kWaiting,  // AfterStep: the step is not reached yet
    kReplied,  // R2: a promise
  };

  std::optional<InstalledView> installed;
  Pausing pausing = Pausing::kNo;
  v1::Pause pause;

  // Whether the shard has replied to a Pause, and changes nothing until the Install (R2).
  bool promised() const { return pausing == Pausing::kReplied; }
};

// Synchronous: the highest version that no view change takes back (docs/protocol.md 7.4).
struct CommittedVersion {
  uint64_t version = 0;
};

// The number of the job's asynchronous updates that this shard's partitions contain.
struct AppliedUpdates {
  uint64_t count = 0;
};

// The core's state as its parts read it. Nothing can be changed through it: each fact is written by
// one part, which owns it or is the only one to have it by a pointer that is not const.
//
// The facts of an attempt end with the attempt's objects (ShardAttempt).
class ShardState {
 public:
  // The facts of an attempt, and the part that writes each.
  struct AttemptFacts {
    const PreparedJob* job = nullptr;             // Initialization
    const ViewState* view = nullptr;              // Views
    const TrainingBarrier* barrier = nullptr;     // ShardAttempt
    const JobFailure* failure = nullptr;          // the part that fails first
    const PartitionMap* partitions = nullptr;     // Synchronous or Asynchronous, by the view's mode
    const PartitionMap* copies = nullptr;         // Replica
    const CommittedVersion* committed = nullptr;  // Synchronous
    const AppliedUpdates* updates = nullptr;      // Asynchronous
  };

  // `runner` and `kept` must outlive it; null: the calling thread, all rules.
  ShardState(ShardOptions given, ParallelRunner* runner, const ShardRules* kept);
  ShardState(const ShardState&) = delete;
  ShardState& operator=(const ShardState&) = delete;

  // ---- by the core, which owns it
  void SetTime(absl::Time now) { now_ = now; }
  // An attempt begins. Its facts must live until the next one begins.
  void Attach(const AttemptFacts& facts) { facts_ = facts; }

  // ---- the process
  // Constant, except now(): the time of the event.
  const ShardOptions& options() const { return options_; }
  ParallelRunner& parallel() const { return parallel_; }
  const ShardRules& rules() const { return rules_; }
  const std::shared_ptr<BlockPool>& pool() const { return pool_; }
  absl::Time now() const { return now_; }
  uint64_t self() const { return options_.identity.process().incarnation(); }

  // ---- the job; after the PrepareState
  const v1::JobSpec& job() const { return facts_.job->job; }
  uint64_t training_samples() const { return facts_.job->training_samples; }
  const std::optional<StepSchedule>& plan() const { return facts_.job->plan; }
  uint64_t last_position() const { return facts_.job->last_position; }
  const std::shared_ptr<const ShardModel>& model() const { return facts_.job->model; }
  // The job's length: steps (0: not known), and positions of its sample sequence.
  uint64_t LastStep() const;
  uint64_t TotalSamples() const;
  // Whether blocks are sent to and received from workers as references.
  bool ByReference() const {
    return options_.references != nullptr &&
           job().training().execution() == v1::TrainingSpec::SERVER;
  }

  // ---- the view
  const std::optional<InstalledView>& view() const { return facts_.view->installed; }
  bool promised() const { return facts_.view->promised(); }
  // Whether the job cannot continue (JobFailure).
  bool failed() const { return facts_.failure->failed(); }
  // Whether a frame may change partitions now: a view is installed, no promise holds (R2), and the
  // job has not failed.
  bool MayChange() const {
    return (!promised() || !rules_.KeepPromise()) && !failed() && view().has_value();
  }
  // A header of the current view.
  v1::Header NewHeader() const;
  // A frame for another shard of the view, without its content.
  SendToShard NewMessageTo(const v1::View::Shard& shard) const;
  SendToShard NewMessageTo(uint64_t incarnation) const;

  // ---- partitions
  // Those that this shard owns and that are not empty.
  const PartitionMap& partitions() const { return *facts_.partitions; }
  // Null unless this shard owns the partition.
  const Partition* Find(uint32_t partition) const {
    const auto found = partitions().find(partition);
    return found == partitions().end() ? nullptr : &found->second;
  }
  // Whole copies of other shards' partitions.
  const PartitionMap& copies() const { return *facts_.copies; }
  // Over the owned partitions; the view's first step if the shard owns none.
  uint64_t LowestVersion() const;
  uint64_t HighestVersion() const;
  // The same over the whole copies too.
  uint64_t LowestHeld() const;

  // ---- training
  uint64_t committed() const { return facts_.committed->version; }
  uint64_t updates() const { return facts_.updates->count; }
  const TrainingBarrier& barrier() const { return *facts_.barrier; }
  // Whether the step may close only with decisions that this shard does not have yet.
  bool AwaitsDecisions(uint64_t step) const;

 private:
  // The version of a shard without partitions.
  uint64_t VersionOfNone() const;

  const ShardOptions options_;
  InlineRunner calling_thread_;
  ShardRules all_rules_;
  ParallelRunner& parallel_;
  const ShardRules& rules_;
  const std::shared_ptr<BlockPool> pool_;
  absl::Time now_ = absl::InfinitePast();
  AttemptFacts facts_;
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

#endif  // SLUICE_SERVICES_PS_CORE_STATE_SHARD_STATE_H_
