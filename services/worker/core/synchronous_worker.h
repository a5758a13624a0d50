// Synchronous training on the worker's side (docs/protocol.md 7).
//
// Intuition. The worker holds one version in its current buffer, the parts of one version in its
// incoming buffer, and the gradients of one step. Without a usable current version it pulls the
// view's first step. With version s current it computes its microbatches of step s and pushes them,
// and receives s + 1. Once s + 1 is whole, it becomes current and the gradients of s are forgotten,
// not earlier: until then they may be needed again by a new stream or view.
//
//   no current version --Pull(m)--> incoming m whole --adopt--> current s
//   current s --compute, Push(s, pull_next)--> incoming s + 1 whole --adopt--> current s + 1
//   stragglers dropped: what comes in is above s + 1 --Pull--> no current version, incoming that
//   rows of tables: Pull(s + 1, rows) beside Push(s), in place of pull_next
//   new view (m): current stays if it is m; what came in of m stays; everything else is dropped
#ifndef SLUICE_SERVICES_WORKER_CORE_SYNCHRONOUS_WORKER_H_
#define SLUICE_SERVICES_WORKER_CORE_SYNCHRONOUS_WORKER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "services/protocol/interval_set.h"
#include "services/worker/core/dense_reduction.h"
#include "services/worker/core/gradients/step_gradients.h"
#include "services/worker/core/push_sender.h"
#include "services/worker/core/row_puller.h"
#include "services/worker/core/step_sums.h"
#include "services/worker/core/step_times.h"
#include "services/worker/core/version_receiver.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_mode.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

class SynchronousWorker : public WorkerMode {
 public:
  SynchronousWorker(const WorkerContext* context, WorkerOutput* out);

  void OnView(const v1::View& old) override;
  void OnLinkReady(ShardLink& link) override;
  absl::Status OnFrame(ShardLink& link, const v1::Header& header,
                       const absl::Cord& payload) override;
  void OnWeight(ComputeId id, double weight) override;
  void OnSum(ComputeId id, std::string name, absl::Cord values) override {
    sums_.OnSum(id, std::move(name), std::move(values));
  }
  absl::Status OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient) override;
  absl::Status OnComputed(ComputeId id, const ComputeResult& result) override;
  absl::Status OnReduced(const v1::ViewId& view, uint64_t step,
                         absl::StatusOr<ReducedPart> part) override;
  void OnRows(RowsId id, RowSelections rows) override { rows_.OnRows(id, std::move(rows)); }
  void Adopt() override;
  void Proceed() override;
  std::optional<uint64_t> CurrentVersion() const override {
    // The worker holds only some rows of tables.
    return has_current_ && !rows_.active() ? std::optional<uint64_t>(step_) : std::nullopt;
  }
  uint64_t Step() const override { return step_; }

 private:
  // The weight of one computation in the mean over the step.
  struct Weight {
    double value = 0;    // its samples, unless the engine gives another weight
    bool given = false;  // by the engine
  };

  // The version after which no step is computed.
  uint64_t LastStep() const;
  // Whether no step is left to compute.
  bool Finished() const { return step_ >= LastStep(); }
  // Cancels computations, and forgets the gradients and sums of the step.
  void DropGradients();
  // Decides the fate of the last contribution's residuals: committed, rolled back or reset
  // (GradientEncoder).
  void SettleResiduals(const v1::View& old);
  // Keeps versions that the new view can use (R9), and drops the others.
  void KeepOrDropVersions(const v1::View& old);
  // Prepares the incoming buffer for this version.
  void ExpectIncoming(uint64_t version);
  // Stragglers are dropped, and this worker was one: it continues at a later version, of which
  // `partition` is arriving.
  void SkipTo(uint64_t version, uint32_t partition);
  // Computes what the assignment needs and the worker does not hold.
  void Assign();
  // Whether the model cannot compute so few samples as one batch.
  bool IsTooSmall(const MicrobatchRange& range) const;
  // Gives a range to the compute thread. A range without samples is resolved at once.
  void Issue(const MicrobatchRange& range);
  // For metrics: counts the range's samples whose computation was begun before. After a later step
  // was begun, these are all of them.
  void CountIfRecomputed(const MicrobatchRange& range, uint64_t samples);
  // The fields of this step's pushes.
  PushSender::Common CommonOfStep() const;
  // The weight of this member's contribution, where the engine gives weights; else nullopt.
  std::optional<double> WeightOfStep() const;
  // With rows of tables: what this member computes of a step; nothing after the last step.
  Positions AssignedPositions(uint64_t step) const;
  // Finds the rows of the incoming version, and pulls it where it has not been pulled yet.
  void PullRows();
  static constexpr uint32_t kNone = ~uint32_t{0};
  // Pulls every partition that is not whole, except for `but`.
  void PullFrom(ShardLink& link, uint32_t but = kNone);
  void PullFromAll(uint32_t but = kNone);
  // Adds the step's samples, loss and times to the next report.
  void ReportStep();
  // Replaces the sum of losses by the weighted one, where the engine gives weights.
  void WeighLoss(v1::WorkerProgress::Step* step) const;
  // Reports the shards that have owed the incoming version for longer than timeouts.weights.
  void ReportOwing();

  const WorkerContext* const context_;
  WorkerOutput* const out_;
  const bool tree_;

  bool has_current_ = false;
  uint64_t step_ = 0;  // current version, or the version that is being pulled to become it
  VersionReceiver incoming_{ComputeEngine::Buffer::kIncoming};
  uint64_t incoming_version_ = 0;

  RowPuller rows_;
  Positions held_rows_;          // whose rows the current version holds
  std::set<ShardId> rows_sent_;  // pulled the incoming version, on the current stream

  bool assigned_ = false;
  std::optional<StepGradients> gradients_;
  std::map<ComputeId, MicrobatchRange> computing_;
  std::map<uint64_t, ComputeResult> results_;  // of held gradients, by first microbatch
  std::map<uint64_t, Weight> weights_;         // likewise, before the first gradient
  StepSums sums_;
  DenseReduction reduction_;
  PushSender push_;
  StepTimes times_;                                 // of the step in progress
  absl::Time owed_since_ = absl::InfiniteFuture();  // since when only data is waited for

  // The microbatches of the furthest step that were begun: what is computed a second time is waste.
  uint64_t begun_step_ = 0;
  IntervalSet begun_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_SYNCHRONOUS_WORKER_H_
