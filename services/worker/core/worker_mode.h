// The part of a WorkerCore that depends on how the job trains.
#ifndef SLUICE_SERVICES_WORKER_CORE_WORKER_MODE_H_
#define SLUICE_SERVICES_WORKER_CORE_WORKER_MODE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/row_selection.h"
#include "services/worker/collective/reduction_plan.h"
#include "services/worker/core/base/actions.h"
#include "services/worker/core/gradients/gradient.h"
#include "services/worker/core/shard_link.h"

namespace sluice::worker {

class WorkerMode {
 public:
  virtual ~WorkerMode() = default;

  // The context's view is new; `old` was the view before. The queues of all streams are empty.
  virtual void OnView(const v1::View& old) = 0;
  // A stream to a shard of the view is new: nothing that was sent to the shard before counts.
  virtual void OnLinkReady(ShardLink& link) = 0;
  // A frame of the current view, or one that concerns the mode anyway. An error breaks the stream.
  virtual absl::Status OnFrame(ShardLink& link, const v1::Header& header,
                               const absl::Cord& payload) = 0;
  // The weight of a Compute's samples, before its first gradient: valid (IsWeight).
  virtual void OnWeight(ComputeId id, double weight) = 0;
  // The part of a Compute in a sum over all members that compute in its step: GiveSum follows,
  // unless the Compute is cancelled before.
  virtual void OnSum(ComputeId id, std::string name, absl::Cord values) = 0;
  // Part of the result of a Compute; nullopt: no gradient. An error fails the job.
  virtual absl::Status OnTensor(ComputeId id, uint32_t tensor,
                                std::optional<Gradient> gradient) = 0;
  // The end of a Compute that succeeded or was cancelled. Ids that the mode does not await are
  // ignored.
  virtual absl::Status OnComputed(ComputeId id, const ComputeResult& result) = 0;

  // The result of a ReduceGradients. An error fails the job.
  virtual absl::Status OnReduced(const v1::ViewId& view, uint64_t step,
                                 absl::StatusOr<ReducedPart> part) = 0;

  // The result of a FindRows.
  virtual void OnRows(RowsId id, RowSelections rows) = 0;

  // The two halves of the work after each event. Adopt makes a version current that is whole.
  // Proceed computes, sends and requests what is due. Evaluations run between the two.
  virtual void Adopt() = 0;
  virtual void Proceed() = 0;

  // The committed version that the current buffer holds; nullopt if that is not known.
  virtual std::optional<uint64_t> CurrentVersion() const = 0;
  // For logs and metrics: the current step, or the clock of asynchronous training.
  virtual uint64_t Step() const = 0;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_WORKER_MODE_H_
