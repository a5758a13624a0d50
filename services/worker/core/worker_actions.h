// What a WorkerCore asks its shell to do. Actions are carried out in the order given.
#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_ACTIONS_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_ACTIONS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/sequence.h"
#include "services/worker/collective/reduction_plan.h"
#include "services/worker/compute/compute_engine.h"

namespace sluice::worker {

// A shard, by incarnation: another life of the same index is another shard.
using ShardId = uint64_t;

// A FindRows. Never used twice in a process.
using RowsId = uint64_t;

// Work for the compute thread (gradients or an evaluation). Never used twice in a process.
using ComputeId = uint64_t;

// ---- streams

// Open a stream to a shard; OnShardConnected or OnShardBroken follows. The core does the backing
// off: it asks again by itself. Never given while a stream to that shard is open or being opened.
struct ConnectShard {
  ShardId shard = 0;
  std::string address;
};

// Close the stream, connected or not. Nothing of it is reported afterwards.
struct DisconnectShard {
  ShardId shard = 0;
  std::string reason;
};

// On the open stream; lost silently if it broke in the meantime. The payload refers to gradients'
// memory.
struct SendFrame {
  ShardId shard = 0;
  v1::Header header;
  absl::Cord payload;
};

// On the open stream to the coordinator; given only between OnCoordinatorConnected and
// OnCoordinatorBroken.
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
  v1::AskId ask;
  uint32_t tensor = 0;
};

// Write a block of parameters, at once (before the next action). Refers to the received slices:
// decode with `codec` and drop.
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

// Gradients of these positions of the sample sequence over the current buffer, as one batch. The
// compute thread works through Compute and EvaluateSamples in the order given, and reports
// OnGradient, OnNoGradient, OnBufferChange while it goes and one OnComputed at the end.
struct Compute {
  ComputeId id = 0;
  uint64_t step = 0;  // with first_microbatch, what dropout is seeded by
  uint64_t first_microbatch = 0;
  uint64_t microbatch_size = 0;
  PositionRange positions;  // never empty
};

// Find the rows of embedding tables that computing these positions reads (ComputeEngine::RowsOf);
// OnRows follows. Behind the computations given before: while they run, nothing waits for it.
struct FindRows {
  RowsId id = 0;
  std::vector<PositionRange> positions;  // ascending, none empty
};

// The result is not wanted any more. The shell may skip or stop the work, or not; OnComputed must
// come in any case, and until it has come the current buffer is not touched.
struct CancelCompute {
  ComputeId id = 0;
};

// Positions of the held-out data; OnEvaluated follows.
struct EvaluateSamples {
  ComputeId id = 0;
  ComputeEngine::Buffer buffer = ComputeEngine::Buffer::kCurrent;
  PositionRange samples;
};

// ---- sums among workers (docs/protocol.md 7.12)

// The worker sums dense gradients with the other members of this view, in place of those of an
// older one: what is in progress there is not wanted any more.
struct JoinGroup {
  v1::ViewId view;
  std::shared_ptr<const ReductionPlan> plan;
  absl::Duration silence;  // a connection is broken whose other side is silent for so long
};

struct LeaveGroup {};

// Sum with the others of the present group; OnReduced follows, unless it is left before. Once for
// each step of a view.
struct ReduceGradients {
  uint64_t step = 0;
  DenseGradients gradients;
};

// ---- the end

enum class ExitReason {
  kFinished,  // the job succeeded: exit 0
  kLeft,      // as it was asked to: exit 0
  kExpelled,  // come back as a new incarnation
  kRefused,   // coming back would not help (wrong job, model differs, ...)
  kFailed,    // the job failed, or this worker's model or data did: Exit::message tells
};

// The last action of all.
struct Exit {
  ExitReason reason = ExitReason::kFinished;
  std::string message;
};

using WorkerAction =
    std::variant<ConnectShard, DisconnectShard, SendFrame, SendToCoordinator, OpenModel,
                 ReadInitialTensor, StoreBlock, AdoptVersion, Compute, FindRows, CancelCompute,
                 EvaluateSamples, JoinGroup, LeaveGroup, ReduceGradients, Exit>;
using WorkerActions = std::vector<WorkerAction>;

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_ACTIONS_H_
