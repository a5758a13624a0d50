#include "services/worker/core/version_receiver.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/rows.h"

namespace sluice::worker {

void VersionReceiver::Reset(const v1::Layout* layout, const LayoutIndex* index, bool by_reference) {
  SLUICE_DCHECK(index->blocks() == static_cast<size_t>(layout->blocks_size()),
                "an index is that of its layout");
  layout_ = layout;
  index_ = index;
  by_reference_ = by_reference;

  rows_ = nullptr;
  whole_ = 0;
  state_.assign(index->partitions(), Partition());

  for (uint32_t partition = 0; partition < index->partitions(); ++partition) {
    Partition& state = state_[partition];
    state.missing = index->BlocksOfPartition(partition).size();
    state.received.assign(state.missing, false);
    state.whole = state.missing == 0;
    if (state.whole) ++whole_;
  }
}

void VersionReceiver::ForgetPartial() {
  for (uint32_t partition = 0; partition < state_.size(); ++partition) ForgetPartial(partition);
}

void VersionReceiver::ForgetPartial(uint32_t partition) {
  SLUICE_DCHECK(partition < state_.size(), "a partition is one of the layout");
  Partition& state = state_[partition];
  if (state.whole) return;
  state.missing = state.received.size();
  std::fill(state.received.begin(), state.received.end(), false);
}

absl::Status VersionReceiver::Check(const v1::Data& data, const absl::Cord& payload) const {
  if (data.partition() >= state_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data of partition ", data.partition(), " of ", state_.size()));
  }

  uint64_t bytes = 0;
  for (const v1::BlockHeader& block : data.blocks()) {
    if (block.block() >= index_->blocks() ||
        layout_->blocks(static_cast<int>(block.block())).partition() != data.partition()) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", block.block(), " is not of partition ", data.partition()));
    }
    if (block.payload_bytes() > payload.size() - bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", block.block(), " is longer than its frame"));
    }
    if (!by_reference_ && block.codec() == v1::CODEC_RAW &&
        block.payload_bytes() != index_->bytes(block.block())) {
      return absl::InvalidArgumentError(absl::StrCat("block ", block.block(), " has ",
                                                     block.payload_bytes(), " bytes, not ",
                                                     index_->bytes(block.block())));
    }
    if (block.codec() == v1::CODEC_ROWS) {
      RETURN_IF_ERROR(CheckRows(layout_->blocks(static_cast<int>(block.block())),
                                payload.Subcord(bytes, block.payload_bytes())));
    }
    bytes += block.payload_bytes();
  }

  if (bytes != payload.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", payload.size(), " bytes holds blocks of ", bytes));
  }
  return absl::OkStatus();
}

absl::Status VersionReceiver::CheckRows(const v1::Block& block, const absl::Cord& payload) const {
  const auto wanted =
      rows_ != nullptr ? rows_->find(block.tensor()) : RowSelections::const_iterator();
  if (rows_ == nullptr || wanted == rows_->end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of tensor ", block.tensor(), ", which were not requested"));
  }

  const v1::TensorSpec& tensor = table_->tensors(static_cast<int>(block.tensor()));
  ASSIGN_OR_RETURN(const RowParts parts, SplitRows(payload, tensor.dtype(), block.count()));
  const RowCut cut{static_cast<uint64_t>(tensor.shape(1)), block.offset(), block.count()};
  const absl::Span<const uint64_t> rows = RowsIn(cut, wanted->second);

  const bool same = rows.size() == parts.parts.size() &&
                    std::equal(rows.begin(), rows.end(), parts.parts.begin(),
                               [&](uint64_t row, const RowPart& part) {
                                 const RowPart asked = PartOf(cut, row);
                                 return asked.offset == part.offset && asked.count == part.count;
                               });
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("rows of '", tensor.name(), "' are not the ",
                                                 rows.size(), " that were requested"));
}

absl::Status VersionReceiver::Accept(const v1::Data& data, const absl::Cord& payload,
                                     WorkerActions* actions) {
  RETURN_IF_ERROR(Check(data, payload));
  Partition& state = state_[data.partition()];
  if (state.whole) return absl::OkStatus();

  const std::vector<uint32_t>& blocks = index_->BlocksOfPartition(data.partition());
  uint64_t at = 0;
  for (const v1::BlockHeader& header : data.blocks()) {
    const v1::Block& block = layout_->blocks(static_cast<int>(header.block()));

    StoreBlock store;
    store.buffer = buffer_;
    store.block = header.block();
    store.tensor = block.tensor();
    store.offset = block.offset();
    store.count = block.count();
    store.codec = header.codec();
    store.payload = payload.Subcord(at, header.payload_bytes());
    at += header.payload_bytes();
    actions->push_back(std::move(store));

    const size_t place = static_cast<size_t>(
        std::lower_bound(blocks.begin(), blocks.end(), header.block()) - blocks.begin());
    SLUICE_DCHECK(place < blocks.size() && blocks[place] == header.block(),
                  "a block that was checked is of the partition");
    SLUICE_DCHECK(state.received[place] || state.missing > 0, "missing blocks are counted");
    if (!state.received[place]) --state.missing;
    state.received[place] = true;
  }

  if (!data.last()) return absl::OkStatus();
  if (state.missing != 0) {
    return absl::InvalidArgumentError(absl::StrCat("partition ", data.partition(), " ends with ",
                                                   state.missing, " blocks missing"));
  }

  state.whole = true;
  state.version = data.version();
  ++whole_;
  SLUICE_DCHECK(whole_ <= state_.size(), "a partition becomes whole once");
  return absl::OkStatus();
}

}  // namespace sluice::worker
