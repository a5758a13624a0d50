#include "services/protocol/frame.h"

#include <grpcpp/support/slice.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// Pieces up to this are copied: that is cheaper than the bookkeeping of a reference.
constexpr size_t kCopyBytes = 4096;

// A payload on its way out, kept alive by the slices that refer to it.
class PayloadHolder {
 public:
  explicit PayloadHolder(const absl::Cord& payload) : payload_(payload) {}

  const absl::Cord& payload() const { return payload_; }

  grpc::Slice Share(absl::string_view chunk) {
    references_.fetch_add(1, std::memory_order_relaxed);
    return grpc::Slice(const_cast<char*>(chunk.data()), chunk.size(), &PayloadHolder::Release,
                       this);
  }

  static void Release(void* holder) {
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
  // The slice is kept by the releaser and dies with it.
  return absl::MakeCordFromExternal(bytes, [slice] {});
}

}  // namespace

grpc::ByteBuffer EncodeFrame(const v1::Header& header, const absl::Cord& payload) {
  std::string prefix = EncodeFramePrefix(header, payload.size());
  if (payload.size() <= kCopyBytes) {
    for (const absl::string_view chunk : payload.Chunks())
      prefix.append(chunk.data(), chunk.size());
    const grpc::Slice slice(prefix);
    return grpc::ByteBuffer(&slice, 1);
  }
  std::vector<grpc::Slice> slices;
  slices.emplace_back(prefix);
  auto* holder = new PayloadHolder(payload);
  for (const absl::string_view chunk : holder->payload().Chunks()) {
    slices.push_back(chunk.size() <= kCopyBytes ? grpc::Slice(chunk.data(), chunk.size())
                                                : holder->Share(chunk));
  }
  PayloadHolder::Release(holder);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<DecodedFrame> DecodeFrame(const grpc::ByteBuffer& message,
                                         const FrameLimits& limits) {
  if (!message.Valid()) return absl::InvalidArgumentError("malformed frame: no message");
  grpc::Slice single;
  if (message.TrySingleSlice(&single).ok()) return DecodeFrame(ToCord(single), limits);
  std::vector<grpc::Slice> slices;
  if (const grpc::Status dumped = message.Dump(&slices); !dumped.ok()) {
    return absl::InvalidArgumentError("malformed frame: " + dumped.error_message());
  }
  absl::Cord wire;
  for (const grpc::Slice& slice : slices) wire.Append(ToCord(slice));
  return DecodeFrame(wire, limits);
}

}  // namespace sluice
