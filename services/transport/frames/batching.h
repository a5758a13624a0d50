#ifndef SLUICE_SERVICES_TRANSPORT_FRAMES_BATCHING_H_
#define SLUICE_SERVICES_TRANSPORT_FRAMES_BATCHING_H_

#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "proto/frame.pb.h"
#include "services/transport/frames/frame.h"
#include "services/transport/frames/frame_wire.h"

namespace sluice::internal {

// Frames queued on a stream wait for further ones until together they have this much payload,
// wherever the payload is stored: each message wakes the other side, but the other side should also
// start early on what there is (docs/benchmarks.md has the cost of either).
inline constexpr size_t kTogetherBytes = size_t{512} << 10;

// Before the stream handles a message of more than this, it starts the read of the next one, which
// then arrives meanwhile. gRPC at once announces the room to the sender, which wakes it up: so
// after a smaller message the read starts once that message has been handled, and the announcement
// travels with the answer.
inline constexpr size_t kReadAheadBytes = size_t{32} << 10;

// Whether reading ahead is worth it after this message. Only byte buffers can be large: the
// messages of the control plane are bounded.
template <typename Message>
bool IsLarge(const Message& message) {
  if constexpr (std::is_same_v<Message, grpc::ByteBuffer>) {
    return message.Length() > kReadAheadBytes;
  } else {
    return false;
  }
}

// Moves the message out; gRPC's byte buffers have no move.
template <typename Message>
Message Take(Message* from) {
  Message message;
  if constexpr (std::is_same_v<Message, grpc::ByteBuffer>) {
    message.Swap(from);
  } else {
    std::swap(message, *from);
  }
  return message;
}

// The message of an item that waits to be sent, which is the item or is made from it.
template <typename Message, typename Item>
decltype(auto) MessageOf(const Item& item) {
  if constexpr (std::is_same_v<Message, Item>) {
    return (item);
  } else {
    return item.Message();
  }
}

// Which frames of one stream go out together.
//
// Intuition. A frame that is sent (not queued) goes out at once when the stream is free. Frames
// that come while a write is under way wait, and then go out together: the higher the load, the
// fewer messages per frame. Each side announces in its greeting how many frames it takes in one
// message; a side that announces nothing gets one at a time.
//
// Threads: any.
class Batching {
 public:
  // Adds to a greeting how many frames this side takes in one message.
  static void Greet(v1::Header* greeting) {
    if (greeting->has_hello()) greeting->mutable_hello()->set_max_batch_frames(kMaxBatchFrames);
    if (greeting->has_hello_reply()) {
      greeting->mutable_hello_reply()->set_max_batch_frames(kMaxBatchFrames);
    }
  }

  // Learns from the peer's greeting how many frames it takes in one message.
  void OnReceived(const v1::Header& header) {
    if (header.has_hello()) peer_takes_.store(header.hello().max_batch_frames());
    if (header.has_hello_reply()) peer_takes_.store(header.hello_reply().max_batch_frames());
  }

  // Moves `next` behind `front` and returns true, if they may go out as one message.
  bool Join(OutgoingFrames* front, OutgoingFrames* next) const {
    const size_t most = std::min<size_t>(peer_takes_.load(), kMaxBatchFrames);
    if (front->count() + next->count() > most) return false;
    if (front->bytes() + next->bytes() > kMaxBatchBytes) return false;
    front->Append(std::move(*next));
    return true;
  }

 private:
  std::atomic<uint32_t> peer_takes_{1};
};

}  // namespace sluice::internal

#endif  // SLUICE_SERVICES_TRANSPORT_FRAMES_BATCHING_H_
