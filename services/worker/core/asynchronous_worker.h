// Asynchronous and bounded-staleness training on the worker's side (docs/protocol.md 8).
//
// Intuition. The worker works through a lease, which is a range of the job's sample sequence, one
// *update* at a time. The batch of an update is the next training.globalBatchSize samples of the
// lease (fewer at its end).
//
//   Lease -> Pull -> compute (meanwhile PermitRequest -> Permit) -> Push -> Staged by all shards
//         -> Apply, and the next Pull behind it -> Applied by all shards -> next update
//
// The worker keeps the update until every shard has applied it. In a new view the update restarts
// at its permit, with the same clock: a shard that has applied it already acks it without effect. A
// clock is never used for a second update, not even in another attempt.
//
// Bounded staleness (R13): the worker needs a lease before it pulls. It pulls from the arbiter
// first; the arbiter's answer names the lease holders that it counted, and the pulls from the other
// shards carry these names.
#ifndef SLUICE_SERVICES_WORKER_CORE_ASYNCHRONOUS_WORKER_H_
#define SLUICE_SERVICES_WORKER_CORE_ASYNCHRONOUS_WORKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "services/protocol/interval_set.h"
#include "services/worker/core/gradients/step_gradients.h"
#include "services/worker/core/push_sender.h"
#include "services/worker/core/row_puller.h"
#include "services/worker/core/step_times.h"
#include "services/worker/core/version_receiver.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_mode.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

class AsynchronousWorker : public WorkerMode {
 public:
  AsynchronousWorker(const WorkerContext* context, WorkerOutput* out);

  void OnView(const v1::View& old) override;
  void OnLinkReady(ShardLink& link) override;
  absl::Status OnFrame(ShardLink& link, const v1::Header& header,
                       const absl::Cord& payload) override;
  void OnSum(ComputeId, std::string, absl::Cord) override {}  // an update is one worker's
  void OnWeight(ComputeId id, double weight) override;
  absl::Status OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient) override;
  absl::Status OnComputed(ComputeId id, const ComputeResult& result) override;
  absl::Status OnReduced(const v1::ViewId&, uint64_t, absl::StatusOr<ReducedPart>) override {
    return absl::OkStatus();  // of an earlier view, in which another mode trained
  }
  void OnRows(RowsId id, RowSelections rows) override { rows_.OnRows(id, std::move(rows)); }
  void Adopt() override;
  void Proceed() override;
  std::optional<uint64_t> CurrentVersion() const override { return std::nullopt; }
  uint64_t Step() const override { return clock_; }

 private:
  // Whether pulls wait for slow workers (R13).
  bool bounded() const { return context_->view.mode() == v1::BOUNDED_STALENESS; }
  // The update in progress, from the start of its computation until every shard has applied it.
  struct Update {
    Update(const v1::TensorTable* table, const WorkerRules* rules)
        : gradients(table, /*tree=*/false, rules) {}

    uint64_t clock = 0;
    Interval samples;
    uint64_t base_version = 0;
    absl::Time started;
    StepGradients gradients;
    std::optional<ComputeId> computing;
    std::optional<double> weight;
    std::optional<double> loss_weight;  // of `samples`, where the engine gives weights
    ComputeResult result;
    // In the current view:
    bool permit_asked = false;
    std::optional<v1::Permit> permit;
    std::set<ShardId> bare_sent;  // shards without content; on the current stream
    std::set<ShardId> staged;
    // Norms that the shards measured of their partitions, where clipping or skipping needs them.
    // Ordered, so that the sum has the same bits in whatever order the shards answered.
    std::map<uint32_t, v1::Norms::PartitionNorm> norms;
    std::set<ShardId> apply_sent;  // on the current stream
    std::set<ShardId> applied;
  };

  // Requests samples, unless a request is unanswered, samples are left, none will come, or the
  // update in progress must be applied first.
  void AskForLease(ShardLink& arbiter);
  // The samples that this worker computes in about kLeaseSeconds, as whole batches, at least one.
  uint64_t SamplesWished() const;
  // The samples to compute for an update: at least the smallest batch that the model can compute.
  PositionRange ComputedFor(const Interval& samples) const;
  // Without samples, the shard answers the same request again, unless none are left.
  void OnLease(const v1::Lease& lease);
  // Begins the next update on the version that was just adopted, if its rows are held.
  void StartUpdate();
  // The arbiter puts updates in order and gives a permit for each (docs/protocol.md 8.2).
  void AskForPermit(ShardLink& arbiter);
  // Pushes what is ready of the update, once it has its permit.
  void Push();
  // Sends an empty push to each shard that owns no partition: it stages the update, too.
  void PushToOthers();
  // Sends the Apply to every shard once all shards have staged the update, unless the push has it.
  void SendApplies();
  v1::Apply MakeApply() const;
  bool AllStaged() const;
  // A shard has the whole update. It answers with the norms of its partitions, if they are needed.
  void OnStaged(ShardLink& link, const v1::Staged& staged);
  // A shard has applied the update, now or earlier. Finishes the update once all shards have.
  void OnApplied(ShardLink& link, const v1::Applied& applied);
  // Reports the update, forgets its gradients, and raises the clock.
  void FinishUpdate();
  // For times_: the update and its Apply were given to every shard's stream.
  void NoteGiven();

  // The samples of the update after the one in progress; empty: none are leased.
  Interval NextSamples() const;
  // With rows of tables: finds the rows of the next update.
  void FindNextRows();
  // Whether the worker knows what to pull.
  bool MayPull() const;
  // Whether each Apply also pulls.
  bool PullsByApply() const { return !bounded() && !rows_.active(); }
  // Begins to receive a version into the incoming buffer, under a new request number.
  void BeginPull();
  // Sends the current pull to each shard that it has not been sent to and that may get it now.
  void SendPulls();
  // Pulls the partitions of this shard that are not whole.
  void PullFrom(ShardLink& link);

  const WorkerContext* const context_;
  WorkerOutput* const out_;

  uint64_t clock_ = 0;  // the highest clock that was applied, or to which it was raised
  Interval lease_;      // what is left of the lease after the update in progress
  bool lease_asked_ = false;
  bool done_ = false;  // no samples are left and no worker holds any
  std::optional<Update> update_;
  PushSender push_;
  StepTimes times_;  // of the update in progress and of the pull after it

  RowPuller rows_;
  Positions pulled_rows_;  // whose rows the current pull, or the current buffer, has
  bool fresh_ = false;     // the current buffer is for the next update
  uint64_t base_version_ = 0;
  bool pulling_ = false;
  VersionReceiver incoming_{ComputeEngine::Buffer::kIncoming};
  std::set<ShardId> pull_sent_;  // on the current stream
  uint64_t pull_request_ = 0;
  std::optional<v1::PullAnswer> counted_;  // the arbiter's answer to the current pull

  double samples_per_second_ = 0;  // 0: not known yet
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_ASYNCHRONOUS_WORKER_H_
