// The worker's part of the protocol: what it sends and when, what it keeps, what it drops.
//
// Intuition. A worker is a loop (pull a version, compute, push) in a world in which streams break,
// views change at any time, and any message may be lost or answered twice. So the core is written
// in terms of what it *holds* (the version in its current buffer, what arrived of the next version,
// gradients by microbatch, the update that is not answered yet) and what the view *wants* from it.
// After every event it sends what is wanted, held and not yet sent on this stream in this view, and
// computes what is wanted and not held.
//
// Synchronous training (docs/protocol.md 7): see synchronous_worker.h. Asynchronous training and
// bounded staleness (8): see asynchronous_worker.h; there every update is one worker's batch of
// training.globalBatchSize samples, or of as many as the coordinator considers right for its speed.
//
// Pure: events and the time in, actions out. Single-threaded: the shell serializes all calls. An
// event only appends actions; the shell reads them (TakeActions) after each event, and carries them
// out before the next one, in order. No call blocks; each takes time in proportion to its input and
// output.
//
// The parts read the job and the view (WorkerContext), which the core alone changes, and add to
// what the worker does (WorkerOutput).
#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_CORE_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_CORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/model.pb.h"
#include "services/protocol/row_selection.h"
#include "services/worker/core/base/actions.h"
#include "services/worker/core/base/rules.h"
#include "services/worker/core/evaluation_queue.h"
#include "services/worker/core/gradients/gradient.h"
#include "services/worker/core/init_pusher.h"
#include "services/worker/core/registration.h"
#include "services/worker/core/shard_link.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_mode.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

// The identity with which one instance of the worker registers.
struct WorkerOptions {
  v1::ProcessId process;  // role WORKER, index, incarnation: a new incarnation in every instance
  std::string job;        // "<namespace>/<name>/<uid>"
  std::string host;
  uint64_t pid = 0;
  std::string metrics_address;
};

// For metrics and the process's log.
struct WorkerStatus {
  std::string view;  // "1.1.7"; empty: none
  bool member = false;
  uint64_t step = 0;     // synchronous: the version in use; asynchronous: the last clock applied
  uint64_t samples = 0;  // in updates that were sent, in this instance
  uint64_t recomputed_samples = 0;  // computed again because of a view change
  uint64_t queued_bytes = 0;        // of payload that waits for credit
  uint64_t pending_computes = 0;
};

class WorkerCore {
 public:
  // `rules` must outlive the core; null: all rules.
  explicit WorkerCore(WorkerOptions options, const WorkerRules* rules = nullptr);

  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;

  // ---- coordinator. The shell keeps trying to connect; the core registers on each new stream.
  void OnCoordinatorConnected(absl::Time now);
  void OnCoordinatorDisconnected(absl::Time now);
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now);

  // ---- shards. Events of a shard that was disconnected are ignored.
  void OnShardConnected(ShardId shard, absl::Time now);
  void OnShardDisconnected(ShardId shard, const absl::Status& status, absl::Time now);
  // A frame that breaks the contract breaks the stream (DisconnectShard with the reason), no more.
  void OnShardFrame(ShardId shard, const v1::Header& header, absl::Cord payload, absl::Time now);

  // At `at`, everything that was given with SendFrame had been passed to the system. Used only to
  // measure the times of a step. The report may arrive late, with the next event, or not at all.
  void OnSent(absl::Time at);

  // ---- model and compute
  // Matrices of which a computation reads only the rows that its samples name: FindRows finds these
  // rows. Call before OnModelReady, or not at all if there are none.
  void SetRowTensors(std::vector<uint32_t> tensors);
  // Model and data are open. `ready` is reported to the coordinator, with its texts cut to the
  // lengths that the coordinator accepts.
  void OnModelReady(v1::Ready ready, absl::Time now);
  // The model or the data cannot be opened: reports the failure and exits.
  void OnModelFailed(const absl::Status& status, absl::Time now);
  // The answer to a ReadInitialTensor. An error fails the job.
  void OnInitialTensor(const v1::InitId& init_id, uint32_t tensor,
                       absl::StatusOr<absl::Cord> content, absl::Time now);
  // Results of the Compute in progress, in the order in which the engine reports them
  // (GradientSink). The cord's memory must not change as long as it is referred to.
  void OnWeight(ComputeId id, double weight, absl::Time now);
  // The computation's part in a sum over all members that compute in this step, named for messages;
  // GiveSum follows, unless the computation is cancelled before. The computation needs its sums one
  // after another, and every member's needs the same.
  void OnSum(ComputeId id, std::string name, absl::Cord values, absl::Time now);
  // The whole gradient of a tensor, row-major in the tensor's type.
  void OnGradient(ComputeId id, uint32_t tensor, absl::Cord gradient, absl::Time now);
  // The gradient of a matrix: `values` of these rows, ascending; all others are zeros.
  void OnRowGradient(ComputeId id, uint32_t tensor, std::vector<uint64_t> rows, absl::Cord values,
                     absl::Time now);
  // The tensor has no gradient in this computation.
  void OnNoGradient(ComputeId id, uint32_t tensor, absl::Time now);
  // The computation's change to a buffer, such as a running mean.
  void OnBufferChange(ComputeId id, uint32_t tensor, absl::Cord change, absl::Time now);
  // The end of a Compute: exactly once for each, also if it was cancelled.
  void OnComputed(ComputeId id, const ComputeResult& result, absl::Time now);
  // The result of a FindRows: rows of each of the row tensors, or an error of the data, which fails
  // the job.
  void OnRows(RowsId id, absl::StatusOr<RowSelections> rows, absl::Time now);
  // The end of an EvaluateSamples: exactly once for each.
  void OnEvaluated(ComputeId id, const ComputeResult& result, absl::Time now);
  // The answer to a ComputeMetrics: the values, or an error.
  void OnMetricValues(MetricsId id, v1::MetricValues values, absl::Time now);
  // The result of a ReduceGradients of this view's group: the sums of the worker's own part.
  // UNAVAILABLE: the group is broken; INVALID_ARGUMENT: its members do not fit together, which
  // fails the job. Results of another view or step are ignored. The cords' memory is as for
  // OnGradient.
  void OnReduced(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part,
                 absl::Time now);

  // ---- the rest
  // This process is asked to stop: the core asks the coordinator for permission to leave, continues
  // until a view without this worker, at most `grace`, and exits. A second call may shorten the
  // time.
  void OnAskedToStop(std::string reason, absl::Duration grace, absl::Time now);
  // The program asks the job to end training, or to save a checkpoint.
  void OnJobRequest(v1::JobRequest::Kind kind, std::string reason, absl::Time now);
  // Call at NextDeadline() at the latest; earlier does no harm.
  void OnTick(absl::Time now);
  // InfiniteFuture: nothing but events to wait for.
  absl::Time NextDeadline() const;

  // The actions since the last call, in order. After Exit, which is the last one, events have no
  // effect.
  WorkerActions TakeActions();

  WorkerStatus Status() const;
  // The newest view that the worker knows (empty: none), for the log and tests.
  const v1::View& view() const { return context_.view; }

 private:
  // Every event runs in here: sets the time, handles the event, and then does the work that is due.
  template <typename Event>
  void Handle(absl::Time now, Event event);
  // Does what is wanted, held and not done yet: adopts, evaluates, computes, sends.
  void Proceed();

  void OnRegistered(const v1::Registered& registered);
  void OnRefusal(const v1::Refusal& refusal);
  void OnInitialize(const v1::Initialize& initialize);
  void OnNewView(const v1::NewView& message);
  void OnFinish(const v1::Finish& finish);

  // The attempt's table and layout are known.
  void SetLayout(const v1::TensorTable& table, const v1::Layout& layout);
  // Makes a newer view current: links, assignment, training mode.
  void Adopt(const v1::View& view);
  // Chooses the view's WorkerMode. A mode that is left gets the view as one without this worker.
  void ChooseMode(const v1::View& old);
  const WorkerMode* ModeOf(const v1::View& view) const;
  // Opens streams to the shards of the view or of the init request, and closes all others.
  void UpdateLinks();

  // Every frame of a shard. An error breaks the stream.
  absl::Status HandleFrame(ShardLink& link, const v1::Header& header, const absl::Cord& payload);
  void OnRefused(ShardLink& link, const v1::Refused& refused);
  // The stream is greeted: each part sends again what the previous stream may have lost.
  void OnLinkReady(ShardLink& link);

  void OnTensor(ComputeId id, uint32_t tensor, std::optional<Gradient> gradient);
  // Reports the failure and exits. The coordinator fails the job, or, if this worker was never a
  // member and others are ready, only expels it.
  void Fail(const absl::Status& status);
  void ExitNow(Exit exit);

  const WorkerRules all_rules_;
  const WorkerOptions options_;
  WorkerContext context_;
  WorkerOutput out_;
  Registration registration_;
  EvaluationQueue evaluations_;
  InitPusher init_pusher_;
  std::unique_ptr<WorkerMode> synchronous_, asynchronous_;
  WorkerMode* mode_ = nullptr;  // one of the two: the view's

  bool opening_ = false;
  bool was_member_ = false;
  bool exited_ = false;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_CORE_H_
