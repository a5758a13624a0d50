#include "services/transport/frames/frame.h"

#include <grpc/slice.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "services/common/threads/tsan.h"

namespace sluice {
namespace {

// Pieces of at most this size are copied: a copy costs less than keeping a reference.
constexpr size_t kCopyBytes = 4096;

// A payload that is being sent. The slices that refer to it keep it alive.
class PayloadHolder {
 public:
  explicit PayloadHolder(const absl::Cord& payload) : payload_(payload) {}

  const absl::Cord& payload() const { return payload_; }

  grpc::Slice Share(absl::string_view chunk) {
    references_.fetch_add(1, std::memory_order_relaxed);
    internal::BeforeGrpc(this);
    return grpc::Slice(const_cast<char*>(chunk.data()), chunk.size(), &PayloadHolder::Release,
                       this);
  }

  static void Release(void* holder) {
    internal::AfterGrpc(holder);
    auto* self = static_cast<PayloadHolder*>(holder);
    if (self->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete self;
  }

 private:
  const absl::Cord payload_;
  std::atomic<int> references_{1};
};

absl::Cord ToCord(const grpc::Slice& slice) {
  const absl::string_view bytes(reinterpret_cast<const char*>(slice.begin()), slice.size());
  if (bytes.size() <= kCopyBytes) return absl::Cord(bytes);
  // The releaser owns a copy of the slice, and so keeps its bytes alive.
  return absl::MakeCordFromExternal(bytes, [slice] {});
}

}  // namespace

OutgoingFrames::OutgoingFrames(const v1::Header& header, const absl::Cord& payload) : count_(1) {
  const size_t prefix_bytes = FramePrefixBytes(header, payload.size());
  const bool copied = payload.size() <= kCopyBytes;
  bytes_ = prefix_bytes + payload.size();

  slices_.reserve(3);
  slices_.emplace_back(EncodeBatchPrefix(bytes_));  // so short that the slice holds it itself

  grpc_slice head = grpc_slice_malloc(copied ? bytes_ : prefix_bytes);
  uint8_t* to = GRPC_SLICE_START_PTR(head);
  WriteFramePrefix(header, payload.size(), to);
  if (copied) {
    to += prefix_bytes;
    for (const absl::string_view chunk : payload.Chunks()) {
      to = std::copy(chunk.begin(), chunk.end(), to);
    }
  }

  slices_.emplace_back(head, grpc::Slice::STEAL_REF);  // a short one holds its bytes itself
  if (copied) return;

  auto* holder = new PayloadHolder(payload);
  for (const absl::string_view chunk : holder->payload().Chunks()) {
    slices_.push_back(chunk.size() <= kCopyBytes ? grpc::Slice(chunk.data(), chunk.size())
                                                 : holder->Share(chunk));
  }
  PayloadHolder::Release(holder);
}

OutgoingFrames::OutgoingFrames(const v1::Header& header, const v1::SharedPayload& place)
    : count_(1) {
  const std::string frame = EncodeSharedFrame(header, place);
  bytes_ = frame.size();
  slices_.reserve(2);
  slices_.emplace_back(EncodeBatchPrefix(bytes_));
  slices_.emplace_back(frame);
}

void OutgoingFrames::Append(OutgoingFrames&& next) {
  slices_.insert(slices_.end(), std::make_move_iterator(next.slices_.begin()),
                 std::make_move_iterator(next.slices_.end()));
  count_ += next.count_;
  bytes_ += next.bytes_;
  next = OutgoingFrames();
}

grpc::ByteBuffer OutgoingFrames::Message() const {
  const size_t skipped = count_ == 1 ? 1 : 0;
  return grpc::ByteBuffer(slices_.data() + skipped, slices_.size() - skipped);
}

absl::StatusOr<std::vector<DecodedFrame>> DecodeFrames(const grpc::ByteBuffer& message,
                                                       const FrameLimits& limits,
                                                       SharedPayloads* shared) {
  if (!message.Valid()) return absl::InvalidArgumentError("malformed frame: no message");

  grpc::Slice single;
  if (message.TrySingleSlice(&single).ok()) return DecodeFrames(ToCord(single), limits, shared);

  std::vector<grpc::Slice> slices;
  if (const grpc::Status dumped = message.Dump(&slices); !dumped.ok()) {
    return absl::InvalidArgumentError("malformed frame: " + dumped.error_message());
  }

  absl::Cord wire;
  for (const grpc::Slice& slice : slices) wire.Append(ToCord(slice));
  return DecodeFrames(wire, limits, shared);
}

}  // namespace sluice
