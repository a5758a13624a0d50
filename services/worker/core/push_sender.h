// Divides gradients into Push frames as they become final.
#ifndef SLUICE_SERVICES_WORKER_CORE_PUSH_SENDER_H_
#define SLUICE_SERVICES_WORKER_CORE_PUSH_SENDER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/worker/core/dense_reduction.h"
#include "services/worker/core/gradients/gradient_encoder.h"
#include "services/worker/core/gradients/step_gradients.h"
#include "services/worker/core/worker_context.h"
#include "services/worker/core/worker_output.h"

namespace sluice::worker {

// Keeps, for each partition, which blocks were sent to its owner on the current stream. A frame is
// sent when kEagerBytes have accumulated or when the partition has all that it will get; the last
// frame of a partition marks it as complete.
class PushSender {
 public:
  // Fields that all frames of a step or update share.
  struct Common {
    uint64_t step = 0;
    uint64_t clock = 0;
    uint64_t samples = 0;
    uint64_t microbatches = 0;
    uint64_t ordinal = 0;
    std::optional<double> weight;  // absent: `samples`; known before anything is complete
    bool pull_next = false;
    // asynchronous with one shard: is sent with the last frame
    bool has_apply = false;
    v1::Apply apply;
  };

  PushSender(const WorkerContext* context, WorkerOutput* out)
      : context_(context), out_(out), encoder_(context->job.training()) {}

  // Stops sending.
  void Stop();
  // Everything that `gradients` holds and will hold is to be sent, and has not been sent. With
  // `reduction` (null: none), tensors that it covers are replaced by the sums that this worker
  // owns.
  void Start(const StepGradients* gradients, Common common,
             const DenseReduction* reduction = nullptr);
  // Whether Start was called, and Stop was not called since.
  bool active() const { return gradients_ != nullptr; }
  Common& common() { return common_; }
  // The mode reports to it the fate of the contributions that are sent here.
  GradientEncoder& encoder() { return encoder_; }

  // A partial sum's tensor is resolved.
  void OnResolved(const MicrobatchRange& partial_sum, uint32_t tensor);
  // The sums of the reduction are ready.
  void OnReduced();
  // Everything that was sent to this shard has to be sent again.
  void SendAgain(ShardId shard);
  // The partition needs no further pushes.
  void Close(uint32_t partition) { state_[partition].closed = true; }

  // Sends, on streams that are ready, the resolved blocks of each partition that is complete or has
  // at least kEagerBytes of them.
  void Flush();
  // Whether every partition was marked as complete, or closed.
  bool AllSent() const;
  // The same for the partitions of one shard; true if the shard owns none.
  bool AllSentTo(ShardId shard) const;

 private:
  static constexpr uint64_t kEagerBytes = uint64_t{1} << 18;

  // A block that is resolved and not sent yet.
  struct Pending {
    MicrobatchRange partial_sum;
    uint32_t block;
  };
  // The state of a partition's pushes on the current stream to its owner.
  struct Partition {
    uint64_t unresolved = 0;  // (partial sum, block) pairs
    std::vector<Pending> pending;
    uint64_t pending_bytes = 0;
    bool named = false;
    bool closed = false;
  };
  // A push under construction.
  struct Frame {
    v1::Header header;
    absl::Cord payload;
  };

  // Recomputes what is unresolved and pending, as if nothing of the partition had been sent.
  void ResetPartition(uint32_t partition);
  // Whether the block's gradient is summed among the workers, so that it is not pushed itself.
  bool IsReduced(uint32_t block) const;
  // Makes the group's sum of a block that this worker owns pending.
  void AddSum(uint32_t block);
  // Sends to one shard. A complete partition is named in its last frame, or in the shard's last
  // frame if it has no block to send.
  void FlushTo(ShardLink& link, const std::vector<uint32_t>& partitions);
  // `as_rows`: the shard accepts rows of tables.
  void AppendFrames(uint32_t partition, bool as_rows, std::vector<Frame>* frames);
  // Bytes of the block in the gradient, before encoding; used to decide when to send.
  uint64_t BytesOf(const Gradient& gradient, uint32_t block) const;
  // A frame with the fields of `common` that every push has.
  Frame NewFrame() const;

  const WorkerContext* const context_;
  WorkerOutput* const out_;
  GradientEncoder encoder_;
  const StepGradients* gradients_ = nullptr;
  const DenseReduction* reduction_ = nullptr;
  Common common_;
  std::vector<Partition> state_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_PUSH_SENDER_H_
