#ifndef SLUICE_SERVICES_PS_CORE_SERVING_DATA_SENDER_H_
#define SLUICE_SERVICES_PS_CORE_SERVING_DATA_SENDER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "proto/common.pb.h"
#include "proto/frame.pb.h"
#include "services/protocol/row_selection.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/serving/snapshots.h"
#include "services/ps/core/session/streams.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

// The rows that a pull selects; null: all blocks whole.
using SharedSelections = std::shared_ptr<const RowSelections>;

// The result of ReadSelections for a worker's pull; its memory counts as parked bytes of the stream
// as long as it lives. INVALID_ARGUMENT also if workers get references; RESOURCE_EXHAUSTED with
// max_parked_bytes.
absl::StatusOr<SharedSelections> SelectionsOf(const ShardState& state, Outbox* out,
                                              const Stream& stream, const v1::Pull& pull,
                                              const absl::Cord& payload);
// Charges the bytes of a waiting pull to its stream. RESOURCE_EXHAUSTED with max_parked_bytes.
absl::StatusOr<Charge> ChargeParked(const ShardState& state, Outbox* out, const Stream& stream,
                                    uint64_t bytes);

// Sends versions of partitions: frames of whole blocks over the blocks' own memory.
//
// Parameters are sent in the job's pull codec where their type allows it; each block is then
// encoded once for all pulls of the version. Buffers, counters and pinned versions are sent
// unencoded. With server-side execution, workers get references.
class DataSender {
 public:
  // All must outlive it.
  DataSender(const ShardState* state, Outbox* out, StreamTable* streams)
      : state_(*state), out_(*out), streams_(*streams) {}

  // Sends the selected rows, raw, of tensors that `rows` names, and other blocks whole. Null: sends
  // all blocks whole.
  void SendLive(StreamId stream, uint32_t partition, uint64_t version,
                const std::vector<BlockState>& blocks, uint64_t request, const RowSelections* rows);
  // Sends whole blocks of a pinned version, unencoded. `request`: the pull's number, which each
  // frame repeats.
  void SendPinned(StreamId stream, const PartitionContent& content, uint64_t snapshot,
                  uint64_t request);
  // Answers a pull of a snapshot: sends the partitions that it names, or all that this shard owns.
  // A snapshot that is not pinned is refused. INVALID_ARGUMENT if it lacks a partition.
  absl::Status OnSnapshotPull(Stream& stream, const v1::Pull& pull, const Snapshots& snapshots);

  // Drops the encoded blocks, because a version number may get another meaning.
  void Forget() { encoded_.clear(); }

 private:
  // One block as it is sent.
  struct Piece {
    v1::Codec codec = v1::CODEC_RAW;
    absl::Cord payload;
  };
  // The newest encoding of a block, kept for further pulls of the same version.
  struct Encoded {
    uint64_t version = 0;
    Piece piece;
  };

  // The worker behind a stream, if it gets references; else 0.
  uint64_t Referring(StreamId stream) const;
  // Encodes parameters in the job's pull codec; falls back to raw bytes for other kinds and for
  // types that the codec does not support.
  Piece Encode(const BlockInfo& info, uint64_t version, const BlockRef& parameters);
  // Encodes the selected rows, or the whole block where that is not larger.
  Piece EncodeSelected(const BlockInfo& info, const BlockRef& parameters,
                       const std::vector<uint64_t>& selected) const;
  // Sends the pieces, one for each block of the partition, in frames of at most
  // max_data_frame_bytes unless a single block is larger. At least one frame is sent; the last is
  // marked as the last.
  void SendFrames(StreamId stream, const v1::Data& common, const ShardModel& model,
                  std::vector<Piece> pieces);

  const ShardState& state_;
  Outbox& out_;
  StreamTable& streams_;
  absl::flat_hash_map<uint32_t, Encoded> encoded_;  // by block
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_SERVING_DATA_SENDER_H_
