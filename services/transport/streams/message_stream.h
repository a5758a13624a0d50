#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_MESSAGE_STREAM_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_MESSAGE_STREAM_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/common/status_macros.h"
#include "services/transport/security/identity.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/bounded_message.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/client_stream.h"
#include "services/transport/streams/event_loop.h"
#include "services/transport/streams/server_streams.h"

// Long-lived bidirectional streams of small protobuf messages: the control plane. Both sides
// run on EventLoops: handlers must not block and must not compute; they pass messages on to the
// code that decides.

namespace sluice {

struct MessageStreamOptions {
  // A server's streams are spread over this many threads.
  int reader_threads = 4;
  // How many messages may wait to be sent on one stream; beyond that the stream ends with
  // RESOURCE_EXHAUSTED.
  size_t max_queued_messages = 4096;
  // How long a stream closed by this side may take to send its queued messages; then it is
  // cancelled.
  absl::Duration close_timeout = absl::Seconds(1);
};

// Receives the events of a MessageStreamServer's streams. For one stream the calls come one at a
// time and in order: OnOpen (once), OnMessage..., OnClosed (once). Calls for different streams may
// come at the same time.
template <typename In>
class MessageStreamHandler {
 public:
  virtual ~MessageStreamHandler() = default;
  // `peer` is gRPC's name for the other side, for messages only.
  virtual void OnOpen(uint64_t stream, const std::string& peer) = 0;
  // Whether the peer may send this, by its certificate (none: plain text). OnMessage follows if so;
  // else the stream is closed with the error.
  virtual absl::Status Admit(const std::optional<security::PeerIdentity>& peer, const In& message) {
    (void)peer, (void)message;
    return absl::OkStatus();
  }
  // A message that has been admitted, in the order in which the peer sent it.
  virtual void OnMessage(uint64_t stream, In message) = 0;
  // `why` is OK if the peer finished; else the error that broke the stream, or the status that this
  // side closed it with.
  virtual void OnClosed(uint64_t stream, const absl::Status& why) = 0;
};

namespace internal {

// The state of one stream of messages besides its queue: a Session of ServerStreams, which lists
// the meaning and the thread of each call.
template <typename Received, typename Sent>
class MessageSession {
 public:
  using In = Bounded<Received>;
  using Out = Sent;
  using Item = Sent;
  using Shared = MessageStreamHandler<Received>;

  MessageSession(Shared* handler, uint64_t id, const grpc::ServerContext&)
      : handler_(handler), id_(id) {}

  void OnOpen(const grpc::ServerContext& context) {
    identity_ = security::PeerOf(*context.auth_context());
    handler_->OnOpen(id_, context.peer());
  }

  void OnReceived(const In&) {}

  absl::Status OnMessage(In in) {
    RETURN_IF_ERROR(in.fits);
    RETURN_IF_ERROR(handler_->Admit(identity_, in.message));
    handler_->OnMessage(id_, std::move(in.message));
    return absl::OkStatus();
  }

  void OnClosing(const absl::Status&) {}
  void OnClosed(const absl::Status& why) { handler_->OnClosed(id_, why); }
  bool Join(Item*, Item*) { return false; }

 private:
  Shared* const handler_;
  const uint64_t id_;
  std::optional<security::PeerIdentity> identity_;
};

}  // namespace internal

// The server's side of `rpc X(stream In) returns (stream Out)`, a service with this one method. The
// memory of a received message is bounded (kMaxParsedBytes): a larger one ends its stream with
// RESOURCE_EXHAUSTED.
//
//   MessageStreamServer<v1::MemberMessage, v1::CoordinatorMessage> streams(
//       "/sluice.v1.Coordinator/Join", {}, &handler);
//   auto server = GrpcServer::Start(options, {&streams});
template <typename In, typename Out>
class MessageStreamServer final : public GrpcServer::Service {
 public:
  using StreamId = uint64_t;  // never 0, never used again
  using Handler = MessageStreamHandler<In>;

  // `method` must outlive this; `handler` must outlive the server that gets this service.
  MessageStreamServer(const char* method, MessageStreamOptions options, Handler* handler)
      : streams_({.method = method,
                  .reader_threads = options.reader_threads,
                  .max_cost = options.max_queued_messages,
                  .on_queued = nullptr,
                  .close_timeout = options.close_timeout},
                 handler) {}

  // Sends after everything sent before on this stream. Any thread; never blocks. On a stream that
  // is closed, or closes meanwhile, the message is dropped; OnClosed reports the end of the stream.
  void Send(StreamId stream, Out message) {
    streams_.With(stream, [&](auto* open) { open->Push(std::move(message), 1); });
  }

  // Ends the stream with `status` once everything sent before has gone out. Messages that arrive
  // from now on are dropped. Any thread; does not block. OnClosed follows.
  void Close(StreamId stream, absl::Status status) {
    streams_.With(stream, [&](auto* open) { open->Close(std::move(status)); });
  }

  // GrpcServer::Service
  void Register(grpc::ServerBuilder* builder) override { streams_.Register(builder); }
  void Started(ConnectionGuard*) override { streams_.Started(); }
  void Stopping() override { streams_.Stopping(); }
  void Stopped() override { streams_.Stopped(); }

 private:
  internal::ServerStreams<internal::MessageSession<In, Out>> streams_;
};

// The client's side: one stream, until it breaks. To reconnect, make a new one.
//
//   auto stub = v1::Coordinator::NewStub(MakeChannel({.address = address}));
//   MessageStreamClient<v1::MemberMessage, v1::CoordinatorMessage> stream(
//       {}, &loop,
//       [&](auto* context, auto* queue) { return stub->PrepareAsyncJoin(context, queue); },
//       {.on_message = ..., .on_broken = ...});
template <typename Out, typename In>
class MessageStreamClient {
 public:
  // Called one at a time on the loop's thread.
  struct Callbacks {
    std::function<void(In message)> on_message;
    // Called exactly once, as the last callback, unless the client is destroyed before. OK: the
    // server ended the stream with OK.
    std::function<void(absl::Status why)> on_broken;
  };
  // The stub need not outlive the call; its channel does so by itself.
  using PrepareCall = std::function<std::unique_ptr<grpc::ClientAsyncReaderWriter<Out, In>>(
      grpc::ClientContext*, grpc::CompletionQueue*)>;

  // Begins to connect; messages sent meanwhile wait. Does not block. `loop` must outlive it.
  MessageStreamClient(const MessageStreamOptions& options, EventLoop* loop, PrepareCall prepare,
                      Callbacks callbacks)
      : stream_(
            {.loop = loop, .max_cost = options.max_queued_messages, .prepare = std::move(prepare)},
            {.on_message =
                 [on_message = std::move(callbacks.on_message)](In message) {
                   on_message(std::move(message));
                   return absl::OkStatus();
                 },
             .on_broken = std::move(callbacks.on_broken)}) {}

  // The destructor cancels the rest of the stream and waits for a running callback; no further
  // callback is made. Must not run on the loop's thread.
  MessageStreamClient(const MessageStreamClient&) = delete;
  MessageStreamClient& operator=(const MessageStreamClient&) = delete;

  // As MessageStreamServer::Send.
  void Send(Out message) { stream_.Send(std::move(message), 1); }

  // Ends the sending side once everything sent before has gone out; the server's last messages and
  // its status still arrive. Any thread; does not block.
  void Finish() { stream_.Finish(); }

 private:
  internal::ClientStream<Out, Out, In> stream_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_MESSAGE_STREAM_H_
