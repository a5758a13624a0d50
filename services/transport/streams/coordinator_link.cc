#include "services/transport/streams/coordinator_link.h"

#include <cstdint>
#include <optional>
#include <thread>
#include <utility>

#include "absl/random/random.h"
#include "proto/control.grpc.pb.h"
#include "services/common/threads/mutex.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/security/gated_credentials.h"
#include "services/transport/security/handshake.h"
#include "services/transport/streams/message_stream.h"

namespace sluice {

// One thread makes and destroys the streams, which must not happen in their callbacks.
class CoordinatorLink::Impl {
 public:
  Impl(Options options, Callbacks callbacks)
      : options_(std::move(options)),
        callbacks_(std::move(callbacks)),
        channel_(MakeChannel({.address = options_.address,
                              .kind = ChannelKind::kControl,
                              .credentials = options_.credentials})),
        stub_(v1::Coordinator::NewStub(channel_)),
        thread_([this] { Loop(); }) {}

  ~Impl() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
    }
    changed_.SignalAll();
    thread_.join();
  }

  void Send(v1::MemberMessage message) {
    if (message.has_heartbeat() && options_.on_round_trip) {
      MutexLock lock(&mutex_);
      heartbeat_ = Heartbeat{message.heartbeat().sequence(), absl::Now()};
    }
    WithStream([&](Stream& stream) { stream.Send(std::move(message)); });
  }

  void Reconnect() {
    MutexLock lock(&mutex_);
    broken_ = true;
    if (why_.ok()) why_ = absl::CancelledError("looking for another coordinator");
    changed_.SignalAll();
  }

  void Finish(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    {
      MutexLock lock(&mutex_);
      finishing_ = true;
    }
    changed_.SignalAll();
    WithStream([](Stream& stream) { stream.Finish(); });

    MutexLock lock(&mutex_);
    while (!ended_ && absl::Now() < deadline) changed_.WaitWithDeadline(&mutex_, deadline);
  }

 private:
  using Stream = MessageStreamClient<v1::MemberMessage, v1::CoordinatorMessage>;

  // Uses the current stream, if any, without the lock. Only the link's thread destroys the stream,
  // once it has no users: a user may be one of its own callbacks, for which its destructor would
  // wait.
  template <typename Use>
  void WithStream(Use use) {
    Stream* stream = nullptr;
    {
      MutexLock lock(&mutex_);
      stream = stream_.get();
      // A dropped stream may still lead to a coordinator that was replaced.
      if (stream == nullptr || retiring_ || broken_) return;
      ++users_;
    }

    use(*stream);
    MutexLock lock(&mutex_);
    if (--users_ == 0 && retiring_) changed_.SignalAll();
  }

  void Loop() {
    Backoff backoff(options_.backoff);
    absl::BitGen random;
    while (true) {
      const absl::Time started = absl::Now();
      OpenStream();
      if (!WaitUntilBroken()) break;
      // A stream that lasted for a while shows that the coordinator is up.
      if (absl::Now() - started > absl::Seconds(2)) backoff.Reset();

      MutexLock lock(&mutex_);
      const absl::Time deadline = absl::Now() + backoff.Next(random);
      while (!stopping_ && !finishing_ && absl::Now() < deadline) {
        changed_.WaitWithDeadline(&mutex_, deadline);
      }
      if (stopping_ || finishing_) break;
    }

    MutexLock lock(&mutex_);
    ended_ = true;
    changed_.SignalAll();
  }

  void OpenStream() {
    {
      MutexLock lock(&mutex_);
      broken_ = false;
      why_ = absl::OkStatus();
    }
    received_ = false;

    auto stream = std::make_unique<Stream>(
        MessageStreamOptions(), options_.loop,
        [this](auto* context, auto* queue) { return stub_->PrepareAsyncJoin(context, queue); },
        Stream::Callbacks{.on_message =
                              [this](v1::CoordinatorMessage message) {
                                received_ = true;
                                if (message.has_heartbeat_reply()) {
                                  NoteReply(message.heartbeat_reply().sequence());
                                }
                                callbacks_.on_message(std::move(message));
                              },
                          .on_broken =
                              [this](absl::Status why) {
                                if (!received_) {
                                  why = security::ExplainHandshake(
                                      why, security::SpeaksTls(options_.credentials), "");
                                }
                                MutexLock lock(&mutex_);
                                broken_ = true;
                                if (why_.ok()) why_ = std::move(why);
                                changed_.SignalAll();
                              }});

    {
      MutexLock lock(&mutex_);
      stream_ = std::move(stream);
      retiring_ = false;
    }

    callbacks_.on_connected();
  }

  // Measures only the newest heartbeat; if an older one's reply is late, the newest one's is too.
  void NoteReply(uint64_t sequence) {
    absl::Time sent;
    {
      MutexLock lock(&mutex_);
      if (!heartbeat_ || heartbeat_->sequence != sequence) return;
      sent = heartbeat_->sent;
      heartbeat_.reset();
    }
    options_.on_round_trip(absl::Now() - sent);
  }

  // False: the link is being destroyed.
  bool WaitUntilBroken() {
    std::unique_ptr<Stream> stream;
    absl::Status why;
    bool stopping = false;
    {
      MutexLock lock(&mutex_);
      while (!broken_ && !stopping_) changed_.Wait(&mutex_);
      retiring_ = true;
      while (users_ > 0) changed_.Wait(&mutex_);
      stream = std::move(stream_);
      why = why_;
      stopping = stopping_;
    }

    stream.reset();  // waits for its callbacks
    if (stopping) return false;
    callbacks_.on_broken(why);
    return true;
  }

  struct Heartbeat {
    uint64_t sequence;
    absl::Time sent;
  };

  const Options options_;
  const Callbacks callbacks_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;

  // Whether anything has arrived on the current stream. Used only by its callbacks, which end
  // before the next stream begins.
  bool received_ = false;

  Mutex mutex_;  // protects what follows; not held while calling out
  CondVar changed_;
  std::unique_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  int users_ ABSL_GUARDED_BY(mutex_) = 0;                       // of stream_, without the lock
  bool retiring_ ABSL_GUARDED_BY(mutex_) = false;               // no new users
  std::optional<Heartbeat> heartbeat_ ABSL_GUARDED_BY(mutex_);  // the newest, without a reply
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: starts when the other members exist
};

CoordinatorLink::CoordinatorLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorLink::~CoordinatorLink() = default;

std::unique_ptr<CoordinatorLink> CoordinatorLink::Start(Options options, Callbacks callbacks) {
  return std::unique_ptr<CoordinatorLink>(
      new CoordinatorLink(std::make_unique<Impl>(std::move(options), std::move(callbacks))));
}

void CoordinatorLink::Send(v1::MemberMessage message) { impl_->Send(std::move(message)); }
void CoordinatorLink::Reconnect() { impl_->Reconnect(); }
void CoordinatorLink::Finish(absl::Duration timeout) { impl_->Finish(timeout); }

}  // namespace sluice
