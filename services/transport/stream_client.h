#ifndef SLUICE_SERVICES_TRANSPORT_STREAM_CLIENT_H_
#define SLUICE_SERVICES_TRANSPORT_STREAM_CLIENT_H_

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
#include "services/protocol/frame_wire.h"
#include "services/transport/event_loop.h"

namespace sluice {

// One stream of rpc Exchange to one shard: the other side of StreamServer. It lives as long as its
// stream; whoever wants to reconnect makes a new one.
class StreamClient {
 public:
  // Twice what a shard lets a worker have under way.
  static constexpr size_t kSharedMemoryBytes = size_t{32} << 20;

  struct Options {
    std::string address;  // host:port
    // That it runs on; must outlive it. Null: one of its own.
    EventLoop* loop = nullptr;
    // Null: plain text.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Broken (DEADLINE_EXCEEDED or UNAVAILABLE) if there is no connection within this.
    absl::Duration connect_timeout = absl::Seconds(5);
    // As StreamServer's; over it the stream is broken with RESOURCE_EXHAUSTED.
    size_t max_queued_bytes = size_t{4} << 30;
    FrameLimits limits;
    // To a server on this machine, in plain text: payloads go through memory that both share
    // (SharedMemory), so much for each direction as long as it lasts. 0: all go through the socket.
    size_t shared_memory_bytes = kSharedMemoryBytes;
    std::function<void(int64_t)> on_queued_bytes;
  };

  // Called one at a time, on the loop's thread.
  struct Callbacks {
    // As StreamHandler::OnFrames.
    std::function<void(std::vector<DecodedFrame> frames)> on_frames;
    // Exactly once, last, unless the client is destroyed before: why the stream ended. OK: the
    // server ended it so.
    std::function<void(absl::Status why)> on_broken;
  };

  // Begins to connect; frames sent meanwhile wait. Does not block.
  static std::unique_ptr<StreamClient> Connect(Options options, Callbacks callbacks);

  // Cancels what is left of the stream, waits for a running callback and makes no further one. Not
  // on the loop's thread.
  ~StreamClient();

  StreamClient(const StreamClient&) = delete;
  StreamClient& operator=(const StreamClient&) = delete;

  // As StreamServer's.
  void Send(const v1::Header& header, absl::Cord payload = {});
  void Queue(const v1::Header& header, absl::Cord payload = {});
  // Of at least `worth` bytes of payload; what is less goes on waiting.
  void Flush(size_t worth = 0);

  // Says that nothing more will be sent, once what was sent before is through; the server's last
  // frames and its status still arrive. Any thread; does not block. Later Sends are dropped.
  void Finish();

  size_t queued_bytes() const;

 private:
  class Impl;
  explicit StreamClient(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_STREAM_CLIENT_H_
