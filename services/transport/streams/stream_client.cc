#include "services/transport/streams/stream_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <utility>

#include "services/common/status_macros.h"
#include "services/transport/frames/batching.h"
#include "services/transport/frames/frame.h"
#include "services/transport/frames/payload_sharing.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/gated_credentials.h"
#include "services/transport/security/handshake.h"
#include "services/transport/streams/client_stream.h"
#include "services/transport/streams/event_loop.h"

namespace sluice {

class StreamClient::Impl {
 public:
  Impl(Options options, Callbacks callbacks)
      : own_loop_(options.loop == nullptr ? std::make_unique<EventLoop>("stream") : nullptr),
        limits_(options.limits),
        tls_(security::SpeaksTls(options.credentials)),
        callbacks_(std::move(callbacks)),
        stub_(MakeChannel({options.address, ChannelKind::kBulk, options.credentials,
                           options.connect_timeout, kMaxFrameBytes})),
        // Payloads that TLS encrypts on the wire must not be in shared memory in plain text.
        sharing_(internal::PayloadSharing::OfClient(options.address,
                                                    tls_ ? 0 : options.shared_memory_bytes)),
        stream_({.loop = own_loop_ ? own_loop_.get() : options.loop,
                 .max_cost = options.max_queued_bytes,
                 .on_queued = std::move(options.on_queued_bytes),
                 .join = [this](OutgoingFrames* front,
                                OutgoingFrames* next) { return batching_.Join(front, next); },
                 .prepare =
                     [this](grpc::ClientContext* context, grpc::CompletionQueue* queue) {
                       return stub_.PrepareCall(context, "/sluice.v1.ParameterServer/Exchange",
                                                queue);
                     }},
                {.on_message = [this](const grpc::ByteBuffer& in) { return OnMessage(in); },
                 .on_broken = [this](const absl::Status& why) { OnBroken(why); }}) {}

  void Queue(const v1::Header& header, const absl::Cord& payload) {
    if (stream_.closing()) return;
    OutgoingFrames frame = sharing_->Encode(header, payload);
    const size_t bytes = frame.bytes();
    stream_.Queue(std::move(frame), bytes, payload.size(), internal::kTogetherBytes);
  }

  void Flush(size_t worth) { stream_.Flush(worth); }

  void Finish() { stream_.Finish(); }

  size_t queued_bytes() const { return stream_.queued(); }

 private:
  absl::Status OnMessage(const grpc::ByteBuffer& message) {
    ASSIGN_OR_RETURN(std::vector<DecodedFrame> frames,
                     DecodeFrames(message, limits_, sharing_.get()));
    for (const DecodedFrame& frame : frames) {
      batching_.OnReceived(frame.header);
      sharing_->OnReceived(frame.header);
    }

    received_ = true;
    callbacks_.on_frames(std::move(frames));
    return absl::OkStatus();
  }

  void OnBroken(const absl::Status& why) {
    callbacks_.on_broken(received_ ? why : security::ExplainHandshake(why, tls_, ""));
  }

  const std::unique_ptr<EventLoop> own_loop_;
  const FrameLimits limits_;
  const bool tls_;
  bool received_ = false;  // anything arrived from the server; used only on the loop's thread
  const Callbacks callbacks_;
  grpc::GenericStub stub_;
  internal::Batching batching_;
  const std::unique_ptr<internal::PayloadSharing> sharing_;
  internal::ClientStream<OutgoingFrames, grpc::ByteBuffer, grpc::ByteBuffer> stream_;  // last
};

StreamClient::StreamClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StreamClient::~StreamClient() = default;

std::unique_ptr<StreamClient> StreamClient::Connect(Options options, Callbacks callbacks) {
  return std::unique_ptr<StreamClient>(
      new StreamClient(std::make_unique<Impl>(std::move(options), std::move(callbacks))));
}

void StreamClient::Send(const v1::Header& header, absl::Cord payload) {
  impl_->Queue(header, payload);
  impl_->Flush(0);
}
void StreamClient::Queue(const v1::Header& header, absl::Cord payload) {
  impl_->Queue(header, payload);
}
void StreamClient::Flush(size_t worth) { impl_->Flush(worth); }
void StreamClient::Finish() { impl_->Finish(); }
size_t StreamClient::queued_bytes() const { return impl_->queued_bytes(); }

}  // namespace sluice
