#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_STREAM_CLIENT_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_STREAM_CLIENT_H_

#include <grpcpp/security/credentials.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/frame.pb.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/streams/event_loop.h"

namespace sluice {

// One stream of rpc Exchange to one shard: the other side of StreamServer. To reconnect, make a new
// one.
class StreamClient {
 public:
  // Twice the bytes that a shard lets a worker have in flight.
  static constexpr size_t kSharedMemoryBytes = size_t{32} << 20;

  struct Options {
    std::string address;  // host:port
    // The loop that it runs on; must outlive it. Null: it makes its own.
    EventLoop* loop = nullptr;
    // Null: plain text.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // The stream breaks (DEADLINE_EXCEEDED or UNAVAILABLE) if there is no connection within this
    // time.
    absl::Duration connect_timeout = absl::Seconds(5);
    // As StreamServer's; beyond it the stream breaks with RESOURCE_EXHAUSTED.
    size_t max_queued_bytes = size_t{4} << 30;
    FrameLimits limits;
    // To a server on this machine, in plain text, payloads go through shared memory (SharedMemory)
    // of this size for each direction, as long as there is room. 0: all go through the socket.
    size_t shared_memory_bytes = kSharedMemoryBytes;
    std::function<void(int64_t)> on_queued_bytes;
  };

  // Called one at a time, on the loop's thread.
  struct Callbacks {
    // As StreamHandler::OnFrames.
    std::function<void(std::vector<DecodedFrame> frames)> on_frames;
    // Called exactly once, as the last callback, unless the client is destroyed before. OK: the
    // server ended the stream with OK.
    std::function<void(absl::Status why)> on_broken;
  };

  // Begins to connect; frames sent meanwhile wait. Does not block.
  static std::unique_ptr<StreamClient> Connect(Options options, Callbacks callbacks);

  // Cancels the rest of the stream and waits for a running callback; no further callback is made.
  // Must not be called on the loop's thread.
  ~StreamClient();

  StreamClient(const StreamClient&) = delete;
  StreamClient& operator=(const StreamClient&) = delete;

  // As StreamServer's.
  void Send(const v1::Header& header, absl::Cord payload = {});
  void Queue(const v1::Header& header, absl::Cord payload = {});
  // Sends the queued frames if they have at least `worth` bytes of payload; else they keep waiting.
  void Flush(size_t worth = 0);

  // Ends the sending side once everything sent before has gone out; the server's last frames and
  // its status still arrive. Any thread; does not block. Later Sends are dropped.
  void Finish();

  size_t queued_bytes() const;

 private:
  class Impl;
  explicit StreamClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_STREAM_CLIENT_H_
