#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_CLIENT_STREAM_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_CLIENT_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "services/common/threads/notification.h"
#include "services/common/threads/tsan.h"
#include "services/transport/frames/batching.h"
#include "services/transport/grpc_status.h"
#include "services/transport/streams/event_loop.h"
#include "services/transport/streams/outbox.h"

namespace sluice::internal {

// The client's side of one stream, whatever it carries: it sends items as gRPC messages of type
// `Out` and receives messages of type `In`.
//
// Intuition. The loop's thread handles gRPC's events; a write starts on the thread that sends. A
// call runs as follows: start, then reads until one fails, then (when no write is under way any
// more) WritesDone and Finish, which returns the status.
template <typename Item, typename Out, typename In>
class ClientStream {
 public:
  using Call = grpc::ClientAsyncReaderWriter<Out, In>;

  // `loop` must outlive the stream.
  struct Options {
    EventLoop* loop = nullptr;
    // As Outbox's.
    size_t max_cost = 0;
    std::function<void(int64_t)> on_queued;
    typename Outbox<Item>::Join join;
    // Makes the call on the loop's queue, without starting it.
    std::function<std::unique_ptr<Call>(grpc::ClientContext*, grpc::CompletionQueue*)> prepare;
  };

  // On the loop's thread, one at a time.
  struct Callbacks {
    // A message from the server. An error refuses it and breaks the stream.
    std::function<absl::Status(In message)> on_message;
    // Called exactly once, as the last callback, unless the stream is destroyed before. OK: the
    // server ended the stream with OK.
    std::function<void(absl::Status why)> on_broken;
  };

  // Starts the call; does not wait for the connection.
  ClientStream(Options options, Callbacks callbacks)
      : loop_(options.loop),
        callbacks_(std::move(callbacks)),
        outbox_(options.max_cost, std::move(options.on_queued), std::move(options.join)) {
    outbox_.HoldUntilStarted();
    call_ = options.prepare(&context_, loop_->queue());
    BeforeGrpc(loop_);
    call_->StartCall(&started_);
  }

  // Cancels the rest of the stream and waits for a running callback; no further callback is made.
  // Must not be called on the loop's thread.
  ~ClientStream() {
    abandoned_.store(true);
    context_.TryCancel();
    finished_.Wait();
  }

  ClientStream(const ClientStream&) = delete;
  ClientStream& operator=(const ClientStream&) = delete;

  // Sends after everything sent before; the item is dropped once the stream ends. Any thread; does
  // not block.
  void Send(Item item, size_t cost) { Act(outbox_.Push(std::move(item), cost)); }

  // As Outbox's.
  void Queue(Item item, size_t cost, size_t weight, size_t enough) {
    Act(outbox_.Queue(std::move(item), cost, weight, enough));
  }
  void Flush(size_t worth) { Act(outbox_.Flush(worth)); }

  // Ends the sending side once everything sent before has gone out. Any thread; does not block.
  void Finish() { Act(outbox_.Close(absl::OkStatus())); }

  // Whether the end has been decided, by either side; and the cost of what waits.
  bool closing() const { return outbox_.closing(); }
  size_t queued() const { return outbox_.queued(); }

 private:
  using Action = typename Outbox<Item>::Action;

  // ---- the stream's events, on the loop's thread. `ok`: the operation has succeeded.
  void OnStarted(bool) {
    Read();  // fails at once if the call could not be started
    Act(outbox_.Started());
  }

  // Starts the next read. One read is under way at a time.
  void Read() {
    BeforeGrpc(loop_);
    call_->Read(&in_, &read_);
  }

  void OnRead(bool ok) {
    if (!ok) {
      reads_done_ = true;
      Act(outbox_.Break(absl::OkStatus()));  // the status says why
      return FinishIfOver();
    }
    // A large message is handled while gRPC reads the next one.
    In message = Take(&in_);
    const bool large = IsLarge(message);
    if (large) Read();
    if (!abandoned_.load() && refused_.ok()) {
      refused_ = callbacks_.on_message(std::move(message));
      if (!refused_.ok()) context_.TryCancel();
    }
    if (!large) Read();
  }

  void OnWritten(bool ok) {
    if (!ok) Act(outbox_.Break(absl::OkStatus()));
    Act(outbox_.Sent());
  }

  void OnWritesDone(bool) {
    writes_done_ = true;
    FinishIfOver();
  }

  // The call ends when nothing is read any more and the sending side has ended.
  void FinishIfOver() {
    if (!reads_done_ || !writes_done_) return;
    BeforeGrpc(loop_);
    call_->Finish(&status_, &finish_);
  }

  void OnFinished(bool) {
    // An error on this side is a better reason than the cancellation that followed it.
    absl::Status why = !refused_.ok() ? refused_ : outbox_.why();
    if (why.ok()) why = FromGrpcStatus(status_);
    if (!abandoned_.load()) callbacks_.on_broken(std::move(why));
    finished_.Notify();  // may be the end of this object
  }

  // Takes the action that the outbox has asked for. Any thread: only one caller gets each action.
  void Act(Action action) {
    BeforeGrpc(loop_);
    switch (action) {
      case Action::kNothing:
        return;
      case Action::kWrite: {
        const auto& message = MessageOf<Out>(outbox_.front());
        BeforeGrpc(loop_);  // the item's write ends when gRPC returns the tag
        return call_->Write(message, &written_);
      }
      case Action::kFinish:
        CutIfOverBound();
        return call_->WritesDone(&writes_done_event_);
      case Action::kCutLater:
        return CutIfOverBound();
    }
  }

  // The server does not read the queued items, so it would not read the rest either.
  void CutIfOverBound() {
    if (!outbox_.why().ok()) context_.TryCancel();
  }

  EventLoop* const loop_;
  const Callbacks callbacks_;
  Outbox<Item> outbox_;
  std::atomic<bool> abandoned_{false};
  grpc::ClientContext context_;
  std::unique_ptr<Call> call_;

  // Used only on the loop's thread.
  In in_;
  bool reads_done_ = false;
  bool writes_done_ = false;
  absl::Status refused_;  // why a message from the server was refused
  grpc::Status status_;

  MethodEvent<ClientStream, &ClientStream::OnStarted> started_{this};
  MethodEvent<ClientStream, &ClientStream::OnRead> read_{this};
  MethodEvent<ClientStream, &ClientStream::OnWritten> written_{this};
  MethodEvent<ClientStream, &ClientStream::OnWritesDone> writes_done_event_{this};
  MethodEvent<ClientStream, &ClientStream::OnFinished> finish_{this};
  Notification finished_;
};

}  // namespace sluice::internal

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_CLIENT_STREAM_H_
