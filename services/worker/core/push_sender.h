// Cuts gradients into Push frames, as they become final.
#ifndef SLUICE_SERVICES_WORKER_CORE_PUSH_SENDER_H_
#define SLUICE_SERVICES_WORKER_CORE_PUSH_SENDER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "services/worker/core/dense_reduction.h"
#include "services/worker/core/gradient_encoder.h"
#include "services/worker/core/step_gradients.h"
#include "services/worker/core/worker_context.h"

namespace sluice::worker {

// Keeps, for each partition, which blocks have been sent on the present stream to its owner. A
// frame goes out when kEagerBytes have come together or the partition has all it will get; the last
// one of a partition names it as complete.
class PushSender {
 public:
  // Fields that all frames of a step or update share.
  struct Common {
    uint64_t step = 0;
    uint64_t clock = 0;
    uint64_t samples = 0;
    uint64_t microbatches = 0;
    uint64_t ordinal = 0;
    bool pull_next = false;
    // Asynchronous with one shard: rides on the last frame.
    bool has_apply = false;
    v1::Apply apply;
  };

  explicit PushSender(WorkerContext* context)
      : context_(context), encoder_(context->job.training()) {}

  // Sends nothing any more.
  void Stop();
  // Everything that `gradients` holds and will hold is to be sent, and was not. With `reduction`
  // (null: none), of tensors that it covers the sums that this worker owns, in their place.
  void Start(const StepGradients* gradients, Common common,
             const DenseReduction* reduction = nullptr);
  bool active() const { return gradients_ != nullptr; }
  Common& common() { return common_; }
  // Told by the mode what becomes of the contributions that are sent here.
  GradientEncoder& encoder() { return encoder_; }

  // A unit's tensor is resolved.
  void OnResolved(const MicrobatchRange& unit, uint32_t tensor);
  // The sums of the reduction are there.
  void OnReduced();
  // What was sent to this shard does not count any more.
  void SendAgain(ShardId shard);
  // The partition needs nothing any more.
  void Close(uint32_t partition) { state_[partition].closed = true; }

  void Flush();
  // Every partition was named as complete, or closed.
  bool AllSent() const;
  bool AllSentTo(ShardId shard) const;

 private:
  static constexpr uint64_t kEagerBytes = uint64_t{1} << 18;

  struct Pending {
    MicrobatchRange unit;
    uint32_t block;
  };
  struct Partition {
    uint64_t unresolved = 0;  // (unit, block) pairs
    std::vector<Pending> pending;
    uint64_t pending_bytes = 0;
    bool named = false;
    bool closed = false;
  };
  struct Frame {
    v1::Header header;
    absl::Cord payload;
  };

  void ResetPartition(uint32_t partition);
  bool IsReduced(uint32_t block) const;
  void AddSum(uint32_t block);
  void FlushTo(ShardLink& link, const std::vector<uint32_t>& partitions);
  // `as_rows`: the shard takes rows of tables.
  void AppendFrames(uint32_t partition, bool as_rows, std::vector<Frame>* frames);
  uint64_t BytesOf(const Gradient& gradient, uint32_t block) const;
  Frame NewFrame() const;

  WorkerContext* const context_;
  GradientEncoder encoder_;
  const StepGradients* gradients_ = nullptr;
  const DenseReduction* reduction_ = nullptr;
  Common common_;
  std::vector<Partition> state_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_PUSH_SENDER_H_
