#ifndef SLUICE_SERVICES_TRANSPORT_STREAM_SERVER_H_
#define SLUICE_SERVICES_TRANSPORT_STREAM_SERVER_H_

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
#include "services/transport/grpc_server.h"

namespace sluice {

// Names one stream of one server; never 0, never used again.
using StreamId = uint64_t;

// What happens on the streams of a StreamServer. For one stream the calls come one at a time, in
// order, on that stream's reader thread (streams may share a reader thread): OnOpen, OnFrames...,
// OnClosed, each of the first and the last exactly once. Different streams' calls may come at the
// same time. Nothing else is read from the stream while a call runs: hand long work on.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;

  // `peer` is gRPC's name of the other side, for messages only.
  virtual void OnOpen(StreamId stream, const std::string& peer) = 0;

  // What came as one message: at least one frame, in their order. A payload is as long as its
  // header's blocks say. It refers to the receive buffers: drop it early.
  virtual void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) = 0;

  // The peer finished (OK), broke off, was refused, or the stream was closed from here. What was
  // not sent is dropped.
  virtual void OnClosed(StreamId stream, const absl::Status& why) = 0;
};

// The server side of rpc Exchange of v1::ParameterServer over raw messages: payloads go in and out
// without a copy, and frames that have to wait for the stream go out together, to a peer whose
// Hello says that it takes batches. Where there are certificates, a Hello in another's name is
// refused with PERMISSION_DENIED. A peer that sends no frame, or an oversize one, is refused with
// INVALID_ARGUMENT (RESOURCE_EXHAUSTED from gRPC itself past the message limit); the other streams
// do not notice.
//
//   StreamServer streams(options, &handler);
//   auto server = GrpcServer::Start({.address = "127.0.0.1:0"}, {&streams});
class StreamServer final : public GrpcServer::Service {
 public:
  struct Options {
    // Streams are spread over this many reader threads, each started with its first stream.
    int reader_threads = 8;
    // Bytes that may wait to be sent on one stream. Data that refers to living blocks waits without
    // a copy, so this bounds what a slow reader can pin: at least twice what a peer may pull at
    // once. Over it the stream is closed with RESOURCE_EXHAUSTED.
    size_t max_queued_bytes = size_t{4} << 30;
    // How long a stream that was closed from here may take to send what was sent before, before it
    // is cut.
    absl::Duration close_timeout = absl::Seconds(1);
    FrameLimits limits;
    // Called with the change (positive or negative) of the bytes queued over all streams; any
    // thread, must not block.
    std::function<void(int64_t)> on_queued_bytes;
  };

  // `handler` must outlive the server.
  StreamServer(Options options, StreamHandler* handler);
  ~StreamServer() override;

  // Sends behind everything sent before on this stream. Any thread; never blocks: what cannot be
  // handed to gRPC now is queued. On a stream that is closed, or closes meanwhile, it is dropped
  // and OnClosed tells.
  void Send(StreamId stream, const v1::Header& header, const absl::Cord& payload = {});

  // As Send, in two steps, for whoever has more to say at once: what was queued goes out together
  // (as far as one message holds it) at the next Flush or Send of this stream, at the latest; when
  // it is enough for the other side to begin with (batching.h), earlier.
  void Queue(StreamId stream, const v1::Header& header, const absl::Cord& payload = {});
  void Flush(StreamId stream);

  // Ends the stream with `status` once what was sent before is through, or after a moment if the
  // peer does not read. Any thread; does not block. Frames that arrive from now on are dropped.
  // OnClosed follows.
  void Close(StreamId stream, absl::Status status);

  // Bytes queued and not yet taken by gRPC, over all streams.
  size_t queued_bytes() const;

  // For what else the process does over gRPC (EventLoop tells why), while the server runs: what
  // uses it is gone before the server stops.
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

#endif  // SLUICE_SERVICES_TRANSPORT_STREAM_SERVER_H_
