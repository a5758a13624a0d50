#ifndef SLUICE_SERVICES_TRANSPORT_BATCHING_H_
#define SLUICE_SERVICES_TRANSPORT_BATCHING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "proto/frame.pb.h"
#include "services/protocol/frame.h"
#include "services/protocol/frame_wire.h"

namespace sluice::internal {

// What is queued on a stream waits for company until it has this much payload, wherever that lies:
// a message wakes the other side up, which should begin with what there is (docs/benchmarks.md has
// what either costs).
inline constexpr size_t kTogetherBytes = size_t{512} << 10;

// The next message of a stream is asked for before one of more than this is handled, so that it
// comes in meanwhile. gRPC tells the sender at once that there is room for it, which wakes it up:
// after a smaller one that waits until it has been handled, and goes along with the answer.
inline constexpr size_t kReadAheadBytes = size_t{32} << 10;

// Which frames of one stream go out together.
//
// Intuition. What is sent (not queued) goes out at once when the stream is free. What comes while a
// write is under way waits, and then goes out together: the more there is to do, the fewer messages
// it takes. The two sides tell each other in their greetings how many frames they take in one
// message; who says nothing gets one at a time.
//
// Threads: any.
class Batching {
 public:
  // Adds to a greeting what this side takes.
  static void Greet(v1::Header* greeting) {
    if (greeting->has_hello()) greeting->mutable_hello()->set_max_batch_frames(kMaxBatchFrames);
    if (greeting->has_hello_reply()) {
      greeting->mutable_hello_reply()->set_max_batch_frames(kMaxBatchFrames);
    }
  }

  // Learns from the peer's greeting what it takes.
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

#endif  // SLUICE_SERVICES_TRANSPORT_BATCHING_H_
