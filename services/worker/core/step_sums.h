// Sums of a step's computation over all members that compute in the step (docs/protocol.md 7.15).
//
// Intuition. A layer such as a synchronized batch norm computes with numbers of the whole step. The
// program gives this worker's part of each sum and waits; the owner of partition 0 adds the parts
// of all members and answers. The program needs its sums one after another, so at most one is
// outstanding.
//
// A sum belongs to one view. At a view change all members compute the step again from its
// beginning, so a gradient never contains sums of two views.
#ifndef SLUICE_SERVICES_WORKER_CORE_STEP_SUMS_H_
#define SLUICE_SERVICES_WORKER_CORE_STEP_SUMS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/worker/core/shard_link.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

// The sums of the computation in progress. The shard answers a sum once all members have given
// their parts, so a part is kept, and sent again on a new stream, until its answer has come.
class StepSums {
 public:
  // Both must outlive it.
  StepSums(const WorkerContext* context, WorkerOutput* out) : context_(context), out_(out) {}

  // Whether the job needs such sums.
  bool active() const { return context_->job.training().sync() == v1::TrainingSpec::BATCH_NORM; }

  // A member's part of a step is computed (again).
  void Begin(ComputeId id, uint64_t step);
  // Forgets the computation: parts that still come are ignored.
  void Stop() { *this = StepSums(context_, out_); }
  // The computation's part of the next sum. Ignored if the computation is not the current one.
  void OnSum(ComputeId id, std::string name, absl::Cord values);
  // The computation needs no further sum.
  void OnComputed(ComputeId id);
  // The stream to a shard is new: sends the unanswered part again if the shard owns partition 0.
  void OnLinkReady(const ShardLink& link);
  // The sum of all members' parts. Answers of another step or number are ignored.
  void OnAnswer(const v1::StepSumAnswer& answer, const absl::Cord& payload);

 private:
  struct Part {
    std::string name;
    absl::Cord values;
  };

  // Whether no other member computes in the step.
  bool IsAlone() const;
  // Sends a part to the owner of partition 0, if there is a stream.
  void Send(const Part& part);
  // Gives a sum to the computation, which waits for it.
  void Give(absl::Cord values);

  const WorkerContext* context_;
  WorkerOutput* out_;
  ComputeId id_ = 0;  // 0: nothing is computed
  uint64_t step_ = 0;
  uint32_t number_ = 0;       // of the next sum
  std::optional<Part> part_;  // given, and not answered
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_STEP_SUMS_H_
