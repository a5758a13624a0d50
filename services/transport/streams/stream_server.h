#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_STREAM_SERVER_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_STREAM_SERVER_H_

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
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/event_loop.h"

namespace sluice {

// Names one stream of one server; never 0, never used again.
using StreamId = uint64_t;

// Receives the events of a StreamServer's streams. For one stream the calls come one at a time, in
// order, on that stream's reader thread (streams may share a reader thread): OnOpen (once),
// OnFrames..., OnClosed (once). Calls for different streams may come at the same time. While a call
// runs, at most one more message of the stream is read, so pass long work on.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  // `peer` is gRPC's name for the other side, for messages only.
  virtual void OnOpen(StreamId stream, const std::string& peer) = 0;

  // The frames of one message, at least one, in order. A payload is as long as its header's blocks
  // say. It refers to the receive buffers: drop it early.
  virtual void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) = 0;

  // The peer finished (OK), broke off or was refused, or this side closed the stream. Unsent frames
  // are dropped.
  virtual void OnClosed(StreamId stream, const absl::Status& why) = 0;
};

// The server side of rpc Exchange of v1::ParameterServer over raw messages: payloads go in and out
// without a copy, and frames that have to wait for the stream go out together, if the peer's Hello
// says that it takes batches. Where there are certificates, a Hello in the name of another process
// is refused with PERMISSION_DENIED. A peer that sends something other than a frame, or an oversize
// frame, is refused with INVALID_ARGUMENT (by gRPC itself with RESOURCE_EXHAUSTED past the message
// limit); the other streams are not affected.
//
//   StreamServer streams(options, &handler);
//   auto server = GrpcServer::Start({.address = "127.0.0.1:0"}, {&streams});
class StreamServer final : public GrpcServer::Service {
 public:
  struct Options {
    // Streams are spread over this many reader threads, which start with the server.
    int reader_threads = 8;
    // How many bytes may wait to be sent on one stream. Data that refers to live blocks waits
    // without a copy, so this bounds what a slow reader can pin: at least twice what a peer may
    // pull at once. Beyond it the stream is closed with RESOURCE_EXHAUSTED.
    size_t max_queued_bytes = size_t{4} << 30;
    // How long a stream closed by this side may take to send its queued frames; then it is
    // cancelled.
    absl::Duration close_timeout = absl::Seconds(1);
    // Takes the shared memory that clients of this machine offer; else payloads use the socket.
    bool shared_memory = true;
    FrameLimits limits;
    // Called with the change (positive or negative) of the bytes queued over all streams; any
    // thread, must not block.
    std::function<void(int64_t)> on_queued_bytes;
  };

  // `handler` must outlive the server.
  StreamServer(Options options, StreamHandler* handler);
  ~StreamServer() override;

  // Sends after everything sent before on this stream. Any thread; never blocks: a frame that gRPC
  // cannot take now is queued. On a stream that is closed, or closes meanwhile, the frame is
  // dropped; OnClosed reports the end of the stream.
  void Send(StreamId stream, const v1::Header& header, const absl::Cord& payload = {});

  // As Send, in two steps, for a caller with several frames: the queued frames go out together (as
  // many as fit in one message) at the latest with the next Flush or Send of this stream, and
  // earlier when they are enough for the other side to begin with (batching.h).
  void Queue(StreamId stream, const v1::Header& header, const absl::Cord& payload = {});
  void Flush(StreamId stream);

  // Ends the stream with `status` once everything sent before has gone out, or after close_timeout
  // if the peer does not read. Any thread; does not block. Frames that arrive from now on are
  // dropped. OnClosed follows.
  void Close(StreamId stream, absl::Status status);

  // Bytes queued and not yet taken by gRPC, over all streams; a frame that gRPC has just taken may
  // still be counted.
  size_t queued_bytes() const;

  // A loop for the process's other uses of gRPC (see EventLoop for the reason) while the server
  // runs: its users must be gone before the server stops.
  EventLoop* loop();

  // GrpcServer::Service
  size_t max_message_bytes() const override;
  ChannelKind kind() const override { return ChannelKind::kBulk; }
  void Register(grpc::ServerBuilder* builder) override;
  void Started(ConnectionGuard* guard) override;
  void Stopping() override;
  void Stopped() override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_STREAM_SERVER_H_
