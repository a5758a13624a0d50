// A worker's stream to one shard: greeting, credit, and reconnecting.
#ifndef SLUICE_SERVICES_WORKER_CORE_SHARD_LINK_H_
#define SLUICE_SERVICES_WORKER_CORE_SHARD_LINK_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "services/worker/core/base/actions.h"

namespace sluice::worker {

// waiting -> connecting -> greeting -> ready; from each state back to waiting when the stream
// breaks. Frames are sent in the order of Send; a frame with a payload waits for the shard's
// credit, and so do all frames behind it. What is queued or in flight is lost with the stream: when
// ready() turns true again, the sender has to send again.
//
// The queue is bounded by what a worker can have to send in one view: its gradients of one step
// (references to their memory, not copies) and a few requests.
class ShardLink {
 public:
  ShardLink(ShardId id, std::string address, absl::Time now);

  // ---- state
  ShardId id() const { return id_; }
  const std::string& address() const { return address_; }
  bool ready() const { return state_ == State::kReady; }
  // Whether the shard announced on this stream that it accepts rows of tables.
  bool takes_rows() const { return takes_rows_; }
  // Counts the times it became ready.
  uint64_t generation() const { return generation_; }

  // Tries to connect if it is time.
  void Tick(absl::Time now, WorkerActions* actions);
  // When Tick has something to do.
  absl::Time NextDeadline() const;

  void OnConnected(const v1::Header& hello, WorkerActions* actions);
  // False: the reply is not expected now.
  bool OnHelloReply(const v1::HelloReply& reply);
  // Tries again after a pause that grows from 50 ms to 1 s.
  void OnBroken(absl::Time now);
  // Breaks the stream from this side.
  void Reset(const std::string& reason, absl::Time now, WorkerActions* actions);
  void Close(const std::string& reason, WorkerActions* actions);

  // Queues a frame, and sends it if the credit allows. Ignored unless ready().
  void Send(v1::Header header, absl::Cord payload, WorkerActions* actions);
  // The shard has handled payload of this many bytes.
  void OnCredit(uint64_t bytes, WorkerActions* actions);
  // Forgets frames that were not sent (they belong to an older view).
  void DropQueue();

  // Bytes of payload that wait for credit.
  uint64_t queued_bytes() const { return queued_bytes_; }

 private:
  enum class State { kWaiting, kConnecting, kGreeting, kReady };
  struct Queued {
    v1::Header header;
    absl::Cord payload;
  };

  // Sends queued frames, in order, as far as the credit goes.
  void Pump(WorkerActions* actions);

  const ShardId id_;
  const std::string address_;
  State state_ = State::kWaiting;
  absl::Time retry_at_;
  int failures_ = 0;
  uint64_t generation_ = 0;
  uint64_t window_ = 0;
  bool takes_rows_ = false;
  uint64_t credit_ = 0;
  std::deque<Queued> queue_;
  uint64_t queued_bytes_ = 0;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_CORE_SHARD_LINK_H_
