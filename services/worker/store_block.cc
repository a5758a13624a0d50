#include "services/worker/store_block.h"

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/elements.h"

namespace sluice::worker {
namespace {

// Leaves all other rows unchanged.
absl::Status StoreRows(v1::DataType dtype, const StoreBlock& block, SetRange set) {
  ASSIGN_OR_RETURN(const RowParts rows, SplitRows(block.payload, dtype, block.count));

  absl::Cord::CharIterator at = block.payload.char_begin();
  absl::Cord::Advance(&at, rows.values_at);
  for (const RowPart& part : rows.parts) {
    RETURN_IF_ERROR(set(block.buffer, block.tensor, block.offset + part.offset,
                        absl::Cord::AdvanceAndRead(&at, part.count * ElementBytes(dtype))));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StoreInto(const v1::TensorTable& table, const StoreBlock& block, SetRange set) {
  if (block.codec == v1::CODEC_RAW) {
    return set(block.buffer, block.tensor, block.offset, block.payload);
  }
  if (block.tensor >= static_cast<uint32_t>(table.tensors_size())) {
    return absl::OutOfRangeError(absl::StrCat("there is no tensor ", block.tensor));
  }
  const v1::DataType dtype = table.tensors(static_cast<int>(block.tensor)).dtype();
  if (block.codec == v1::CODEC_ROWS) return StoreRows(dtype, block, set);

  ASSIGN_OR_RETURN(const Codec* const codec, FindCodec(block.codec));
  std::string raw(block.count * ElementBytes(dtype), '\0');
  RETURN_IF_ERROR(codec->Decode(block.payload, {dtype, raw.data(), block.count}));
  return set(block.buffer, block.tensor, block.offset, absl::Cord(std::move(raw)));
}

}  // namespace sluice::worker
