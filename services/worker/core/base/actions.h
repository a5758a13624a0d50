// The actions that a WorkerCore requests from its shell, executed in the order given.
#ifndef SLUICE_SERVICES_WORKER_CORE_BASE_ACTIONS_H_
#define SLUICE_SERVICES_WORKER_CORE_BASE_ACTIONS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/member_exit.h"
#include "services/protocol/samples/sequence.h"
#include "services/worker/collective/reduction_plan.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice::worker {

// A shard, by incarnation: another instance of the same index is another shard.
using ShardId = uint64_t;

// Identifies a FindRows. Never used twice in a process.
using RowsId = uint64_t;

// Identifies a ComputeMetrics. Never used twice in a process.
using MetricsId = uint64_t;

// Work for the compute thread (gradients or an evaluation). Never used twice in a process.
using ComputeId = uint64_t;

// ---- streams

// Open a stream to a shard; OnShardConnected or OnShardDisconnected follows. The core backs off: it
// repeats the action by itself. Never given while a stream to that shard is open or being opened.
struct ConnectShard {
  ShardId shard = 0;
  std::string address;
};

// Close the stream, connected or not. None of its events are reported afterwards.
struct DisconnectShard {
  ShardId shard = 0;
  std::string reason;
};

// Send on the open stream; lost silently if the stream broke in the meantime. The payload refers to
// the gradients' memory.
struct SendFrame {
  ShardId shard = 0;
  v1::Header header;
  absl::Cord payload;
};

// Send on the open stream to the coordinator; given only between OnCoordinatorConnected and
// OnCoordinatorDisconnected.
struct SendToCoordinator {
  v1::MemberMessage message;
};

// ---- model and compute

// Open model and data; OnModelReady or OnModelFailed follows. Once in a process.
struct OpenModel {
  v1::JobSpec job;
};

// Read a tensor of version 0 (ComputeEngine::InitialTensor); OnInitialTensor follows.
struct ReadInitialTensor {
  v1::InitId init_id;
  uint32_t tensor = 0;
};

// Write a block of parameters, at once (before the next action). Refers to the received slices:
// decode with `codec` and drop the reference.
struct StoreBlock {
  ComputeEngine::Buffer buffer = ComputeEngine::Buffer::kIncoming;
  uint32_t block = 0;   // of the layout
  uint32_t tensor = 0;  // ... which is these elements of this tensor
  uint64_t offset = 0;
  uint64_t count = 0;
  v1::Codec codec = v1::CODEC_RAW;
  absl::Cord payload;
};

// Make the incoming buffer current, at once. Given only when every Compute and EvaluateSamples was
// answered, so the compute thread is idle and the shell may call the engine itself.
struct AdoptVersion {
  uint64_t version = 0;
};

// Compute the gradients of these positions of the sample sequence over the current buffer, as one
// batch. The compute thread executes Compute and EvaluateSamples in the order given. It reports
// OnGradient, OnNoGradient and OnBufferChange while it computes and one OnComputed at the end.
struct Compute {
  ComputeId id = 0;
  uint64_t step = 0;  // with first_microbatch, seeds dropout
  uint64_t first_microbatch = 0;
  uint64_t microbatch_size = 0;
  PositionRange positions;  // never empty
};

// Find the rows of embedding tables that computing these positions reads (ComputeEngine::RowsOf);
// OnRows follows. Runs after the computations given before: while they run, nothing waits for it.
struct FindRows {
  RowsId id = 0;
  std::vector<PositionRange> positions;  // ascending, none empty
};

// The result is no longer needed. The shell may skip or stop the work, or not; OnComputed must
// follow in any case, and until it has followed the current buffer is not touched.
struct CancelCompute {
  ComputeId id = 0;
};

// The result of one Compute or EvaluateSamples.
struct ComputeResult {
  absl::Status status;  // not OK: the model or the data failed, which fails the job
  uint64_t samples = 0;
  double loss_sum = 0;
  std::optional<double> weight;  // EvaluationResult.weight (EvaluateSamples only)
  double correct = 0;
  bool counted = false;  // whether `correct` was counted: the loss is a classification's
  // EvaluateSamples only: one for each of Ready.metrics.
  std::vector<v1::MetricState> metrics;
  absl::Duration data_time;     // for reading and assembling the batch
  absl::Duration compute_time;  // for forward and backward
};

// Evaluate these positions of the held-out data; OnEvaluated follows.
struct EvaluateSamples {
  ComputeId id = 0;
  ComputeEngine::Buffer buffer = ComputeEngine::Buffer::kCurrent;
  PositionRange samples;
};

// Merge the states of the program's own metrics and compute their values; OnMetricValues follows.
// Needs no version of the model.
struct ComputeMetrics {
  MetricsId id = 0;
  v1::ComputeMetrics request;
};

// ---- sums among workers (docs/protocol.md 7.12)

// The worker sums dense gradients with the other members of this view, in place of those of an
// older view: sums in progress there are no longer needed.
struct JoinGroup {
  v1::ViewId view;
  std::shared_ptr<const ReductionPlan> plan;
  absl::Duration idle_timeout;  // after which a connection with a silent peer is broken
};

// The worker is not in a group any more: sums in progress are dropped, connections are closed.
struct LeaveGroup {};

// Sum with the other members of the current group; OnReduced follows, unless the worker leaves the
// group before. Once for each step of a view.
struct ReduceGradients {
  uint64_t step = 0;
  DenseGradients gradients;
};

// ---- sums over a step (docs/protocol.md 7.15)

// The sum that the computation waits for (WorkerCore::OnSum): float64, little endian.
struct GiveSum {
  ComputeId id = 0;
  absl::Cord values;
};

// Exit is the last action.
using WorkerAction = std::variant<ConnectShard, DisconnectShard, SendFrame, SendToCoordinator,
                                  OpenModel, ReadInitialTensor, StoreBlock, AdoptVersion, Compute,
                                  FindRows, CancelCompute, EvaluateSamples, ComputeMetrics,
                                  JoinGroup, LeaveGroup, ReduceGradients, GiveSum, Exit>;
// Everything that one event requests, in order.
using WorkerActions = std::vector<WorkerAction>;

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_BASE_ACTIONS_H_
