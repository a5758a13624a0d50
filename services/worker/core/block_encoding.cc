#include "services/worker/core/block_encoding.h"

#include <cstdint>

#include "services/protocol/elements.h"

namespace sluice::worker {

EncodedBlock EncodeBlock(const v1::TrainingSpec& training, const v1::TensorTable& table,
                         const v1::Block& block, const absl::Cord& gradient) {
  (void)training;
  const uint64_t element = ElementBytes(table.tensors(static_cast<int>(block.tensor())).dtype());
  EncodedBlock encoded;
  encoded.payload = gradient.Subcord(block.offset() * element, block.count() * element);
  return encoded;
}

}  // namespace sluice::worker
