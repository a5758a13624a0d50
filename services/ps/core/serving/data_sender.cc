#include "services/ps/core/serving/data_sender.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/codec/codec.h"
#include "services/protocol/codec/rows.h"
#include "services/protocol/elements.h"
#include "services/ps/core/session/frame_checks.h"

namespace sluice::ps {

absl::StatusOr<Charge> ChargeParked(const ShardState& state, Outbox* out, const Stream& stream,
                                    uint64_t bytes) {
  if (*stream.parked_bytes + bytes > state.options().max_parked_bytes) {
    return out->Full(Bound::kParkedBytes,
                     absl::StrCat("waiting pulls of one stream take more than ",
                                  state.options().max_parked_bytes, " bytes"));
  }
  return Charge(stream.parked_bytes, bytes);
}

absl::StatusOr<SharedSelections> SelectionsOf(const ShardState& state, Outbox* out,
                                              const Stream& stream, const v1::Pull& pull,
                                              const absl::Cord& payload) {
  if (pull.rows().empty() && payload.empty()) return SharedSelections();
  if (state.ByReference()) {
    return absl::InvalidArgumentError("rows were requested of blocks that do not leave the shard");
  }
  struct Charged {
    RowSelections rows;
    Charge charge;
  };

  // The selection's memory counts against the stream's bound before any of it is allocated.
  constexpr uint64_t kSelection = 128;  // memory of one selection in addition to its numbers
  ASSIGN_OR_RETURN(Charge charge, ChargeParked(state, out, stream,
                                               payload.size() + pull.rows_size() * kSelection));
  ASSIGN_OR_RETURN(RowSelections rows, ReadSelections(pull, payload, state.model()->table()));

  // The caller sees the rows alone; the charge lives as long as they do.
  auto charged = std::make_shared<Charged>(Charged{std::move(rows), std::move(charge)});
  const RowSelections* const selections = &charged->rows;
  return SharedSelections(charged, selections);
}

uint64_t DataSender::Referring(StreamId stream) const {
  if (!state_.ByReference()) return 0;
  const Stream* const found = streams_.Find(stream);
  return found != nullptr && found->peer.role() == v1::WORKER ? found->incarnation() : 0;
}

DataSender::Piece DataSender::Encode(const BlockInfo& info, uint64_t version,
                                     const BlockRef& parameters) {
  Piece raw{v1::CODEC_RAW, CordOver(parameters)};
  const v1::Codec wanted = state_.job().training().pull_codec();
  if (wanted == v1::CODEC_RAW || info.kind != v1::PARAMETER) return raw;
  const absl::StatusOr<const Codec*> codec = FindCodec(wanted);
  if (!codec.ok() || !(*codec)->Supports(info.dtype).ok()) return raw;

  Encoded& encoded = encoded_[info.index];
  if (!encoded.piece.payload.empty() && encoded.version == version) return encoded.piece;
  const absl::StatusOr<size_t> most = (*codec)->EncodedBytes(info.count, info.dtype);
  if (!most.ok()) return raw;

  MutableBlockRef to = state_.pool()->Take(*most);
  const absl::StatusOr<size_t> bytes = (*codec)->Encode(
      ConstElements(info.dtype, parameters->bytes().data(), info.count), to->mutable_bytes());
  if (!bytes.ok()) return raw;
  SLUICE_DCHECK(*bytes <= *most, "an encoding stays within its codec's bound");

  encoded.version = version;
  encoded.piece = {wanted, CordOver(std::move(to)).Subcord(0, *bytes)};
  return encoded.piece;
}

DataSender::Piece DataSender::EncodeSelected(const BlockInfo& info, const BlockRef& parameters,
                                             const std::vector<uint64_t>& selected) const {
  const v1::TensorSpec& tensor = state_.model()->table().tensors(static_cast<int>(info.tensor));
  SLUICE_DCHECK(tensor.shape_size() == 2, "rows are selected of matrices");
  const RowCut cut{static_cast<uint64_t>(tensor.shape(1)), info.offset, info.count};
  const absl::Span<const uint64_t> rows = RowsIn(cut, selected);
  if (RowsBytes(cut, rows, info.dtype) >= info.bytes) {
    return {v1::CODEC_RAW, CordOver(parameters)};
  }
  return {v1::CODEC_ROWS, EncodeRowsOfBlock(cut, rows, info.dtype, parameters->bytes())};
}

void DataSender::SendFrames(StreamId stream, const v1::Data& common, const ShardModel& model,
                            std::vector<Piece> pieces) {
  SLUICE_DCHECK(pieces.size() == model.BlockCount(common.partition()), "a partition is sent whole");
  const uint32_t first = model.FirstBlock(common.partition());

  size_t at = 0;
  do {
    v1::Header header = state_.NewHeader();
    v1::Data& data = *header.mutable_data();
    data = common;
    absl::Cord payload;
    while (at < pieces.size() && (payload.empty() || payload.size() + pieces[at].payload.size() <=
                                                         state_.options().max_data_frame_bytes)) {
      v1::BlockHeader& block = *data.add_blocks();
      block.set_block(first + static_cast<uint32_t>(at));
      block.set_payload_bytes(pieces[at].payload.size());
      block.set_codec(pieces[at].codec);
      payload.Append(std::move(pieces[at].payload));
      ++at;
    }
    data.set_last(at == pieces.size());
    out_.Send(stream, std::move(header), std::move(payload));
  } while (at < pieces.size());
}

void DataSender::SendLive(StreamId stream, uint32_t partition, uint64_t version,
                          const std::vector<BlockState>& blocks, uint64_t request,
                          const RowSelections* rows) {
  v1::Data common;
  common.set_version(version);
  common.set_partition(partition);
  common.set_request(request);

  const uint32_t first = state_.model()->FirstBlock(partition);
  const uint64_t worker = Referring(stream);
  std::vector<Piece> pieces;
  pieces.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockInfo& info = state_.model()->block(first + i);
    const auto selected =
        rows != nullptr ? rows->find(info.tensor) : RowSelections::const_iterator();
    if (rows != nullptr && selected != rows->end()) {
      pieces.push_back(EncodeSelected(info, blocks[i].parameters, selected->second));
    } else if (worker != 0) {
      pieces.push_back(
          {v1::CODEC_RAW, state_.options().references->Hold(worker, *state_.model(), info,
                                                            CordOver(blocks[i].parameters))});
    } else {
      pieces.push_back(Encode(info, version, blocks[i].parameters));
    }
  }
  SendFrames(stream, common, *state_.model(), std::move(pieces));
}

void DataSender::SendPinned(StreamId stream, const PartitionContent& content, uint64_t snapshot,
                            uint64_t request) {
  v1::Data common;
  common.set_version(content.version);
  common.set_partition(content.partition);
  common.set_snapshot_id(snapshot);
  common.set_request(request);

  const uint32_t first = content.model->FirstBlock(content.partition);
  const uint64_t worker = Referring(stream);
  std::vector<Piece> pieces;
  pieces.reserve(content.blocks.size());
  for (size_t i = 0; i < content.blocks.size(); ++i) {
    absl::Cord parameters = CordOver(content.blocks[i].parameters);
    if (worker != 0) {
      parameters = state_.options().references->Hold(
          worker, *content.model, content.model->block(first + i), std::move(parameters));
    }
    pieces.push_back({v1::CODEC_RAW, std::move(parameters)});
  }
  SendFrames(stream, common, *content.model, std::move(pieces));
}

absl::Status DataSender::OnSnapshotPull(Stream& stream, const v1::Pull& pull,
                                        const Snapshots& snapshots) {
  RETURN_IF_ERROR(CheckSnapshotPull(pull));
  if (!snapshots.IsPinned(pull.snapshot_id())) {
    streams_.RefuseAlways(stream, absl::StrCat("snapshot ", pull.snapshot_id(), " is not pinned"),
                          pull.snapshot_id());
    return absl::OkStatus();
  }

  std::vector<uint32_t> wanted(pull.partitions().begin(), pull.partitions().end());
  if (wanted.empty()) wanted = state_.view()->owned();
  for (uint32_t number : wanted) {
    if (snapshots.Find(pull.snapshot_id(), number) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "snapshot ", pull.snapshot_id(), " has no partition ", number, " on this shard"));
    }
  }

  for (uint32_t number : wanted) {
    SendPinned(stream.id, *snapshots.Find(pull.snapshot_id(), number), pull.snapshot_id(),
               pull.request());
  }
  return absl::OkStatus();
}

}  // namespace sluice::ps
