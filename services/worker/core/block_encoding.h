// A block of a gradient, as it is pushed.
#ifndef SLUICE_SERVICES_WORKER_CORE_BLOCK_ENCODING_H_
#define SLUICE_SERVICES_WORKER_CORE_BLOCK_ENCODING_H_

#include "absl/strings/cord.h"
#include "proto/frame.pb.h"
#include "proto/job.pb.h"
#include "proto/model.pb.h"

namespace sluice::worker {

struct EncodedBlock {
  v1::Codec codec = v1::CODEC_RAW;
  absl::Cord payload;
};

// With training.pushCodec where that codec can carry the tensor's type, else raw. Raw blocks refer
// to the gradient's memory. With BitExact always raw: what is rounded on the wire would depend on
// where the tree is cut. `gradient` is the whole tensor's.
EncodedBlock EncodeBlock(const v1::TrainingSpec& training, const v1::TensorTable& table,
                         const v1::Block& block, const absl::Cord& gradient);

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_BLOCK_ENCODING_H_
