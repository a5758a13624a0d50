#include "services/transport/stream_server.h"

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "proto/frame.grpc.pb.h"
#include "services/common/mutex.h"
#include "services/common/status_macros.h"
#include "services/common/tsan.h"
#include "services/transport/batching.h"
#include "services/transport/event_loop.h"
#include "services/transport/frame.h"
#include "services/transport/grpc_status.h"
#include "services/transport/outbox.h"
#include "services/transport/payload_sharing.h"
#include "services/transport/security/access_policy.h"
#include "services/transport/security/transport_security.h"

// Intuition. Each reader thread owns a completion queue; a stream belongs to one of them, and gRPC
// reports all of its events there, in order. The reader thread handles reads itself. When the
// stream is free, a write starts on the thread that calls Send: gRPC then writes to the socket at
// once and returns, whether the peer reads or not. Every queue has its thread from the start: gRPC
// assigns each connection to one of the queues before it sees a stream, and where each thread waits
// for its own sockets only (GRPC_POLL_STRATEGY=poll), no other thread would ever read from it.

namespace sluice {
namespace {

using RawService = v1::ParameterServer::WithRawMethod_Exchange<v1::ParameterServer::Service>;
using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;
using FrameOutbox = internal::Outbox<OutgoingFrames>;

absl::Status PeerBrokeOff() {
  return absl::UnavailableError("the peer broke off, or sent a message over the size limit");
}

// A loop over one of the server's queues.
struct Reader {
  explicit Reader(std::unique_ptr<grpc::ServerCompletionQueue> server_queue)
      : queue(server_queue.get()), loop("streams", std::move(server_queue)) {}

  grpc::ServerCompletionQueue* const queue;
  EventLoop loop;
  std::atomic<int> load{0};  // streams
};

}  // namespace

class StreamServer::Impl {
 public:
  Impl(Options options, StreamHandler* handler)
      : options_(std::move(options)), handler_(handler), accepted_(this) {}

  void Register(grpc::ServerBuilder* builder) {
    builder->RegisterService(&service_);
    for (int i = 0; i < std::max(options_.reader_threads, 1); ++i) {
      readers_.push_back(std::make_unique<Reader>(builder->AddCompletionQueue()));
    }
  }

  void Started(ConnectionGuard* guard) {
    guard_ = guard;
    {
      MutexLock lock(&mutex_);
      accepting_ = true;
    }
    for (size_t i = 0; i < readers_.size(); ++i) readers_[i]->loop.Start([this, i] { Sweep(i); });
    AcceptNext();
  }

  void Stopping();
  void Stopped();

  void Queue(StreamId id, const v1::Header& header, const absl::Cord& payload, bool flush);
  void Flush(StreamId id);
  void Close(StreamId id, absl::Status status);

  size_t queued_bytes() const { return static_cast<size_t>(queued_bytes_.load()); }
  EventLoop* loop() { return &readers_[0]->loop; }

 private:
  class Stream;
  template <typename Owner, void (Owner::*kMethod)(bool)>
  using MethodEvent = internal::MethodEvent<Owner, kMethod>;

  void AcceptNext();
  void OnAccepted(bool ok);
  void Sweep(size_t reader);

  std::shared_ptr<Stream> Find(StreamId id) {
    MutexLock lock(&mutex_);
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : found->second;
  }

  void OnQueued(int64_t change) {
    queued_bytes_.fetch_add(change, std::memory_order_relaxed);
    if (options_.on_queued_bytes) options_.on_queued_bytes(change);
  }

  const Options options_;
  StreamHandler* const handler_;
  RawService service_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::atomic<int64_t> queued_bytes_{0};
  ConnectionGuard* guard_ = nullptr;  // null: there is none

  // Used by the acceptor, on the first reader's thread. next_stream_ waits for a client.
  MethodEvent<Impl, &Impl::OnAccepted> accepted_;
  std::shared_ptr<Stream> next_stream_;
  StreamId next_id_ = 1;

  Mutex mutex_;   // protects what follows; not held when gRPC or the handler is called
  CondVar over_;  // the server accepts no more streams, or the last one has ended
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<StreamId, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// One stream. Its On... functions run on its reader thread, the others on any thread. It is open
// until gRPC has returned every operation; then it is removed.
class StreamServer::Impl::Stream {
 public:
  Stream(Impl* server, StreamId id, size_t reader)
      : server_(server),
        id_(id),
        reader_(reader),
        raw_(&context_),
        outbox_(
            server->options_.max_queued_bytes,
            [server](int64_t change) { server->OnQueued(change); },
            [this](OutgoingFrames* front, OutgoingFrames* next) {
              return batching_.Join(front, next);
            }) {
    context_.AsyncNotifyWhenDone(&ended_);
    outbox_.HoldUntilStarted();
  }

  StreamId id() const { return id_; }
  size_t reader() const { return reader_; }
  grpc::ServerContext* context() { return &context_; }
  RawStream* raw() { return &raw_; }

  // A client has opened the stream. Headers go out at once, so that the client sees that it is
  // connected.
  void Begin() {
    if (server_->guard_ != nullptr) {
      account_ = server_->guard_->OnCall(context_);
      account_->OnMessage(kMaxMetadataBytes);
    }
    sharing_ =
        internal::PayloadSharing::OfServer(server_->options_.shared_memory ? context_.peer() : "");
    internal::BeforeGrpc(&server_->readers_[reader_]->loop);
    raw_.SendInitialMetadata(&opened_);
  }

  void Queue(const v1::Header& header, const absl::Cord& payload, bool flush) {
    if (outbox_.closing()) return;
    OutgoingFrames frame = sharing_->Encode(header, payload);
    const size_t bytes = frame.bytes();
    Act(flush ? outbox_.Push(std::move(frame), bytes)
              : outbox_.Queue(std::move(frame), bytes, payload.size(), internal::kTogetherBytes));
  }

  void Flush() { Act(outbox_.Flush()); }

  void Close(absl::Status status) {
    if (account_ != nullptr && absl::IsResourceExhausted(status)) account_->OnExhausted();
    Act(outbox_.Close(std::move(status)));
  }

  // Cancels the stream if close_timeout has passed since it was closed.
  void CutIfOverdue(absl::Time now) {
    const int64_t deadline = cut_at_nanos_.load();
    if (deadline != 0 && absl::ToUnixNanos(now) >= deadline) context_.TryCancel();
  }

 private:
  using Action = FrameOutbox::Action;

  void OnOpened(bool ok) {
    identity_ = security::PeerOf(*context_.auth_context());
    server_->handler_->OnOpen(id_, context_.peer());
    if (!ok) Act(outbox_.Break(PeerBrokeOff()));
    Read();
    Act(outbox_.Started());
  }

  void Read() {
    internal::BeforeGrpc(&server_->readers_[reader_]->loop);
    reading_ = true;
    in_.Clear();
    raw_.Read(&in_, &read_);
  }

  void OnRead(bool ok) {
    reading_ = false;
    if (!ok) {
      // The peer has finished; if it broke off instead, OnEnded sees that.
      Act(outbox_.Close(absl::OkStatus()));
      return ForgetIfOver();
    }

    if (account_ != nullptr) account_->OnMessage(in_.Length());
    if (outbox_.closing()) return Read();

    const bool large = in_.Length() > internal::kReadAheadBytes;
    absl::StatusOr<std::vector<DecodedFrame>> frames =
        DecodeFrames(in_, server_->options_.limits, sharing_.get());
    if (large) Read();
    const absl::Status refused =
        frames.ok() ? Receive(*std::move(frames)) : std::move(frames).status();
    if (!refused.ok()) Close(refused);
    if (!large) Read();
  }

  absl::Status Receive(std::vector<DecodedFrame> frames) {
    for (const DecodedFrame& frame : frames) {
      RETURN_IF_ERROR(security::MaySend(identity_, frame.header));
      batching_.OnReceived(frame.header);
      sharing_->OnReceived(frame.header);
    }
    server_->handler_->OnFrames(id_, std::move(frames));
    return absl::OkStatus();
  }

  void OnWritten(bool ok) {
    if (!ok) Act(outbox_.Break(PeerBrokeOff()));
    Act(outbox_.Sent());
  }

  void OnFinished(bool) {
    finished_ = true;
    ForgetIfOver();
  }

  // gRPC has ended the call, for whatever reason.
  void OnEnded(bool) {
    ended_seen_ = true;
    if (context_.IsCancelled()) Act(outbox_.Break(PeerBrokeOff()));
    ForgetIfOver();
  }

  void Act(Action action) {
    internal::BeforeGrpc(&server_->readers_[reader_]->loop);
    switch (action) {
      case Action::kNothing:
        return;
      case Action::kWrite: {
        const grpc::ByteBuffer message = outbox_.front().Message();
        // The write ends when gRPC returns the tag.
        internal::BeforeGrpc(&server_->readers_[reader_]->loop);
        return raw_.Write(message, &written_);
      }
      case Action::kFinish:
        CutLater();
        return raw_.Finish(ToGrpcStatus(outbox_.why()), &finish_);
      case Action::kCutLater:
        return CutLater();
    }
  }

  void CutLater() {
    int64_t unset = 0;
    cut_at_nanos_.compare_exchange_strong(
        unset, absl::ToUnixNanos(absl::Now() + server_->options_.close_timeout));
  }

  void ForgetIfOver() {
    if (reading_ || !finished_ || !ended_seen_) return;
    server_->handler_->OnClosed(id_, outbox_.why());
    server_->readers_[reader_]->load.fetch_sub(1);
    std::shared_ptr<Stream> self;  // destroyed last
    MutexLock lock(&server_->mutex_);
    const auto found = server_->streams_.find(id_);
    self = std::move(found->second);
    server_->streams_.erase(found);
    if (server_->streams_.empty()) server_->over_.SignalAll();
  }

  Impl* const server_;
  const StreamId id_;
  const size_t reader_;
  grpc::ServerContext context_;
  RawStream raw_;
  internal::Batching batching_;
  std::unique_ptr<internal::PayloadSharing> sharing_;  // set when a client opens the stream
  FrameOutbox outbox_;
  std::atomic<int64_t> cut_at_nanos_{0};  // 0: not closed

  // Used only on the reader thread.
  std::optional<security::PeerIdentity> identity_;
  std::shared_ptr<ConnectionGuard::Account> account_;  // null: there is no guard
  grpc::ByteBuffer in_;
  bool reading_ = false;
  bool finished_ = false;
  bool ended_seen_ = false;

  MethodEvent<Stream, &Stream::OnOpened> opened_{this};
  MethodEvent<Stream, &Stream::OnRead> read_{this};
  MethodEvent<Stream, &Stream::OnWritten> written_{this};
  MethodEvent<Stream, &Stream::OnFinished> finish_{this};
  MethodEvent<Stream, &Stream::OnEnded> ended_{this};
};

void StreamServer::Impl::AcceptNext() {
  size_t reader = 0;
  for (size_t i = 1; i < readers_.size(); ++i) {
    if (readers_[i]->load < readers_[reader]->load) reader = i;
  }
  next_stream_ = std::make_shared<Stream>(this, next_id_++, reader);
  grpc::ServerContext* const context = next_stream_->context();
  RawStream* const raw = next_stream_->raw();
  internal::BeforeGrpc(&readers_[0]->loop);
  service_.RequestExchange(context, raw, readers_[reader]->queue, readers_[0]->queue, &accepted_);
}

void StreamServer::Impl::OnAccepted(bool ok) {
  if (!ok) {  // the server stops
    next_stream_ = nullptr;
    MutexLock lock(&mutex_);
    accepting_ = false;
    return over_.SignalAll();
  }

  const std::shared_ptr<Stream> stream = std::move(next_stream_);
  bool stopping = false;
  {
    MutexLock lock(&mutex_);
    streams_.emplace(stream->id(), stream);
    stopping = stopping_;
  }

  const size_t reader = stream->reader();
  readers_[reader]->load.fetch_add(1);
  stream->Begin();
  if (stopping) stream->Close(absl::UnavailableError("the server is stopping"));
  AcceptNext();
}

void StreamServer::Impl::Sweep(size_t reader) {
  std::vector<std::shared_ptr<Stream>> mine;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, stream] : streams_) {
      if (stream->reader() == reader) mine.push_back(stream);
    }
  }
  const absl::Time now = absl::Now();
  for (const auto& stream : mine) stream->CutIfOverdue(now);
}

void StreamServer::Impl::Stopping() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (const auto& [id, stream] : streams_) streams.push_back(stream);
  }
  for (const auto& stream : streams)
    stream->Close(absl::UnavailableError("the server is stopping"));
}

void StreamServer::Impl::Stopped() {
  {
    // gRPC has ended every call, but each stream still has to see that. Until then the queues must
    // take operations.
    MutexLock lock(&mutex_);
    while (accepting_ || !streams_.empty()) over_.Wait(&mutex_);
  }
  readers_.clear();  // the queues hold the server's own operations, so they end before the server
}

void StreamServer::Impl::Queue(StreamId id, const v1::Header& header, const absl::Cord& payload,
                               bool flush) {
  if (const auto stream = Find(id)) stream->Queue(header, payload, flush);
}

void StreamServer::Impl::Flush(StreamId id) {
  if (const auto stream = Find(id)) stream->Flush();
}

void StreamServer::Impl::Close(StreamId id, absl::Status status) {
  if (const auto stream = Find(id)) stream->Close(std::move(status));
}

StreamServer::StreamServer(Options options, StreamHandler* handler)
    : impl_(std::make_unique<Impl>(std::move(options), handler)) {}
StreamServer::~StreamServer() = default;

void StreamServer::Send(StreamId stream, const v1::Header& header, const absl::Cord& payload) {
  impl_->Queue(stream, header, payload, /*flush=*/true);
}
void StreamServer::Queue(StreamId stream, const v1::Header& header, const absl::Cord& payload) {
  impl_->Queue(stream, header, payload, /*flush=*/false);
}
void StreamServer::Flush(StreamId stream) { impl_->Flush(stream); }
void StreamServer::Close(StreamId stream, absl::Status status) {
  impl_->Close(stream, std::move(status));
}
size_t StreamServer::queued_bytes() const { return impl_->queued_bytes(); }
EventLoop* StreamServer::loop() { return impl_->loop(); }
size_t StreamServer::max_message_bytes() const { return kMaxFrameBytes; }
void StreamServer::Register(grpc::ServerBuilder* builder) { impl_->Register(builder); }
void StreamServer::Started(ConnectionGuard* guard) { impl_->Started(guard); }
void StreamServer::Stopping() { impl_->Stopping(); }
void StreamServer::Stopped() { impl_->Stopped(); }

}  // namespace sluice
