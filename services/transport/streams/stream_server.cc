#include "services/transport/streams/stream_server.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <optional>
#include <utility>

#include "services/common/status_macros.h"
#include "services/transport/frames/batching.h"
#include "services/transport/frames/frame.h"
#include "services/transport/frames/payload_sharing.h"
#include "services/transport/security/access_policy.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/streams/server_streams.h"

namespace sluice {
namespace {

// The state of one stream of frames besides its queue.
class FrameSession {
 public:
  using In = grpc::ByteBuffer;
  using Out = grpc::ByteBuffer;
  using Item = OutgoingFrames;
  struct Shared {
    const StreamServer::Options options;
    StreamHandler* const handler;
    ConnectionGuard* guard = nullptr;  // null: there is none
  };

  FrameSession(Shared* shared, StreamId id, const grpc::ServerContext& context)
      : shared_(shared),
        id_(id),
        sharing_(internal::PayloadSharing::OfServer(shared->options.shared_memory ? context.peer()
                                                                                  : "")) {
    if (shared->guard == nullptr) return;
    account_ = shared->guard->OnCall(context);
    account_->OnMessage(kMaxMetadataBytes);
  }

  OutgoingFrames Encode(const v1::Header& header, const absl::Cord& payload) {
    return sharing_->Encode(header, payload);
  }

  void OnOpen(const grpc::ServerContext& context) {
    identity_ = security::PeerOf(*context.auth_context());
    shared_->handler->OnOpen(id_, context.peer());
  }

  void OnReceived(const In& message) {
    if (account_ != nullptr) account_->OnMessage(message.Length());
  }

  absl::Status OnMessage(const In& message) {
    ASSIGN_OR_RETURN(std::vector<DecodedFrame> frames,
                     DecodeFrames(message, shared_->options.limits, sharing_.get()));
    for (const DecodedFrame& frame : frames) {
      RETURN_IF_ERROR(security::MaySend(identity_, frame.header));
      batching_.OnReceived(frame.header);
      sharing_->OnReceived(frame.header);
    }

    shared_->handler->OnFrames(id_, std::move(frames));
    return absl::OkStatus();
  }

  void OnClosing(const absl::Status& why) {
    if (account_ != nullptr && absl::IsResourceExhausted(why)) account_->OnExhausted();
  }

  void OnClosed(const absl::Status& why) { shared_->handler->OnClosed(id_, why); }

  bool Join(OutgoingFrames* front, OutgoingFrames* next) { return batching_.Join(front, next); }

 private:
  Shared* const shared_;
  const StreamId id_;
  internal::Batching batching_;
  const std::unique_ptr<internal::PayloadSharing> sharing_;
  std::shared_ptr<ConnectionGuard::Account> account_;  // null: there is no guard
  std::optional<security::PeerIdentity> identity_;     // used only on the reader thread
};

}  // namespace

class StreamServer::Impl {
 public:
  using Streams = internal::ServerStreams<FrameSession>;

  Impl(Options options, StreamHandler* handler)
      : shared{std::move(options), handler},
        streams({.method = "/sluice.v1.ParameterServer/Exchange",
                 .reader_threads = shared.options.reader_threads,
                 .max_cost = shared.options.max_queued_bytes,
                 .on_queued = [this](int64_t change) { OnQueued(change); },
                 .close_timeout = shared.options.close_timeout},
                &shared) {}

  void Queue(StreamId id, const v1::Header& header, const absl::Cord& payload, bool flush) {
    streams.With(id, [&](Streams::Stream* stream) {
      if (stream->closing()) return;
      OutgoingFrames frame = stream->session()->Encode(header, payload);
      const size_t bytes = frame.bytes();
      if (flush) return stream->Push(std::move(frame), bytes);
      stream->Queue(std::move(frame), bytes, payload.size(), internal::kTogetherBytes);
    });
  }

  FrameSession::Shared shared;
  std::atomic<int64_t> queued_bytes{0};
  Streams streams;

 private:
  void OnQueued(int64_t change) {
    queued_bytes.fetch_add(change, std::memory_order_relaxed);
    if (shared.options.on_queued_bytes) shared.options.on_queued_bytes(change);
  }
};

StreamServer::StreamServer(Options options, StreamHandler* handler)
    : impl_(std::make_unique<Impl>(std::move(options), handler)) {}
StreamServer::~StreamServer() = default;

void StreamServer::Send(StreamId stream, const v1::Header& header, const absl::Cord& payload) {
  impl_->Queue(stream, header, payload, /*flush=*/true);
}
void StreamServer::Queue(StreamId stream, const v1::Header& header, const absl::Cord& payload) {
  impl_->Queue(stream, header, payload, /*flush=*/false);
}
void StreamServer::Flush(StreamId stream) {
  impl_->streams.With(stream, [](auto* open) { open->Flush(); });
}
void StreamServer::Close(StreamId stream, absl::Status status) {
  impl_->streams.With(stream, [&](auto* open) { open->Close(std::move(status)); });
}
size_t StreamServer::queued_bytes() const {
  return static_cast<size_t>(impl_->queued_bytes.load());
}
EventLoop* StreamServer::loop() { return impl_->streams.loop(); }
size_t StreamServer::max_message_bytes() const { return kMaxFrameBytes; }
void StreamServer::Register(grpc::ServerBuilder* builder) { impl_->streams.Register(builder); }
void StreamServer::Started(ConnectionGuard* guard) {
  impl_->shared.guard = guard;
  impl_->streams.Started();
}
void StreamServer::Stopping() { impl_->streams.Stopping(); }
void StreamServer::Stopped() { impl_->streams.Stopped(); }

}  // namespace sluice
