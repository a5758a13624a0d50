// Encodes blocks of gradients for pushes. With server-side execution, gradients are references
// (proto/stage.proto) and are sent as they are, one for each block.
//
// Intuition. A lossy codec drops a part of each gradient. With error feedback the worker keeps that
// part, the block's *residual*, and adds it to the block's next gradient before it encodes that:
// nothing is lost, it only arrives late.
//
//   sent = encode(gradient + residual);  residual <- gradient + residual - decode(sent)
//
// The residual is part of the worker's state, so it has to follow the fate of the contribution.
// A block encoded in a step (an asynchronous update) is kept until the step's fate is known, and
// encoding it again gives the same bytes: all shards receive the same, whether they have the block
// already or not.
//
//   Commit     the contribution is part of the next version: the new residuals become the residuals
//   Rollback   it is not, and will be encoded again: the residuals are what they were before it
//   Reset      the state is another one (a new attempt): there are no residuals
#ifndef SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_ENCODER_H_
#define SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_ENCODER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/types/span.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"
#include "services/worker/core/gradients/gradient.h"
#include "services/worker/core/gradients/step_gradients.h"

namespace sluice::worker {

// A block as it is pushed: the codec in which the shard decodes it, and the bytes.
struct EncodedBlock {
  v1::Codec codec = v1::CODEC_RAW;
  absl::Cord payload;
};

class GradientEncoder {
 public:
  // Encodes in the codec of `training`; content that the codec cannot carry is sent raw. With
  // BitExact everything is: what is rounded on the wire would depend on where the reduction tree is
  // cut.
  explicit GradientEncoder(const v1::TrainingSpec& training);

  // A block of a partial sum's gradient of `tensor`; `number` is its index in the layout,
  // `gradient` is the whole tensor's. A gradient of rows is sent as rows, whatever the job's codec,
  // if `as_rows` is set and rows are smaller than the whole block: nothing is dropped, so it has no
  // residual. Raw blocks refer to the gradient's memory. Partial sums of one step that share a
  // block pass its residual on in the order in which they are first encoded. Buffers are always
  // sent raw: their changes are no gradients, and nothing would make up for an error.
  EncodedBlock Encode(const MicrobatchRange& partial_sum, uint32_t number, const v1::Block& block,
                      const v1::TensorSpec& tensor, const Gradient& gradient, bool as_rows);

  // ---- the fate of the contribution: see the head of this file
  void Commit();
  void Rollback();
  void Reset();

 private:
  using Residual = std::vector<float>;  // one element each; empty: zeros
  using Key = std::tuple<uint64_t, uint64_t, uint32_t>;

  // Encodes the values. With error feedback, adds the residual before, and keeps the new residual.
  absl::StatusOr<absl::Cord> EncodeValues(uint32_t number, Elements values);
  // Adds the block's residual, of an earlier step or of an earlier partial sum of this one.
  void TakeResidual(uint32_t number, Elements values);

  std::unique_ptr<const Codec> codec_;  // null: everything is sent raw
  const bool error_feedback_;
  const bool by_reference_;
  std::map<uint32_t, Residual> residuals_;
  // The residuals of the step in progress.
  std::map<uint32_t, Residual> next_residuals_;
  std::map<Key, EncodedBlock> encoded_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_GRADIENTS_GRADIENT_ENCODER_H_
