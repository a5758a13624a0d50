#include "services/ps/shard_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/backoff.h"
#include "services/common/clock.h"
#include "services/common/deadline_timer.h"
#include "services/common/liveness.h"
#include "services/common/mutex.h"
#include "services/common/notification.h"
#include "services/common/serial_executor.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/ps/core/bounds.h"
#include "services/ps/core/frame_checks.h"
#include "services/ps/core/partition_file.h"
#include "services/ps/thread_pool_runner.h"
#include "services/transport/coordinator_link.h"
#include "services/transport/stream_client.h"
#include "services/transport/stream_server.h"

namespace sluice::ps {
namespace {

// Frames with at most this much payload together are handled by the thread that read them.
constexpr size_t kInlineBytes = 64 << 10;
// Log lines about closed streams per second; further ones are only counted, so that a peer that
// reconnects again and again does not fill the log.
constexpr int kLoggedCloses = 10;
// Frames that wait for a connection to another shard; frames of more than two steps are useless.
constexpr size_t kMaxPeerFrames = 256;

// Receiving threads: few, because each makes the messages of the others more expensive (see
// EventLoop).
int ReaderThreads() {
  constexpr int kCoresForEach = 8;
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / kCoresForEach, 1, 8);
}

}  // namespace

class ShardServer::Impl final : public StreamHandler {
 public:
  Impl(Options options, FileSystem* files, Metrics* metrics, Logger logger)
      : options_(std::move(options)),
        files_(files),
        metrics_(metrics),
        logger_(std::move(logger)),
        parallel_(options_.compute_threads),
        executor_({.name = "shard"}),
        file_thread_({.name = "files"}),
        streams_({.reader_threads = ReaderThreads(),
                  .max_queued_bytes = options_.core.max_answer_bytes,
                  .on_queued_bytes = [this](int64_t change) { queued_send_.Increment(change); }},
                 this),
        timer_(&clock_,
               [this] { Event([](ShardCore& core, absl::Time now) { core.OnTick(now); }); }) {}

  ~Impl() override {
    executor_.Post([this] { End(kExitFailed, "the process ends"); });
    executor_.Flush();  // from here on events have no effect
    StopServer();
    file_thread_.Stop();
    executor_.Stop();
  }

  // On gRPC's threads.
  void OnCallRefused(const security::CallRefusal& refusal) {
    metrics_->counter("calls_refused_total", {std::string(refusal.reason)}).Increment();
    if (refusal.to_log == 0) return;
    logger_.Warning("Calls refused", {{"calls", refusal.to_log}, {"why", refusal.text}});
  }

  // On the guard's thread.
  void OnDisconnected(const Disconnection& disconnection) {
    metrics_->counter("connections_aborted_total", {std::string(disconnection.reason)}).Increment();
    if (disconnection.to_log == 0) return;
    logger_.Warning("Connections aborted",
                    {{"connections", disconnection.to_log}, {"why", disconnection.text}});
  }

  absl::Status StartServer() {
    std::vector<GrpcServer::Service*> services = options_.services;
    services.push_back(&streams_);
    ASSIGN_OR_RETURN(
        server_,
        GrpcServer::Start(
            {.address = options_.listen_address,
             .credentials = security::ServerCredentialsOf(
                 options_.security,
                 [this](const security::CallRefusal& refusal) { OnCallRefused(refusal); }),
             .guard = {
                 .on_disconnected =
                     [this](const Disconnection& disconnection) { OnDisconnected(disconnection); },
                 .on_delayed =
                     [this] { metrics_->counter("connections_delayed_total").Increment(); }}},
            std::move(services)));
    options_.core.identity.set_address(
        absl::StrCat(options_.advertised_host, ":", server_->port()));
    core_ = std::make_unique<ShardCore>(options_.core, &parallel_);
    started_.Notify();

    CoordinatorLink::Options link;
    link.address = options_.coordinator;
    link.loop = streams_.loop();
    link.credentials = security::ChannelCredentialsOf(options_.security);
    link.on_round_trip = [this](absl::Duration duration) {
      coordinator_latency_.Observe(absl::ToDoubleSeconds(duration));
    };

    link_ = CoordinatorLink::Start(
        link,
        {.on_connected =
             [this] {
               Event([](ShardCore& core, absl::Time now) { core.OnCoordinatorConnected(now); });
             },
         .on_message =
             [this](v1::CoordinatorMessage message) {
               Event([message = std::move(message)](ShardCore& core, absl::Time now) {
                 core.OnCoordinatorMessage(message, now);
               });
             },
         .on_broken =
             [this](absl::Status why) {
               logger_.Info("Control stream closed", {{"why", why.ToString()}});
               Event([](ShardCore& core, absl::Time now) { core.OnCoordinatorDisconnected(now); });
             }});

    link_ready_.Notify();
    return absl::OkStatus();
  }

  int port() const { return server_->port(); }

  absl::Status Ready() const {
    if (ended_.HasBeenNotified()) return absl::UnavailableError("the shard has ended");
    if (!has_view_) return absl::UnavailableError("the shard has no view yet");
    return absl::OkStatus();
  }

  Result Wait() {
    ended_.Wait();
    // Gives the last messages (the Leave, the last frames) time to be sent.
    link_->Finish(absl::Seconds(2));
    StopServer();
    return result_;
  }

  void Leave(std::string reason, absl::Duration grace) {
    Event([reason = std::move(reason), grace](ShardCore& core, absl::Time now) {
      core.OnLeave(reason, grace, now);
    });
  }
  void Abandon(std::string reason) {
    Event(
        [this, reason = std::move(reason)](ShardCore&, absl::Time) { End(kExitFinished, reason); });
  }

  absl::Status Alive() { return liveness_.Check(); }

  // ---- StreamHandler: on the streams' reader threads

  void OnOpen(StreamId stream, const std::string& peer) override {
    started_.Wait();
    logger_.Debug("Stream opened", {{"stream", stream}, {"peer", peer}});
    {
      MutexLock lock(&received_mutex_);
      received_[stream] = std::make_shared<std::atomic<uint64_t>>(0);
    }
    Event([stream](ShardCore& core, absl::Time now) { core.OnConnected(stream, now); });
  }

  void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) override {
    size_t bytes = 0;
    uint64_t memory = 0;
    for (const DecodedFrame& frame : frames) {
      bytes += frame.payload.size();
      memory += HeaderMemory(frame.header);
    }
    memory += bytes;

    const std::shared_ptr<std::atomic<uint64_t>> received = Receive(stream, memory);
    if (received == nullptr) return;
    frames_received_.Increment(static_cast<double>(frames.size()));
    bytes_received_.Increment(static_cast<double>(bytes));

    auto task = [this, stream, received, memory, frames = std::move(frames)]() mutable {
      received->fetch_sub(memory, std::memory_order_relaxed);
      if (ended_.HasBeenNotified()) return;
      const absl::Time now = clock_.Now();
      for (DecodedFrame& frame : frames) {
        core_->OnFrame(stream, frame.header, std::move(frame.payload), now);
        if (!PerformActions()) break;
      }
      FlushStreams();
      if (!ended_.HasBeenNotified()) AfterEvents(now);
    };

    if (bytes <= kInlineBytes) {
      executor_.Run(std::move(task), bytes);
    } else {
      executor_.Post(std::move(task), bytes);
    }
  }

  void OnClosed(StreamId stream, const absl::Status& why) override {
    logger_.Debug("Stream ended", {{"stream", stream}, {"why", why.ToString()}});
    {
      MutexLock lock(&received_mutex_);
      received_.erase(stream);
    }
    Event([stream](ShardCore& core, absl::Time now) { core.OnDisconnected(stream, now); });
  }

 private:
  // Counts the memory of frames until the core sees them. Null: the limit is exceeded, and the
  // stream is closed.
  std::shared_ptr<std::atomic<uint64_t>> Receive(StreamId stream, uint64_t memory) {
    std::shared_ptr<std::atomic<uint64_t>> received;
    {
      MutexLock lock(&received_mutex_);
      const auto found = received_.find(stream);
      if (found == received_.end()) return nullptr;  // already closed because of this limit
      received = found->second;
    }

    const uint64_t before = received->fetch_add(memory, std::memory_order_relaxed);
    if (before == 0 || before + memory <= options_.core.max_received_bytes) return received;
    {
      MutexLock lock(&received_mutex_);
      received_.erase(stream);
    }
    received_reached_.fetch_add(1, std::memory_order_relaxed);
    streams_.Close(stream, Exceeded(Bound::kReceivedBytes,
                                    absl::StrCat("frames that the shard has not read yet take ",
                                                 before + memory, " bytes, more than ",
                                                 options_.core.max_received_bytes)));
    return nullptr;
  }

  // This shard's stream to another shard.
  struct Peer {
    std::string address;
    v1::ProcessId process;
    std::unique_ptr<StreamClient> stream;  // null: will be opened at `retry_at`
    bool connected = false;                // its HelloReply has arrived
    std::vector<std::pair<v1::Header, absl::Cord>> waiting;
    Backoff backoff{{.max = absl::Seconds(1)}};
    absl::Time retry_at = absl::InfiniteFuture();
  };

  template <typename F>
  void Event(F event) {
    executor_.Run([this, event = std::move(event)]() mutable { Handle(event); });
  }

  // On the executor: passes an event to the core and carries out the resulting actions.
  template <typename F>
  void Handle(F&& event) {
    if (ended_.HasBeenNotified()) return;
    const absl::Time now = clock_.Now();
    event(*core_, now);
    const bool lives = PerformActions();
    FlushStreams();
    if (lives) AfterEvents(now);
  }

  // False: the shard has ended.
  bool PerformActions() {
    for (ShardAction& action : core_->TakeActions()) {
      std::visit([this](auto& a) { this->Perform(a); }, action);
      if (ended_.HasBeenNotified()) return false;
    }
    return true;
  }

  // Debug log: one line per step that this shard has closed.
  void TellSteps() {
    const ShardStatus status = core_->Status();
    if (!status.has_view || status.lowest == told_step_) return;
    told_step_ = status.lowest;
    logger_.Debug("Step closed", {{"step", status.lowest}});
  }

  void AfterEvents(absl::Time now) {
    if (logger_.debug_enabled()) TellSteps();
    if (now - last_publication_ >= absl::Seconds(1)) Publish(now);
    RetryPeers(now);
    timer_.Set(std::min({core_->NextDeadline(), NextRetry(), last_publication_ + absl::Seconds(1)}));
  }

  void Perform(SendFrame& send) {
    frames_sent_.Increment();
    bytes_sent_.Increment(static_cast<double>(send.payload.size()));
    queued_.insert(send.stream);
    streams_.Queue(send.stream, send.header, std::move(send.payload));
  }
  void FlushStreams() {
    for (const StreamId stream : queued_) streams_.Flush(stream);
    queued_.clear();
  }
  void Perform(CloseStream& close) {
    if (logged_closes_ < kLoggedCloses) {
      logger_.Info("Stream closed", {{"stream", close.stream}, {"why", close.status.ToString()}});
    }
    ++logged_closes_;
    if (!close.status.ok()) streams_refused_.Increment();
    streams_.Close(close.stream, close.status);
  }
  void Perform(SendToCoordinator& send) {
    link_ready_.Wait();
    link_->Send(std::move(send.message));
  }
  void Perform(DropCoordinator& drop) {
    logger_.Info("Coordinator replaced", {{"why", drop.reason}});
    link_->Reconnect();
  }

  void Perform(SendToShard& send) {
    Peer& peer = peers_[send.shard.incarnation()];
    if (peer.stream != nullptr && peer.connected) {
      peer.stream->Send(send.header, std::move(send.payload));
      return;
    }
    if (peer.waiting.size() >= kMaxPeerFrames) peer.waiting.erase(peer.waiting.begin());
    peer.waiting.emplace_back(std::move(send.header), std::move(send.payload));
    peer.address = send.address;
    peer.process = send.shard;
    if (peer.stream == nullptr && peer.retry_at == absl::InfiniteFuture()) OpenPeer(peer);
  }

  void OpenPeer(Peer& peer) {
    const uint64_t incarnation = peer.process.incarnation();
    const uint64_t connection = ++last_connection_;
    connections_[incarnation] = connection;
    peer.retry_at = absl::InfiniteFuture();
    peer.connected = false;

    StreamClient::Options options;
    options.address = peer.address;
    options.loop = streams_.loop();
    options.credentials = security::ChannelCredentialsOf(options_.security);

    peer.stream = StreamClient::Connect(
        options, {.on_frames =
                      [this, incarnation, connection](const std::vector<DecodedFrame>& frames) {
                        if (!frames.front().header.has_hello_reply()) return;
                        Event([this, incarnation, connection](ShardCore& core, absl::Time now) {
                          OnPeerConnected(incarnation, connection, core, now);
                        });
                      },
                  .on_broken =
                      [this, incarnation, connection](absl::Status why) {
                        Event([this, incarnation, connection, why](ShardCore&, absl::Time now) {
                          OnPeerBroken(incarnation, connection, why, now);
                        });
                      }});
    peer.stream->Send(core_->MakeHello(peer.process));
  }

  void OnPeerConnected(uint64_t incarnation, uint64_t connection, ShardCore& core, absl::Time now) {
    if (connections_[incarnation] != connection) return;
    Peer& peer = peers_[incarnation];
    peer.connected = true;
    peer.backoff.Reset();
    for (auto& [header, payload] : peer.waiting) peer.stream->Send(header, std::move(payload));
    peer.waiting.clear();
    core.OnShardConnected(incarnation, now);
  }

  void OnPeerBroken(uint64_t incarnation, uint64_t connection, const absl::Status& why,
                    absl::Time now) {
    if (connections_[incarnation] != connection) return;
    logger_.Info("Stream to another shard broke", {{"why", why.ToString()}});
    Peer& peer = peers_[incarnation];
    // This may run in the stream's own callback, which must not destroy the stream.
    file_thread_.Post([stream = std::move(peer.stream)] {});
    peer.connected = false;
    if (absl::IsNotFound(
            why)) {  // another instance of the shard answers, so this one will not return
      peers_.erase(incarnation);
      connections_.erase(incarnation);
      return;
    }
    peer.retry_at = now + peer.backoff.Next(random_);
  }

  void RetryPeers(absl::Time now) {
    for (auto& [incarnation, peer] : peers_) {
      if (peer.retry_at <= now) OpenPeer(peer);
    }
  }
  absl::Time NextRetry() const {
    absl::Time next = absl::InfiniteFuture();
    for (const auto& [incarnation, peer] : peers_) next = std::min(next, peer.retry_at);
    return next;
  }

  // Runs after the end, when events have no effect.
  void StopServer() {
    executor_.Flush();
    // Objects that run on the server's loop are destroyed before it.
    link_.reset();
    ClosePeers();
    file_thread_.Flush();  // broken streams are destroyed there
    if (server_ != nullptr) server_->Stop();
  }

  void ClosePeers() {
    std::vector<std::unique_ptr<StreamClient>> streams;
    Notification taken;
    executor_.Run([&] {
      for (auto& [incarnation, peer] : peers_) streams.push_back(std::move(peer.stream));
      peers_.clear();
      connections_.clear();
      taken.Notify();
    });
    taken.Wait();
  }

  std::unique_ptr<CheckpointStorage> StorageOf(const std::string& checkpoint_directory) const {
    return MakeLocalStorage(files_, DirectoryOf(checkpoint_directory),
                            absl::StrCat(options_.core.identity.process().incarnation()));
  }

  void Perform(WritePartition& write) {
    file_thread_.Post([this, write = std::move(write)] {
      const absl::Time begin = absl::Now();
      EncodedPartition encoded = EncodePartition(*write.content);
      const absl::Status status =
          StorageOf(write.directory)->WriteFile(write.checkpoint, write.file_name, encoded.bytes);
      if (status.ok()) {
        checkpoint_bytes_.Increment(static_cast<double>(encoded.file.bytes()));
        checkpoint_seconds_.Observe(absl::ToDoubleSeconds(absl::Now() - begin));
      } else {
        logger_.Warning("Partition write failed",
                        {{"partition", write.partition}, {"why", status.ToString()}});
      }

      absl::StatusOr<v1::PartitionFile> written =
          status.ok() ? absl::StatusOr<v1::PartitionFile>(std::move(encoded.file)) : status;
      Event([snapshot = write.snapshot, checkpoint = write.checkpoint, partition = write.partition,
             written = std::move(written)](ShardCore& core, absl::Time now) mutable {
        core.OnPartitionWritten(snapshot, checkpoint, partition, std::move(written), now);
      });
    });
  }

  void Perform(LoadPartition& load) {
    file_thread_.Post([this, load = std::move(load)] {
      absl::StatusOr<absl::Cord> file =
          StorageOf(load.directory)->ReadFile(load.checkpoint, load.file);
      Event([init_id = load.init_id, partition = load.file.partition(), file = std::move(file)](
                ShardCore& core, absl::Time now) mutable {
        core.OnPartitionLoaded(init_id, partition, std::move(file), now);
      });
    });
  }

  void Perform(ExitProcess& exit) { End(exit.code, exit.reason); }

  void End(int code, std::string reason) {
    if (ended_.HasBeenNotified()) return;
    logger_.Info("The shard ends", {{"code", code}, {"why", reason}});
    result_.code = code;
    result_.reason = std::move(reason);
    ended_.Notify();
  }

  void PublishBounds(ShardStatus* status) {
    BoundUse& received = status->bounds[static_cast<size_t>(Bound::kReceivedBytes)];
    received.limit = options_.core.max_received_bytes;
    received.reached = received_reached_.load(std::memory_order_relaxed);
    {
      MutexLock lock(&received_mutex_);
      for (const auto& [stream, bytes] : received_) {
        received.used = std::max(received.used, bytes->load(std::memory_order_relaxed));
      }
    }

    for (size_t bound = 0; bound < kBounds; ++bound) {
      const BoundUse& use = status->bounds[bound];
      const std::vector<std::string> label = {std::string(kBoundNames[bound])};
      metrics_->gauge("bound_used", label).Set(static_cast<double>(use.used));
      metrics_->gauge("bound_limit", label).Set(static_cast<double>(use.limit));
      metrics_->counter("bound_reached_total", label)
          .Increment(static_cast<double>(use.reached - bounds_reached_[bound]));
      bounds_reached_[bound] = use.reached;
    }
  }

  void Publish(absl::Time now) {
    last_publication_ = now;
    ShardStatus status = core_->Status();
    PublishBounds(&status);
    if (logged_closes_ > kLoggedCloses) {
      logger_.Info("More streams closed", {{"streams", logged_closes_ - kLoggedCloses}});
    }
    logged_closes_ = 0;
    has_view_ = status.has_view;

    const auto set = [this](absl::string_view name, double value) {
      metrics_->gauge(name).Set(value);
    };
    set("step", static_cast<double>(status.lowest));
    set("committed_step", static_cast<double>(status.committed));
    set("updates_applied", static_cast<double>(status.updates_applied));
    set("streams", static_cast<double>(status.streams));
    set("waiting_frames", static_cast<double>(status.waiting_frames));
    set("waiting_bytes", static_cast<double>(status.waiting_bytes));
    set("parked_pulls", static_cast<double>(status.parked_pulls));
    set("staged_updates", static_cast<double>(status.staged_updates));
    set("open_snapshots", static_cast<double>(status.open_snapshots));
    set("blocks_allocated", static_cast<double>(status.blocks_allocated));
    set("dropped_contributions", static_cast<double>(status.dropped_contributions));
    set("repeated_blocks", static_cast<double>(status.repeated_blocks));
    set("executor_queue_tasks", static_cast<double>(executor_.queued_tasks()));
    set("executor_queue_bytes", static_cast<double>(executor_.queued_bytes()));

    if (status.has_view && !Same(status.view, last_view_)) {
      last_view_ = status.view;
      view_changes_.Increment();
      logger_.Info("View installed", {{"view", ShortName(status.view)}, {"step", status.lowest}});
    }
  }

  Options options_;
  FileSystem* const files_;
  Metrics* const metrics_;
  const Logger logger_;
  const RealClock clock_;
  prometheus::Counter& frames_received_ = metrics_->counter("frames_received_total");
  prometheus::Counter& bytes_received_ = metrics_->counter("received_bytes_total");
  prometheus::Counter& frames_sent_ = metrics_->counter("frames_sent_total");
  prometheus::Counter& bytes_sent_ = metrics_->counter("sent_bytes_total");
  prometheus::Counter& streams_refused_ = metrics_->counter("streams_refused_total");
  prometheus::Counter& view_changes_ = metrics_->counter("view_changes_total");
  prometheus::Counter& checkpoint_bytes_ = metrics_->counter("checkpoint_written_bytes_total");
  prometheus::Histogram& checkpoint_seconds_ = metrics_->histogram("partition_write_seconds");
  prometheus::Histogram& coordinator_latency_ = metrics_->histogram("coordinator_latency_seconds");
  prometheus::Gauge& queued_send_ = metrics_->gauge("send_queue_bytes");
  ThreadPoolRunner parallel_;

  // Accessed only by the executor's tasks.
  std::unique_ptr<ShardCore> core_;
  uint64_t told_step_ = 0;  // last step that TellSteps has logged
  // Streams with frames that wait for FlushStreams.
  absl::flat_hash_set<StreamId> queued_;
  std::map<uint64_t, Peer> peers_;            // by incarnation
  std::map<uint64_t, uint64_t> connections_;  // number of our current connection to that peer
  uint64_t last_connection_ = 0;
  absl::BitGen random_;
  absl::Time last_publication_ = absl::InfinitePast();
  int logged_closes_ = 0;  // since the last publication
  std::array<uint64_t, kBounds> bounds_reached_{};
  v1::ViewId last_view_;
  Result result_;  // written before ended_ is notified

  // Memory of the frames of each open stream that the core has not seen yet.
  Mutex received_mutex_;
  absl::flat_hash_map<StreamId, std::shared_ptr<std::atomic<uint64_t>>> received_
      ABSL_GUARDED_BY(received_mutex_);
  std::atomic<uint64_t> received_reached_{0};
  std::atomic<bool> has_view_{false};
  Notification started_;     // core_ exists
  Notification link_ready_;  // link_ exists
  Notification ended_;

  SerialExecutor executor_;
  Liveness liveness_{&executor_, kLivenessPatience, &clock_};
  SerialExecutor file_thread_;
  StreamServer streams_;
  DeadlineTimer timer_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<CoordinatorLink> link_;
};

ShardServer::ShardServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ShardServer::~ShardServer() = default;

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(Options options, FileSystem* files,
                                                                Metrics* metrics, Logger logger) {
  auto impl = std::make_unique<Impl>(std::move(options), files, metrics, std::move(logger));
  RETURN_IF_ERROR(impl->StartServer());
  return std::unique_ptr<ShardServer>(new ShardServer(std::move(impl)));
}

int ShardServer::port() const { return impl_->port(); }
absl::Status ShardServer::Ready() const { return impl_->Ready(); }
ShardServer::Result ShardServer::Wait() { return impl_->Wait(); }
void ShardServer::Leave(std::string reason, absl::Duration grace) {
  impl_->Leave(std::move(reason), grace);
}
absl::Status ShardServer::Alive() { return impl_->Alive(); }
void ShardServer::Abandon(std::string reason) { impl_->Abandon(std::move(reason)); }

}  // namespace sluice::ps
