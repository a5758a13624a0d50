#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_SERVER_STREAMS_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_SERVER_STREAMS_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/threads/mutex.h"
#include "services/common/threads/tsan.h"
#include "services/transport/frames/batching.h"
#include "services/transport/grpc_status.h"
#include "services/transport/streams/event_loop.h"
#include "services/transport/streams/outbox.h"

namespace sluice::internal {

// A service with one rpc of streams, whose calls are requested one by one.
class StreamService final : public grpc::Service {
 public:
  explicit StreamService(const char* method) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        method, grpc::internal::RpcMethod::BIDI_STREAMING, /*h=*/nullptr));
    MarkMethodAsync(0);
  }

  // Requests one more call; `tag` completes when a client opens it.
  void Request(grpc::ServerContext* context, grpc::internal::ServerAsyncStreamingInterface* stream,
               grpc::CompletionQueue* queue, grpc::ServerCompletionQueue* accepting, Event* tag) {
    RequestAsyncBidiStreaming(0, context, stream, queue, accepting, tag);
  }
};

// The server's side of one rpc's streams, whatever they carry. A Session is what one stream has
// besides its queue:
//
//   using In, Out;  // gRPC's messages
//   using Item;     // what waits to be sent: an Out, or makes one (MessageOf)
//   using Shared;   // what all sessions of the server have in common
//
//   // A client has opened the stream.
//   Session(Shared* shared, uint64_t id, const grpc::ServerContext& context);
//   void OnOpen(const grpc::ServerContext& context);
//   void OnReceived(const In& message);   // also while the stream closes
//   absl::Status OnMessage(In message);   // an error closes the stream
//   void OnClosing(const absl::Status& why);  // this side closes the stream; any thread
//   void OnClosed(const absl::Status& why);   // the last call
//   bool Join(Item* front, Item* next);   // as Outbox's
//
// The calls without another remark come one at a time, in order, on the stream's reader thread.
//
// Intuition. Each reader thread owns a completion queue; a stream belongs to one of them, and gRPC
// reports all of its events there, in order. The reader thread handles reads itself. When the
// stream is free, a write starts on the thread that sends: gRPC then writes to the socket at once
// and returns, whether the peer reads or not. Every queue has its thread from the start: gRPC
// assigns each connection to one of the queues before it sees a stream, and where each thread waits
// for its own sockets only (GRPC_POLL_STRATEGY=poll), no other thread would ever read from it.
//
// Thread-safe, except the functions of GrpcServer::Service, which the server calls in their order.
template <typename Session>
class ServerStreams {
 public:
  struct Options {
    const char* method = nullptr;  // must outlive the server
    int reader_threads = 1;
    // As Outbox's.
    size_t max_cost = 0;
    std::function<void(int64_t)> on_queued;
    // How long a stream closed by this side may take to send what waits; then it is cancelled.
    absl::Duration close_timeout;
  };
  class Stream;

  // `shared` must outlive the streams.
  ServerStreams(Options options, typename Session::Shared* shared)
      : options_(std::move(options)), shared_(shared), service_(options_.method), accepted_(this) {}

  // Calls `use` with the stream, unless it has ended. Any thread. The stream lives as long as `use`
  // runs, even if it ends meanwhile.
  template <typename Use>
  void With(uint64_t id, Use use) {
    if (const std::shared_ptr<Stream> stream = Find(id)) use(stream.get());
  }

  // The first reader's loop, for the process's other uses of gRPC.
  EventLoop* loop() { return &readers_[0]->loop; }

  // As those of GrpcServer::Service.
  void Register(grpc::ServerBuilder* builder) {
    builder->RegisterService(&service_);
    for (int i = 0; i < std::max(options_.reader_threads, 1); ++i) {
      readers_.push_back(std::make_unique<Reader>(builder->AddCompletionQueue()));
    }
  }

  // Starts the reader threads, and requests the first stream.
  void Started() {
    {
      MutexLock lock(&mutex_);
      accepting_ = true;
    }
    for (auto& reader : readers_) reader->loop.Start([this, r = reader.get()] { Sweep(r); });
    AcceptNext();
  }

  // Closes every stream with UNAVAILABLE, also those that clients open later.
  void Stopping() {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      for (const auto& [id, stream] : streams_) streams.push_back(stream);
    }
    for (const auto& stream : streams) stream->Close(ServerIsStopping());
  }

  // Waits until each stream has seen its end, then ends the reader threads.
  void Stopped() {
    {
      // gRPC has ended every call, but each stream still has to see that. Until then the queues
      // must take operations.
      MutexLock lock(&mutex_);
      while (accepting_ || !streams_.empty()) over_.Wait(&mutex_);
    }
    readers_.clear();  // the queues hold the server's own operations, so they end before the server
  }

 private:
  // A loop over one of the server's queues.
  struct Reader {
    explicit Reader(std::unique_ptr<grpc::ServerCompletionQueue> server_queue)
        : queue(server_queue.get()), loop("streams", std::move(server_queue)) {}

    grpc::ServerCompletionQueue* const queue;
    EventLoop loop;
    std::atomic<int> load{0};  // streams
  };

  static absl::Status ServerIsStopping() {
    return absl::UnavailableError("the server is stopping");
  }

  // Makes the next stream, on the reader with the fewest streams, and requests its call.
  void AcceptNext() {
    Reader* reader = readers_[0].get();
    for (const auto& other : readers_) {
      if (other->load < reader->load) reader = other.get();
    }
    next_stream_ = std::make_shared<Stream>(this, next_id_++, reader);
    // From Request on, OnAccepted may take next_stream_ on another thread.
    Stream* const next = next_stream_.get();
    BeforeGrpc(loop());
    next->Request(&service_, readers_[0]->queue, &accepted_);
  }

  // A client has opened the stream that waited, or the server stops.
  void OnAccepted(bool ok) {
    if (!ok) {  // the server stops
      next_stream_ = nullptr;
      MutexLock lock(&mutex_);
      accepting_ = false;
      return over_.SignalAll();
    }

    const std::shared_ptr<Stream> stream = std::move(next_stream_);
    stream->Accept(shared_);
    bool stopping = false;
    {
      MutexLock lock(&mutex_);
      streams_.emplace(stream->id(), stream);
      stopping = stopping_;
    }
    stream->Begin();
    if (stopping) stream->Close(ServerIsStopping());
    AcceptNext();
  }

  // Cancels the reader's streams that take too long to close.
  void Sweep(const Reader* reader) {
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

  // Null if the stream has ended.
  std::shared_ptr<Stream> Find(uint64_t id) {
    MutexLock lock(&mutex_);
    const auto found = streams_.find(id);
    return found == streams_.end() ? nullptr : found->second;
  }

  // The stream calls it once gRPC has returned every operation.
  void Forget(uint64_t id) {
    std::shared_ptr<Stream> last;  // destroyed without the lock
    MutexLock lock(&mutex_);
    const auto found = streams_.find(id);
    last = std::move(found->second);
    streams_.erase(found);
    if (streams_.empty()) over_.SignalAll();
  }

  const Options options_;
  typename Session::Shared* const shared_;
  StreamService service_;
  std::vector<std::unique_ptr<Reader>> readers_;

  // Used by the acceptor, on the first reader's thread. next_stream_ waits for a client.
  MethodEvent<ServerStreams, &ServerStreams::OnAccepted> accepted_;
  std::shared_ptr<Stream> next_stream_;
  uint64_t next_id_ = 1;

  Mutex mutex_;   // protects what follows; not held when gRPC or a session is called
  CondVar over_;  // the server accepts no more streams, or the last one has ended
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uint64_t, std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

// One stream. Its On... functions run on its reader thread, the others on any thread. It is open
// until gRPC has returned every operation; then it is removed.
template <typename Session>
class ServerStreams<Session>::Stream {
 public:
  using In = typename Session::In;
  using Out = typename Session::Out;
  using Item = typename Session::Item;

  // Made before a client opens it: gRPC wants the context and the call with the request.
  Stream(ServerStreams* server, uint64_t id, Reader* reader)
      : server_(server),
        id_(id),
        reader_(reader),
        call_(&context_),
        outbox_(server->options_.max_cost, server->options_.on_queued,
                [this](Item* front, Item* next) { return session_->Join(front, next); }) {
    context_.AsyncNotifyWhenDone(&ended_);
    outbox_.HoldUntilStarted();
  }

  uint64_t id() const { return id_; }
  const Reader* reader() const { return reader_; }
  // Null until a client has opened the stream.
  Session* session() { return session_.get(); }

  void Request(StreamService* service, grpc::ServerCompletionQueue* accepting, Event* accepted) {
    service->Request(&context_, &call_, reader_->queue, accepting, accepted);
  }

  // A client has opened the stream.
  void Accept(typename Session::Shared* shared) {
    reader_->load.fetch_add(1);
    session_ = std::make_unique<Session>(shared, id_, context_);
  }

  // Headers go out at once, so that the client sees that it is connected.
  void Begin() {
    BeforeGrpc(&reader_->loop);
    call_.SendInitialMetadata(&opened_);
  }

  // As Outbox's. No effect once the stream is closing.
  void Push(Item item, size_t cost) { Act(outbox_.Push(std::move(item), cost)); }
  void Queue(Item item, size_t cost, size_t weight, size_t enough) {
    Act(outbox_.Queue(std::move(item), cost, weight, enough));
  }
  void Flush() { Act(outbox_.Flush()); }
  bool closing() const { return outbox_.closing(); }

  // Ends the stream after what waits to be sent, or after close_timeout. Any thread.
  void Close(absl::Status status) {
    session_->OnClosing(status);
    Act(outbox_.Close(std::move(status)));
  }

  // Cancels the stream if close_timeout has passed since it was closed.
  void CutIfOverdue(absl::Time now) {
    const int64_t deadline = cut_at_nanos_.load();
    if (deadline != 0 && absl::ToUnixNanos(now) >= deadline) context_.TryCancel();
  }

 private:
  using Action = typename Outbox<Item>::Action;

  static absl::Status PeerBrokeOff() {
    return absl::UnavailableError("the peer broke off, or sent a message over the size limit");
  }

  void OnOpened(bool ok) {
    session_->OnOpen(context_);
    if (!ok) Act(outbox_.Break(PeerBrokeOff()));
    Read();
    Act(outbox_.Started());
  }

  // Starts the next read. One read is under way at a time.
  void Read() {
    BeforeGrpc(&reader_->loop);
    reading_ = true;
    in_ = In();
    call_.Read(&in_, &read_);
  }

  void OnRead(bool ok) {
    reading_ = false;
    if (!ok) {
      // The peer has finished; if it broke off instead, OnEnded sees that.
      Act(outbox_.Close(absl::OkStatus()));
      return ForgetIfOver();
    }

    session_->OnReceived(in_);
    if (outbox_.closing()) return Read();

    // A large message is handled while gRPC reads the next one; a small one is cheaper to handle
    // first.
    In message = Take(&in_);
    const bool large = IsLarge(message);
    if (large) Read();
    const absl::Status refused = session_->OnMessage(std::move(message));
    if (!refused.ok()) Close(refused);
    if (!large) Read();
  }

  void OnWritten(bool ok) {
    if (!ok) Act(outbox_.Break(PeerBrokeOff()));
    Act(outbox_.Sent());
  }

  // gRPC takes no more operations for this stream, but may still return some.
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

  // Takes the action that the outbox has asked for. Any thread: only one caller gets each action.
  void Act(Action action) {
    BeforeGrpc(&reader_->loop);
    switch (action) {
      case Action::kNothing:
        return;
      case Action::kWrite: {
        const auto& message = MessageOf<Out>(outbox_.front());
        BeforeGrpc(&reader_->loop);  // the write ends when gRPC returns the tag
        return call_.Write(message, &written_);
      }
      case Action::kFinish:
        CutLater();
        return call_.Finish(ToGrpcStatus(outbox_.why()), &finish_);
      case Action::kCutLater:
        return CutLater();
    }
  }

  // A peer that does not read must not keep a closed stream alive.
  void CutLater() {
    int64_t unset = 0;
    cut_at_nanos_.compare_exchange_strong(
        unset, absl::ToUnixNanos(absl::Now() + server_->options_.close_timeout));
  }

  // The stream is gone when its last operation has ended and gRPC has reported the end of the call.
  void ForgetIfOver() {
    if (reading_ || !finished_ || !ended_seen_) return;
    session_->OnClosed(outbox_.why());
    reader_->load.fetch_sub(1);
    server_->Forget(id_);  // may be the end of this object
  }

  ServerStreams* const server_;
  const uint64_t id_;
  Reader* const reader_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<Out, In> call_;
  std::unique_ptr<Session> session_;  // set when a client opens the stream
  Outbox<Item> outbox_;
  std::atomic<int64_t> cut_at_nanos_{0};  // 0: not closed

  // Used only on the reader thread.
  In in_;
  bool reading_ = false;
  bool finished_ = false;
  bool ended_seen_ = false;

  MethodEvent<Stream, &Stream::OnOpened> opened_{this};
  MethodEvent<Stream, &Stream::OnRead> read_{this};
  MethodEvent<Stream, &Stream::OnWritten> written_{this};
  MethodEvent<Stream, &Stream::OnFinished> finish_{this};
  MethodEvent<Stream, &Stream::OnEnded> ended_{this};
};

}  // namespace sluice::internal

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_SERVER_STREAMS_H_
