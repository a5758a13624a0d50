// Asynchronous and bounded-staleness training, as a worker does it (docs/protocol.md 8).
//
// Intuition. The worker works through a lease, a range of the job's sample sequence, one *update*
// at a time: the batch of the next training.globalBatchSize samples of the lease (fewer at its
// end).
//
//   Lease -> Pull -> compute (meanwhile PermitRequest -> Permit) -> Push -> Staged by all shards
//         -> Apply, and the next Pull behind it -> Applied by all shards -> next update
//
// The update is kept until every shard has applied it. In a new view it begins again at its permit,
// with the same clock: a shard that has applied it acks it without effect. A clock is never used
// for a second update, not even in another attempt.
//
// Bounded staleness (R13): a lease first, then the pull; the arbiter is asked first and names the
// lease holders that it counted, the other shards are asked with those names.
#ifndef SLUICE_SERVICES_WORKER_CORE_ASYNCHRONOUS_WORKER_H_
#define SLUICE_SERVICES_WORKER_CORE_ASYNCHRONOUS_WORKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "services/protocol/interval_set.h"
#include "services/worker/core/push_sender.h"
#include "services/worker/core/row_puller.h"
#include "services/worker/core/step_gradients.h"
#include "services/worker/core/step_times.h"
#include "services/worker/core/training_mode.h"
#include "services/worker/core/version_receiver.h"
#include "services/worker/core/worker_context.h"

namespace sluice::worker {

class AsynchronousWorker : public TrainingMode {
 public:
  explicit AsynchronousWorker(WorkerContext* context);

  void OnView(const v1::View& old) override;
  void OnLinkReady(ShardLink& link) override;
  absl::Status OnFrame(ShardLink& link, const v1::Header& header,
                       const absl::Cord& payload) override;
  absl::Status OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient) override;
  absl::Status OnComputed(ComputeId id, const ComputeResult& result) override;
  absl::Status OnReduced(const v1::ViewId&, uint64_t, absl::StatusOr<ReducedPart>) override {
    return absl::OkStatus();  // of an earlier view, which was another mode's
  }
  void OnRows(RowsId id, RowSelections rows) override { rows_.OnRows(id, std::move(rows)); }
  void Adopt() override;
  void Proceed() override;
  std::optional<uint64_t> CurrentVersion() const override { return std::nullopt; }
  uint64_t Step() const override { return clock_; }

 private:
  bool bounded() const { return context_->view.mode() == v1::BOUNDED_STALENESS; }
  struct Update {
    Update(const v1::TensorTable* table, const WorkerRules* rules)
        : gradients(table, /*tree=*/false, rules) {}

    uint64_t clock = 0;
    Interval samples;
    uint64_t base_version = 0;
    absl::Time started;
    StepGradients gradients;
    std::optional<ComputeId> computing;
    ComputeResult result;
    // In the present view:
    bool permit_asked = false;
    std::optional<v1::Permit> permit;
    std::set<ShardId> bare_sent;  // shards without content; on the present stream
    std::set<ShardId> staged;
    // What the shards measured of their partitions, where clipping or skipping needs it; ordered,
    // so that the sum has the same bits whoever answered first.
    std::map<uint32_t, v1::Norms::PartitionNorm> norms;
    std::set<ShardId> apply_sent;  // on the present stream
    std::set<ShardId> applied;
  };

  void AskForLease(ShardLink& arbiter);
  uint64_t SamplesWished() const;
  void OnLease(const v1::Lease& lease);
  void StartUpdate();
  void AskForPermit(ShardLink& arbiter);
  void Push();
  void PushToOthers();
  void SendApplies();
  v1::Apply MakeApply() const;
  bool AllStaged() const;
  void OnStaged(ShardLink& link, const v1::Staged& staged);
  void OnApplied(ShardLink& link, const v1::Applied& applied);
  void FinishUpdate();
  // For times_: the update, with its Apply, was given to every shard's stream.
  void NoteGiven();

  // The samples of the update after the one in progress; empty: none are leased.
  Interval NextSamples() const;
  // With rows of tables: finds those of the next update.
  void FindNextRows();
  // Whether it is known what to pull.
  bool MayPull() const;
  // Whether each Apply pulls as well.
  bool PullsByApply() const { return !bounded() && !rows_.active(); }
  void BeginPull();
  void SendPulls();
  void PullFrom(ShardLink& link);

  WorkerContext* const context_;

  uint64_t clock_ = 0;  // the highest that was applied, or to which it was raised
  Interval lease_;      // what is left of it behind the update in progress
  bool lease_asked_ = false;
  bool done_ = false;  // no samples are left and nobody holds any
  std::optional<Update> update_;
  PushSender push_;
  StepTimes times_;  // of the update in progress and of the pull behind it

  RowPuller rows_;
  Positions pulled_rows_;  // of whose rows the present pull, or the current buffer, is
  bool fresh_ = false;     // the current buffer is for the next update
  uint64_t base_version_ = 0;
  bool pulling_ = false;
  VersionReceiver incoming_{ComputeEngine::Buffer::kIncoming};
  std::set<ShardId> pull_sent_;  // on the present stream
  uint64_t pull_request_ = 0;
  std::optional<v1::PullAnswer> counted_;  // the arbiter's answer to the present pull

  double samples_per_second_ = 0;  // 0: not known yet
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_ASYNCHRONOUS_WORKER_H_
