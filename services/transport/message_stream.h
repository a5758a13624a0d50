#ifndef SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_H_
#define SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_H_

#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/transport/bounded_message.h"
#include "services/transport/client_stream.h"
#include "services/transport/event_loop.h"
#include "services/transport/grpc_server.h"
#include "services/transport/message_stream_internal.h"

// Long-lived bidirectional streams of small protobuf messages: the control plane. The server's side
// runs on gRPC's callback threads, the client's on an EventLoop: handlers must not block and must
// not compute; they pass messages on to the code that decides.

namespace sluice {

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
      : streams_(std::make_shared<Streams>(options, handler)) {
    service_.AddCallback(method, grpc::internal::RpcMethod::BIDI_STREAMING,
                         new grpc::internal::CallbackBidiHandler<Bounded<In>, Out>(
                             [streams = streams_](grpc::CallbackServerContext* context) {
                               return Streams::Accept(streams, context);
                             }));
  }

  // Sends after everything sent before on this stream. Any thread; never blocks. On a stream that
  // is closed, or closes meanwhile, the message is dropped; OnClosed reports the end of the stream.
  void Send(StreamId stream, Out message) { streams_->Send(stream, std::move(message)); }

  // Ends the stream with `status` once everything sent before has gone out. Messages that arrive
  // from now on are dropped. Any thread; does not block. OnClosed follows.
  void Close(StreamId stream, absl::Status status) { streams_->Close(stream, std::move(status)); }

  // GrpcServer::Service
  void Register(grpc::ServerBuilder* builder) override { builder->RegisterService(&service_); }
  void Stopping() override { streams_->Stop(absl::UnavailableError("the server is stopping")); }
  void Stopped() override { streams_->WaitUntilNone(); }

 private:
  using Streams = internal::ServerStreams<In, Out>;

  std::shared_ptr<Streams> streams_;
  BoundedService service_;
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

#endif  // SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_H_
