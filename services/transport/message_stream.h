#ifndef SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_H_
#define SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/transport/grpc_server.h"
#include "services/transport/message_stream_internal.h"

// Long-lived bidirectional streams of small protobuf messages: the control plane. They run on
// gRPC's callback threads: handlers must not block and must not compute; they hand what came to
// whoever decides.

namespace sluice {

// The server's side of `rpc X(stream In) returns (stream Out)`. In main:
//
//   class Service final : public v1::Coordinator::CallbackService {
//     grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Join(
//         grpc::CallbackServerContext* context) override { return streams_->Accept(context); }
//   };
//   MessageStreamServer<v1::MemberMessage, v1::CoordinatorMessage> streams({}, &handler);
//   Service service(&streams);  GeneratedService generated(&service);
//   auto server = GrpcServer::Start(options, {&generated, &streams});
template <typename In, typename Out>
class MessageStreamServer final : public GrpcServer::Service {
 public:
  using StreamId = uint64_t;  // never 0, never used again
  using Handler = MessageStreamHandler<In>;

  // `handler` must outlive the server that this is given to.
  MessageStreamServer(MessageStreamOptions options, Handler* handler)
      : streams_(std::make_shared<internal::ServerStreams<In, Out>>(options, handler)) {}

  // For the generated service's method. Refused with UNAVAILABLE while the server stops.
  grpc::ServerBidiReactor<In, Out>* Accept(grpc::CallbackServerContext* context) {
    return internal::ServerStreams<In, Out>::Accept(streams_, context);
  }

  // Sends behind everything sent before on this stream. Any thread; never blocks. On a stream that
  // is closed, or closes meanwhile, the message is dropped and OnClosed tells.
  void Send(StreamId stream, Out message) { streams_->Send(stream, std::move(message)); }

  // Ends the stream with `status` once what was sent before is through. Messages that arrive from
  // now on are dropped. Any thread; does not block. OnClosed follows.
  void Close(StreamId stream, absl::Status status) { streams_->Close(stream, std::move(status)); }

  // GrpcServer::Service; the generated service is registered by itself.
  void Register(grpc::ServerBuilder*) override {}
  void Stopping() override { streams_->Stop(absl::UnavailableError("the server is stopping")); }
  void Stopped() override { streams_->WaitUntilNone(); }

 private:
  std::shared_ptr<internal::ServerStreams<In, Out>> streams_;
};

// The client's side: one stream, which lives until it breaks. Whoever wants to reconnect makes a
// new one.
//
//   auto stub = v1::Coordinator::NewStub(MakeChannel({.address = address}));
//   auto stream = MessageStreamClient<v1::MemberMessage, v1::CoordinatorMessage>::Start(
//       {}, [&](auto* context, auto* reactor) { stub->async()->Join(context, reactor); },
//       {.on_message = ..., .on_broken = ...});
template <typename Out, typename In>
class MessageStreamClient {
 public:
  // Called one at a time on gRPC's threads.
  struct Callbacks {
    std::function<void(In message)> on_message;
    // Exactly once, last, unless the client is destroyed before. OK: the server ended the stream
    // so.
    std::function<void(absl::Status why)> on_broken;
  };
  // Starts the rpc with the reactor. The stub need not outlive the call, its channel does by
  // itself.
  using StartCall = std::function<void(grpc::ClientContext*, grpc::ClientBidiReactor<Out, In>*)>;

  // Begins to connect; messages sent meanwhile wait. Does not block.
  static std::unique_ptr<MessageStreamClient> Start(MessageStreamOptions options,
                                                    const StartCall& start, Callbacks callbacks) {
    auto stream = std::make_shared<internal::ClientStream<Out, In>>(
        options, std::move(callbacks.on_message), std::move(callbacks.on_broken));
    stream->Start(stream, start);
    return std::unique_ptr<MessageStreamClient>(new MessageStreamClient(std::move(stream)));
  }

  // Cancels what is left of the stream, waits for a running callback and makes no further one. Not
  // from a callback.
  ~MessageStreamClient() { stream_->CancelAndWait(); }
  MessageStreamClient(const MessageStreamClient&) = delete;
  MessageStreamClient& operator=(const MessageStreamClient&) = delete;

  // As MessageStreamServer::Send.
  void Send(Out message) { stream_->Send(std::move(message)); }

  // Nothing more will be sent, once what was sent before is through; the server's last messages and
  // its status still arrive. Any thread; does not block.
  void Finish() { stream_->Finish(); }

 private:
  explicit MessageStreamClient(std::shared_ptr<internal::ClientStream<Out, In>> stream)
      : stream_(std::move(stream)) {}

  std::shared_ptr<internal::ClientStream<Out, In>> stream_;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_H_
