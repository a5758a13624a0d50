#include "services/ps/shard_server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/process/processors.h"
#include "services/common/status_macros.h"
#include "services/common/threads/notification.h"
#include "services/common/threads/serial_executor.h"
#include "services/common/time/clock.h"
#include "services/protocol/ids.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/session/frame_checks.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/peer_streams.h"
#include "services/ps/thread_pool_runner.h"
#include "services/shell/core_shell.h"
#include "services/shell/member_link.h"
#include "services/shell/received_bytes.h"
#include "services/shell/role_server.h"
#include "services/transport/streams/stream_server.h"

namespace sluice::ps {
namespace {

// Frames with at most this much payload together are handled by the thread that read them.
constexpr size_t kInlineBytes = 64 << 10;
// Log lines about closed streams per second; further ones are only counted, so that a peer that
// reconnects again and again does not fill the log.
constexpr int kLoggedCloses = 10;

// The priority of the thread that reads the states of copies: steps do not wait for a processor.
constexpr int kCopyNice = 10;

// Receiving threads: few, because each makes the messages of the others more expensive (see
// EventLoop).
int ReaderThreads() {
  constexpr int kCoresForEach = 8;
  return std::clamp(AvailableProcessors() / kCoresForEach, 1, 8);
}

std::string WithPort(const std::string& address, int port) {
  const size_t bracket = address.rfind(']');  // of an IPv6 address
  const size_t colon = address.find(':', bracket == std::string::npos ? 0 : bracket);
  return colon == std::string::npos ? absl::StrCat(address, ":", port) : address;
}

using Shell = CoreShell<ShardCore>;

class Server final : public ShardServer, public StreamHandler, public Shell::Role {
 public:
  Server(Options options, FileSystem* files, Metrics* metrics, Logger logger)
      : options_(std::move(options)),
        files_(files),
        metrics_(metrics),
        logger_(std::move(logger)),
        parallel_(options_.compute_threads),
        received_(options_.core.max_received_bytes,
                  [this](StreamId stream, uint64_t bytes) { CloseFull(stream, bytes); }),
        shell_("shard", &clock_, this),
        file_thread_({.name = "files"}),
        copy_thread_({.name = "copies"}),
        streams_({.reader_threads = ReaderThreads(),
                  .max_queued_bytes = options_.core.max_answer_bytes,
                  .shared_memory = options_.shared_memory,
                  .on_queued_bytes = [this](int64_t change) { queued_send_.Increment(change); }},
                 this),
        peers_(&shell_, &streams_, &file_thread_, options_.security, logger_),
        link_(&shell_, metrics_, logger_) {
    // Linux: of this thread alone.
    copy_thread_.Post([] { setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kCopyNice); });
  }

  ~Server() override {
    shell_.Close([this] { End(ExitReason::kFailed, "the process ends"); });
    StopServer();
    file_thread_.Stop();
    copy_thread_.Stop();
    shell_.Stop();
  }

  absl::Status StartServer() {
    std::vector<GrpcServer::Service*> services = options_.services;
    services.push_back(&streams_);
    ASSIGN_OR_RETURN(server_,
                     StartRoleServer({.address = options_.listen_address}, options_.security,
                                     std::move(services), metrics_, logger_));

    options_.core.identity.set_address(WithPort(options_.advertised_address, server_->port()));
    shell_.Start(options_.core, &parallel_);
    started_.Notify();
    link_.Start(options_.coordinator, streams_.loop(), options_.security);
    return absl::OkStatus();
  }

  // ---- ShardServer

  int port() const override { return server_->port(); }

  absl::Status Ready() const override {
    if (!has_view_) return absl::UnavailableError("the shard has no view yet");
    return absl::OkStatus();
  }

  Result Wait() override {
    shell_.Wait();
    link_.Finish();  // the Leave, the last frames
    StopServer();
    return result_;
  }

  void Leave(std::string reason, absl::Duration grace) override {
    logger_.Info("Leaving", {{"why", reason}, {"within", absl::FormatDuration(grace)}});
    shell_.Event(Call(&ShardCore::OnAskedToStop, std::move(reason), grace));
  }

  void Abandon(std::string reason) override {
    shell_.Event([this, reason = std::move(reason)](ShardCore&, absl::Time) {
      End(ExitReason::kLeft, reason);
    });
  }

  absl::Status Alive() override { return shell_.Alive(); }

  // ---- StreamHandler: on the streams' reader threads

  void OnOpen(StreamId stream, const std::string& peer) override {
    started_.Wait();
    logger_.Debug("Stream opened", {{"stream", stream}, {"peer", peer}});
    received_.Open(stream);
    shell_.Event(Call(&ShardCore::OnConnected, stream));
  }

  void OnFrames(StreamId stream, std::vector<DecodedFrame> frames) override {
    size_t bytes = 0;
    uint64_t memory = 0;
    for (const DecodedFrame& frame : frames) {
      bytes += frame.payload.size();
      memory += HeaderMemory(frame.header);
    }

    ReceivedBytes::Receipt receipt = received_.Add(stream, memory + bytes);
    if (!receipt) return;
    frames_received_.Increment(static_cast<double>(frames.size()));
    bytes_received_.Increment(static_cast<double>(bytes));

    auto handle = [this, stream, receipt = std::move(receipt), frames = std::move(frames)](
                      ShardCore& core, absl::Time now) mutable {
      receipt.Release();
      for (DecodedFrame& frame : frames) {
        core.OnFrame(stream, frame.header, frame.payload, now);
        if (!shell_.PerformActions()) return;
      }
    };
    shell_.Event(std::move(handle), {.bytes = bytes, .post = bytes > kInlineBytes});
  }

  void OnClosed(StreamId stream, const absl::Status& why) override {
    logger_.Debug("Stream ended", {{"stream", stream}, {"why", why.ToString()}});
    received_.Close(stream);
    shell_.Event(Call(&ShardCore::OnDisconnected, stream));
  }

  // ---- Shell::Role

  void PerformAction(ShardAction& action) override {
    std::visit([this](auto& a) { Perform(a); }, action);
  }

  void AfterActions(size_t) override {
    for (const StreamId stream : queued_) streams_.Flush(stream);
    queued_.clear();
  }

  absl::Time ServeDeadlines(absl::Time now) override {
    if (logger_.debug_enabled()) LogStep();
    return peers_.Retry(now);
  }

  void Publish(absl::Time) override {
    ShardStatus status = shell_.core().Status();
    has_view_ = status.has_view;
    status.bounds[static_cast<size_t>(Bound::kReceivedBytes)] = {
        received_.limit(), received_.Largest(), received_.exceeded()};
    PublishBounds(status.bounds);
    PublishStatus(status);
    busy_.Increment(absl::ToDoubleSeconds(shell_.busy()) - busy_.Value());

    if (logged_closes_ > kLoggedCloses) {
      logger_.Info("More streams closed", {{"streams", logged_closes_ - kLoggedCloses}});
    }
    logged_closes_ = 0;

    if (status.has_view && !Same(status.view, last_view_)) {
      last_view_ = status.view;
      view_changes_.Increment();
      logger_.Info("View installed", {{"view", ShortName(status.view)}, {"step", status.lowest}});
    }
  }

 private:
  // ---- actions

  void Perform(SendFrame& send) {
    frames_sent_.Increment();
    bytes_sent_.Increment(static_cast<double>(send.payload.size()));
    queued_.insert(send.stream);
    streams_.Queue(send.stream, send.header, send.payload);
  }
  void Perform(SendToShard& send) {
    frames_sent_.Increment();
    bytes_sent_.Increment(static_cast<double>(send.payload.size()));
    peers_.Send(std::move(send));
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
    if (send.message.has_shard_progress()) {
      send.message.mutable_shard_progress()->set_busy_seconds(absl::ToDoubleSeconds(shell_.busy()));
    }
    link_.Send(std::move(send.message));
  }
  void Perform(DropCoordinator& drop) {
    logger_.Info("Coordinator replaced", {{"why", drop.reason}});
    link_.Reconnect();
  }

  void Perform(WritePartition& write) {
    file_thread_.Post([this, write = std::move(write)] {
      absl::StatusOr<v1::PartitionFile> written = Write(write);
      if (!written.ok()) {
        logger_.Warning("Partition write failed",
                        {{"partition", write.partition}, {"why", written.status().ToString()}});
      }
      shell_.Event(Call(&ShardCore::OnPartitionWritten, write.snapshot, write.checkpoint,
                        write.partition, std::move(written)));
    });
  }
  void Perform(LoadPartition& load) {
    file_thread_.Post([this, load = std::move(load)] {
      absl::StatusOr<absl::Cord> file =
          StorageOf(load.directory)->ReadFile(load.checkpoint, load.file);
      shell_.Event(Call(&ShardCore::OnPartitionLoaded, load.init_id, load.file.partition(),
                        std::move(file)));
    });
  }
  void Perform(ReadCopy& read) {
    copy_thread_.Post([this, read = std::move(read)] {
      if (shell_.ended()) return;  // it takes a while
      shell_.Event(Call(&ShardCore::OnCopyRead, read.transfer, ReadReceivedCopy(read)),
                   {.post = true});
    });
  }
  void Perform(Exit& exit) { End(exit.reason, std::move(exit.message)); }

  // ---- files: on the file thread

  std::unique_ptr<CheckpointStorage> StorageOf(const std::string& checkpoint_directory) const {
    return MakeLocalStorage(files_, DirectoryOf(checkpoint_directory),
                            absl::StrCat(options_.core.identity.process().incarnation()));
  }

  absl::StatusOr<v1::PartitionFile> Write(const WritePartition& write) {
    const absl::Time begin = clock_.Now();
    EncodedPartition encoded = EncodePartition(*write.content);
    RETURN_IF_ERROR(
        StorageOf(write.directory)->WriteFile(write.checkpoint, write.file_name, encoded.bytes));
    checkpoint_bytes_.Increment(static_cast<double>(encoded.file.bytes()));
    checkpoint_seconds_.Observe(absl::ToDoubleSeconds(clock_.Now() - begin));
    return std::move(encoded.file);
  }

  // ---- metrics

  void PublishBounds(const BoundUses& bounds) {
    for (size_t bound = 0; bound < kBounds; ++bound) {
      const BoundUse& use = bounds[bound];
      const std::vector<std::string> label = {std::string(kBoundNames[bound])};
      metrics_->gauge("bound_used", label).Set(static_cast<double>(use.used));
      metrics_->gauge("bound_limit", label).Set(static_cast<double>(use.limit));
      metrics_->counter("bound_reached_total", label)
          .Increment(static_cast<double>(use.reached - bounds_reached_[bound]));
      bounds_reached_[bound] = use.reached;
    }
  }

  void PublishStatus(const ShardStatus& status) {
    const auto set = [this](absl::string_view name, double value) {
      metrics_->gauge(name).Set(value);
    };

    // Progress of training.
    set("step", static_cast<double>(status.lowest));
    set("committed_step", static_cast<double>(status.committed));
    set("updates_applied", static_cast<double>(status.updates_applied));
    set("streams", static_cast<double>(status.streams));
    set("waiting_frames", static_cast<double>(status.waiting_frames));
    set("waiting_bytes", static_cast<double>(status.waiting_bytes));
    set("parked_pulls", static_cast<double>(status.parked_pulls));
    set("staged_updates", static_cast<double>(status.staged_updates));
    set("open_snapshots", static_cast<double>(status.open_snapshots));

    set("copies", static_cast<double>(status.copies));
    copied_bytes_.Increment(static_cast<double>(status.copied_bytes) - copied_bytes_.Value());
    set("blocks_allocated", static_cast<double>(status.blocks_allocated));
    set("dropped_contributions", static_cast<double>(status.dropped_contributions));
    set("repeated_blocks", static_cast<double>(status.repeated_blocks));

    set("executor_queue_tasks", static_cast<double>(shell_.executor().queued_tasks()));
    set("executor_queue_bytes", static_cast<double>(shell_.executor().queued_bytes()));
  }

  // ---- the rest

  // A stream whose frames wait with too much memory.
  void CloseFull(StreamId stream, uint64_t bytes) {
    streams_.Close(stream,
                   Exceeded(Bound::kReceivedBytes,
                            absl::StrCat("frames that the shard has not read yet take ", bytes,
                                         " bytes, more than ", options_.core.max_received_bytes)));
  }

  // Debug log: one line per step that this shard has closed.
  void LogStep() {
    const ShardStatus status = shell_.core().Status();
    if (!status.has_view || status.lowest == logged_step_) return;
    logged_step_ = status.lowest;
    logger_.Debug("Step closed", {{"step", status.lowest}});
  }

  void End(ExitReason reason, std::string message) {
    logger_.Info("Shard stopped", {{"why", message}});
    result_ = {reason, std::move(message)};
    shell_.End();
  }

  // After the end, when events have no effect.
  void StopServer() {
    shell_.executor().Flush();
    // Objects that run on the server's loop are destroyed before it.
    link_.Stop();
    peers_.Close();
    file_thread_.Flush();  // broken streams are destroyed there
    if (server_ != nullptr) server_->Stop();
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
  prometheus::Counter& busy_ = metrics_->counter("busy_seconds_total");
  prometheus::Counter& copied_bytes_ = metrics_->counter("copied_bytes_total");
  prometheus::Counter& checkpoint_bytes_ = metrics_->counter("checkpoint_written_bytes_total");
  Histogram checkpoint_seconds_ = metrics_->histogram("partition_write_seconds");
  prometheus::Gauge& queued_send_ = metrics_->gauge("send_queue_bytes");
  ThreadPoolRunner parallel_;

  // Used only by the executor's tasks.
  absl::flat_hash_set<StreamId> queued_;  // streams with frames that wait for AfterActions
  std::array<uint64_t, kBounds> bounds_reached_{};  // as published last
  uint64_t logged_step_ = 0;
  int logged_closes_ = 0;  // since the last publication
  v1::ViewId last_view_;
  Result result_;  // written before the shell ends

  ReceivedBytes received_;
  std::atomic<bool> has_view_{false};
  Notification started_;  // the core exists

  Shell shell_;
  SerialExecutor file_thread_;
  SerialExecutor copy_thread_;
  StreamServer streams_;
  PeerStreams peers_;
  MemberLink<ShardCore> link_;
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardServer>> ShardServer::Start(Options options, FileSystem* files,
                                                                Metrics* metrics, Logger logger) {
  auto server = std::make_unique<Server>(std::move(options), files, metrics, std::move(logger));
  RETURN_IF_ERROR(server->StartServer());
  return server;
}

}  // namespace sluice::ps
