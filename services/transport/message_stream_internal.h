#ifndef SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_INTERNAL_H_
#define SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_INTERNAL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/common/mutex.h"
#include "services/common/status_macros.h"
#include "services/common/tsan.h"
#include "services/transport/bounded_message.h"
#include "services/transport/grpc_status.h"
#include "services/transport/outbox.h"
#include "services/transport/security/identity.h"
#include "services/transport/security/transport_security.h"

// The server's reactor behind message_stream.h.
//
// Intuition. gRPC wants one write at a time, nothing after the end, and the end exactly once;
// Outbox decides which operation comes next and which thread starts it; that thread does so without
// a lock held. The reactor lives until OnDone, gRPC's last call.

namespace sluice {

struct MessageStreamOptions {
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
  virtual void OnMessage(uint64_t stream, In message) = 0;
  // `why` is OK if the peer finished; else the error that broke the stream, or the status that this
  // side closed it with.
  virtual void OnClosed(uint64_t stream, const absl::Status& why) = 0;
};

namespace internal {

inline absl::Status PeerBrokeOff() { return absl::UnavailableError("the peer broke off"); }

template <typename In, typename Out>
class ServerStreams {
 public:
  ServerStreams(const MessageStreamOptions& options, MessageStreamHandler<In>* handler)
      : options_(options), handler_(handler) {}

  static grpc::ServerBidiReactor<Bounded<In>, Out>* Accept(
      const std::shared_ptr<ServerStreams>& streams, grpc::CallbackServerContext* context) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(&streams->mutex_);
      if (!streams->stopping_) {
        const uint64_t id = streams->next_id_++;
        stream = std::make_shared<Stream>(streams, id, context);
        streams->open_.emplace(id, stream);
      }
    }
    if (stream == nullptr) return new Refusal(absl::UnavailableError("the server is stopping"));
    return stream->Begin(stream);
  }

  void Send(uint64_t id, Out message) {
    if (auto stream = Find(id)) stream->Send(std::move(message));
  }

  void Close(uint64_t id, absl::Status status) {
    if (auto stream = Find(id)) stream->Close(std::move(status));
  }

  // Accepts no more streams, closes all.
  void Stop(const absl::Status& status) {
    std::vector<std::shared_ptr<Stream>> streams;
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      for (const auto& [id, stream] : open_) streams.push_back(stream);
    }
    for (const auto& stream : streams) stream->Close(status);
  }

  // Blocks until OnClosed has returned for every stream.
  void WaitUntilNone() {
    MutexLock lock(&mutex_);
    while (!open_.empty()) closed_.Wait(&mutex_);
  }

 private:
  class Refusal final : public grpc::ServerBidiReactor<Bounded<In>, Out> {
   public:
    explicit Refusal(const absl::Status& status) { this->Finish(ToGrpcStatus(status)); }
    void OnDone() override { delete this; }
  };

  class Stream final : public grpc::ServerBidiReactor<Bounded<In>, Out>,
                       public std::enable_shared_from_this<Stream> {
   public:
    Stream(std::shared_ptr<ServerStreams> streams, uint64_t id,
           grpc::CallbackServerContext* context)
        : streams_(std::move(streams)),
          id_(id),
          outbox_(streams_->options_.max_queued_messages, nullptr),
          context_(context) {}

    grpc::ServerBidiReactor<Bounded<In>, Out>* Begin(const std::shared_ptr<Stream>& self) {
      self_ = self;
      std::string peer;
      {
        MutexLock lock(&context_mutex_);
        peer = context_->peer();
        identity_ = security::PeerOf(*context_->auth_context());
      }
      BeforeGrpc(this);
      this->StartSendInitialMetadata();  // the client sees that it is connected
      streams_->handler_->OnOpen(id_, peer);
      BeforeGrpc(this);
      this->StartRead(&in_);
      return this;
    }

    void Send(Out message) { Act(outbox_.Push(std::move(message), 1)); }
    void Close(absl::Status status) { Act(outbox_.Close(std::move(status))); }

    void OnReadDone(bool ok) override {
      AfterGrpc(this);
      if (!ok) return Act(outbox_.Close(absl::OkStatus()));  // if it broke, OnCancel reports that
      if (!outbox_.closing()) Receive();
      in_ = Bounded<In>();
      BeforeGrpc(this);
      this->StartRead(&in_);
    }

    void OnWriteDone(bool ok) override {
      AfterGrpc(this);
      if (!ok) Act(outbox_.Break(PeerBrokeOff()));
      Act(outbox_.Sent());
    }

    void OnCancel() override {
      AfterGrpc(this);
      Act(outbox_.Break(PeerBrokeOff()));
    }

    void OnDone() override {
      AfterGrpc(this);
      {
        MutexLock lock(&context_mutex_);
        context_ = nullptr;
      }
      streams_->handler_->OnClosed(id_, outbox_.why());
      const std::shared_ptr<Stream> self = std::move(self_);  // this
      streams_->Forget(id_);
    }

   private:
    using Action = typename Outbox<Out>::Action;

    void Receive() {
      RETURN_IF_ERROR(in_.fits, Close(_));
      RETURN_IF_ERROR(streams_->handler_->Admit(identity_, in_.message), Close(_));
      streams_->handler_->OnMessage(id_, std::move(in_.message));
    }

    void Act(Action action) {
      BeforeGrpc(this);
      switch (action) {
        case Action::kNothing:
          return;
        case Action::kWrite:
          return this->StartWrite(&outbox_.front());
        case Action::kCutLater:
          return CutLater();
        case Action::kFinish: {
          CutLater();
          const grpc::Status status = ToGrpcStatus(outbox_.why());
          BeforeGrpc(this);  // OnDone may follow on another thread at once
          return this->Finish(status);
        }
      }
    }

    // A peer that does not read must not keep a closed stream alive.
    void CutLater() {
      if (cutting_.exchange(true)) return;
      cut_.Set(absl::ToChronoTime(absl::Now() + streams_->options_.close_timeout),
               [weak = this->weak_from_this()](bool expired) {
                 const auto stream = weak.lock();
                 if (!expired || stream == nullptr) return;
                 MutexLock lock(&stream->context_mutex_);
                 if (stream->context_ != nullptr) stream->context_->TryCancel();
               });
    }

    const std::shared_ptr<ServerStreams> streams_;
    const uint64_t id_;
    Outbox<Out> outbox_;
    Bounded<In> in_;  // the message being read
    std::optional<security::PeerIdentity> identity_;
    std::atomic<bool> cutting_{false};
    grpc::Alarm cut_;
    // Protects the context, which gRPC destroys after OnDone. Held while the context is cancelled;
    // TryCancel runs no reaction on this thread.
    Mutex context_mutex_;
    grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(context_mutex_);
    std::shared_ptr<Stream> self_;  // until OnDone
  };

  std::shared_ptr<Stream> Find(uint64_t id) {
    MutexLock lock(&mutex_);
    const auto found = open_.find(id);
    return found == open_.end() ? nullptr : found->second;
  }

  void Forget(uint64_t id) {
    MutexLock lock(&mutex_);
    open_.erase(id);
    if (open_.empty()) closed_.SignalAll();
  }

  const MessageStreamOptions options_;
  MessageStreamHandler<In>* const handler_;
  Mutex mutex_;  // protects the table of streams; not held when streams or handlers are called
  CondVar closed_;
  std::map<uint64_t, std::shared_ptr<Stream>> open_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace internal
}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_MESSAGE_STREAM_INTERNAL_H_
