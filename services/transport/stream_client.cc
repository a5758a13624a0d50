#include "services/transport/stream_client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <pthread.h>

#include <atomic>
#include <thread>
#include <utility>

#include "services/protocol/frame.h"
#include "services/transport/batching.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"
#include "services/transport/outbox.h"
#include "services/transport/tsan.h"

// Intuition. As the server's: one completion queue, one thread that handles what comes from it,
// writes that start on whichever thread sends. The life of a call: start, then reads until one
// fails, then (when no write is under way any more) WritesDone and Finish, which brings the status.

namespace sluice {

class StreamClient::Impl {
 public:
  Impl(Options options, Callbacks callbacks)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        outbox_(
            options_.max_queued_bytes,
            [this](int64_t change) {
              if (options_.on_queued_bytes) options_.on_queued_bytes(change);
            },
            [this](OutgoingFrames* front, OutgoingFrames* next) {
              return batching_.Join(front, next);
            }),
        stub_(MakeChannel({options_.address, ChannelKind::kBulk, options_.credentials,
                           options_.connect_timeout, kMaxFrameBytes})) {
    outbox_.HoldUntilStarted();
    call_ = stub_.PrepareCall(&context_, "/sluice.v1.ParameterServer/Exchange", &queue_);
    internal::BeforeGrpc(this);
    call_->StartCall(Tag(kStarted));
    thread_ = std::thread([this] { Loop(); });
  }

  ~Impl() {
    abandoned_.store(true);
    context_.TryCancel();
    thread_.join();
  }

  void Send(const v1::Header& header, const absl::Cord& payload) {
    if (outbox_.closing()) return;
    OutgoingFrames frame = internal::Batching::Encode(header, payload);
    const size_t bytes = frame.bytes();
    Act(outbox_.Push(std::move(frame), bytes));
  }

  void Finish() { Act(outbox_.Close(absl::OkStatus())); }

  size_t queued_bytes() const { return outbox_.queued(); }

 private:
  using FrameOutbox = internal::Outbox<OutgoingFrames>;
  using Action = FrameOutbox::Action;

  enum Operation : intptr_t { kStarted = 1, kRead, kWrite, kWritesDone, kFinish };
  static void* Tag(Operation operation) { return reinterpret_cast<void*>(operation); }

  void Loop() {
    pthread_setname_np(pthread_self(), "stream");
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      internal::AfterGrpc(this);
      switch (static_cast<Operation>(reinterpret_cast<intptr_t>(tag))) {
        case kStarted:
          Read();  // fails at once if the call could not be started
          Act(outbox_.Started());
          break;
        case kRead:
          OnRead(ok);
          break;
        case kWrite:
          if (!ok) Act(outbox_.Break(absl::OkStatus()));  // the status tells why
          Act(outbox_.Sent());
          break;
        case kWritesDone:
          writes_done_ = true;
          FinishIfOver();
          break;
        case kFinish:
          OnFinished();
          break;
      }
    }
  }

  void Read() {
    in_.Clear();
    call_->Read(&in_, Tag(kRead));
  }

  void OnRead(bool ok) {
    if (!ok) {
      reads_done_ = true;
      Act(outbox_.Break(absl::OkStatus()));
      return FinishIfOver();
    }
    if (abandoned_.load() || !refused_.ok()) return Read();
    absl::StatusOr<std::vector<DecodedFrame>> frames = DecodeFrames(in_, options_.limits);
    Read();  // the next message comes in while this one is handled
    if (!frames.ok()) {
      refused_ = frames.status();
      return context_.TryCancel();
    }
    for (const DecodedFrame& frame : *frames) batching_.OnReceived(frame.header);
    callbacks_.on_frames(*std::move(frames));
  }

  void FinishIfOver() {
    if (reads_done_ && writes_done_) call_->Finish(&status_, Tag(kFinish));
  }

  void OnFinished() {
    // What went wrong here is a better reason than the cancellation that followed.
    absl::Status why = !refused_.ok() ? refused_ : outbox_.why();
    if (why.ok()) why = FromGrpcStatus(status_);
    if (!abandoned_.load()) callbacks_.on_broken(std::move(why));
    queue_.Shutdown();
  }

  void Act(Action action) {
    internal::BeforeGrpc(this);
    switch (action) {
      case Action::kNothing:
        return;
      case Action::kWrite:
        return call_->Write(outbox_.front().Message(), Tag(kWrite));
      case Action::kFinish:
        CutIfOverBound();
        return call_->WritesDone(Tag(kWritesDone));
      case Action::kCutLater:
        return CutIfOverBound();
    }
  }

  // The server does not read what waits, and would not read the rest.
  void CutIfOverBound() {
    if (!outbox_.why().ok()) context_.TryCancel();
  }

  const Options options_;
  const Callbacks callbacks_;
  internal::Batching batching_;
  FrameOutbox outbox_;
  std::atomic<bool> abandoned_{false};
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;

  // The reader thread's.
  grpc::ByteBuffer in_;
  bool reads_done_ = false;
  bool writes_done_ = false;
  absl::Status refused_;  // what the server sent is not a frame
  grpc::Status status_;

  std::thread thread_;
};

StreamClient::StreamClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StreamClient::~StreamClient() = default;

std::unique_ptr<StreamClient> StreamClient::Connect(Options options, Callbacks callbacks) {
  return std::unique_ptr<StreamClient>(
      new StreamClient(std::make_unique<Impl>(std::move(options), std::move(callbacks))));
}

void StreamClient::Send(const v1::Header& header, absl::Cord payload) {
  impl_->Send(header, payload);
}
void StreamClient::Finish() { impl_->Finish(); }
size_t StreamClient::queued_bytes() const { return impl_->queued_bytes(); }

}  // namespace sluice
