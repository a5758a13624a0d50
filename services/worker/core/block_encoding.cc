#include "services/worker/core/block_encoding.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/elements.h"

namespace sluice::worker {
namespace {

// A failure means that the codec cannot carry these values: then they go as they are.
absl::StatusOr<absl::Cord> Encode(const Codec& codec, v1::DataType dtype, uint64_t count,
                                  const absl::Cord& raw) {
  if (absl::Status supported = codec.Supports(dtype); !supported.ok()) return supported;
  absl::StatusOr<size_t> size = codec.EncodedBytes(count, dtype);
  if (!size.ok()) return size.status();
  // Aligned for every element type.
  std::vector<uint64_t> values((raw.size() + 7) / 8);
  char* to = reinterpret_cast<char*>(values.data());
  for (absl::string_view chunk : raw.Chunks()) to = std::copy(chunk.begin(), chunk.end(), to);
  auto encoded = std::make_shared<std::vector<char>>(*size);
  // No codec with error feedback is built yet: nothing is carried from step to step.
  std::vector<float> residual(codec.ResidualCount(count));
  absl::StatusOr<size_t> written = codec.Encode(ConstElements(dtype, values.data(), count),
                                                absl::MakeSpan(residual), absl::MakeSpan(*encoded));
  if (!written.ok()) return written.status();
  return absl::MakeCordFromExternal(absl::string_view(encoded->data(), *written),
                                    [encoded](absl::string_view) {});
}

}  // namespace

EncodedBlock EncodeBlock(const v1::TrainingSpec& training, const v1::TensorTable& table,
                         const v1::Block& block, const absl::Cord& gradient) {
  const v1::DataType dtype = table.tensors(static_cast<int>(block.tensor())).dtype();
  const uint64_t element = ElementBytes(dtype);
  EncodedBlock result;
  result.payload = gradient.Subcord(block.offset() * element, block.count() * element);
  if (training.push_codec() == v1::CODEC_RAW || training.bit_exact()) return result;
  absl::StatusOr<const Codec*> codec = FindCodec(training.push_codec());
  if (!codec.ok()) return result;
  absl::StatusOr<absl::Cord> encoded = Encode(**codec, dtype, block.count(), result.payload);
  if (encoded.ok()) {
    result.codec = training.push_codec();
    result.payload = *std::move(encoded);
  }
  return result;
}

}  // namespace sluice::worker
