#include "services/coordinator/coordinator_server.h"

#include <atomic>
#include <functional>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "proto/control.grpc.pb.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "proto/rendezvous.grpc.pb.h"
#include "services/common/clock.h"
#include "services/common/deadline_timer.h"
#include "services/common/liveness.h"
#include "services/common/mutex.h"
#include "services/common/notification.h"
#include "services/common/serial_executor.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/member_checks.h"
#include "services/coordinator/core/rendezvous.h"
#include "services/coordinator/open_storage.h"
#include "services/coordinator/snapshot_calls.h"
#include "services/protocol/ids.h"
#include "services/transport/grpc_server.h"
#include "services/transport/grpc_status.h"
#include "services/transport/message_stream.h"
#include "services/transport/security/access_policy.h"
#include "services/transport/security/transport_security.h"

namespace sluice::coordinator {
namespace {

using Streams = MessageStreamServer<v1::MemberMessage, v1::CoordinatorMessage>;

// Bytes of each control stream's messages that wait for the core. One process cannot use up the
// room of the others.
class WaitingBytes {
 public:
  // Twice the largest message.
  static constexpr size_t kMaxStreamBytes = 2 * kMaxControlMessageBytes;

  bool Add(uint64_t stream, size_t bytes) {
    MutexLock lock(&mutex_);
    size_t& waiting = streams_[stream];
    // A message alone is bounded by the transport.
    if (waiting > 0 && waiting + bytes > kMaxStreamBytes) return false;
    waiting += bytes;
    return true;
  }
  void Remove(uint64_t stream, size_t bytes) {
    MutexLock lock(&mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return;
    found->second -= bytes;
    if (found->second == 0) streams_.erase(found);
  }

 private:
  Mutex mutex_;  // protects the table
  absl::flat_hash_map<uint64_t, size_t> streams_ ABSL_GUARDED_BY(mutex_);
};

absl::Status JobHasEnded() { return absl::UnavailableError("the job has ended"); }

}  // namespace

// Unary calls block a thread; OpenSnapshot, which lasts, does not.
using JobControlService = v1::JobControl::WithCallbackMethod_OpenSnapshot<v1::JobControl::Service>;

class CoordinatorServer::Impl final : public Streams::Handler,
                                      public v1::Coordinator::CallbackService,
                                      public JobControlService,
                                      public v1::Rendezvous::Service {
 public:
  Impl(Options options, CheckpointStorage* storage, Metrics* metrics, Logger logger)
      : options_(std::move(options)),
        storage_(storage),
        metrics_(metrics),
        logger_(std::move(logger)),
        core_(options_.core, clock_.Now()),
        streams_({}, this),
        snapshots_([this](uint64_t call) {
          Event([call](CoordinatorCore& core, absl::Time now) {
            core.OnSnapshotCallEnded(call, now);
          });
        }),
        join_service_(static_cast<v1::Coordinator::CallbackService*>(this)),
        control_service_(static_cast<JobControlService*>(this)),
        rendezvous_service_(static_cast<v1::Rendezvous::Service*>(this)),
        executor_({.name = "coordinator"}),
        storage_thread_({.name = "storage"}),
        timer_(&clock_,
               [this] { Event([](CoordinatorCore& core, absl::Time now) { core.OnTick(now); }); }) {
    desired_.set_workers(options_.core.job.worker().replicas());
    desired_.set_shards(options_.core.job.parameter_server().replicas());
  }

  ~Impl() override {
    // A coordinator that stops before its job has ended changes nothing: it must not count the
    // streams that end with it as deaths and claim the next attempt.
    executor_.Post([this] {
      if (!has_exit_) End({ExitReason::kFailed, "the process ends"});
    });
    executor_.Flush();  // from here on events do nothing
    if (server_ != nullptr) server_->Stop();
    storage_thread_.Stop();
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
    ASSIGN_OR_RETURN(
        server_,
        GrpcServer::Start(
            {.address = options_.address,
             .credentials = security::ServerCredentialsOf(
                 options_.security,
                 [this](const security::CallRefusal& refusal) { OnCallRefused(refusal); }),
             .max_buffer_bytes = kMaxCoordinatorBufferBytes,
             .guard = {
                 .on_disconnected =
                     [this](const Disconnection& disconnection) { OnDisconnected(disconnection); },
                 .on_delayed =
                     [this] { metrics_->counter("connections_delayed_total").Increment(); }}},
            {&join_service_, &control_service_, &rendezvous_service_, &streams_, &snapshots_}));
    logger_.Info("Listening", {{"port", port()}});
    Event([](CoordinatorCore&, absl::Time) {});  // its first actions
    return absl::OkStatus();
  }

  int port() const { return server_->port(); }
  bool ended() const { return ended_.HasBeenNotified(); }

  absl::Status Alive() { return liveness_.Check(); }

  void Suspend() {
    Event([this](CoordinatorCore& core, absl::Time now) {
      desired_.set_suspend(true);
      core.OnSetDesired(desired_, now);
    });
  }

  Result Wait() {
    ended_.Wait();
    final_progress_read_.WaitWithTimeout(options_.linger);
    server_->Stop();
    executor_.Flush();
    Result result;
    Ask([&](CoordinatorCore& core, absl::Time now) {
      result.reason = exit_.reason;
      result.message = exit_.message;
      result.progress = core.Progress(0, now);
    });
    return result;
  }

  // ---- v1::Coordinator

  grpc::ServerBidiReactor<v1::MemberMessage, v1::CoordinatorMessage>* Join(
      grpc::CallbackServerContext* context) override {
    return streams_.Accept(context);
  }

  // ---- Streams::Handler

  void OnOpen(Streams::StreamId stream, const std::string& peer) override {
    logger_.Debug("Control stream opened", {{"stream", stream}, {"peer", peer}});
    Event([stream](CoordinatorCore& core, absl::Time now) { core.OnConnected(stream, now); });
  }
  absl::Status Admit(const std::optional<security::PeerIdentity>& peer,
                     const v1::MemberMessage& message) override {
    absl::Status may = security::MaySay(peer, message);
    if (!may.ok()) logger_.Warning("Message refused", {{"why", may.ToString()}});
    return may;
  }
  void OnMessage(Streams::StreamId stream, v1::MemberMessage message) override {
    messages_received_.Increment();
    const size_t bytes = message.SpaceUsedLong();
    if (!waiting_.Add(stream, bytes)) {
      streams_.Close(stream, absl::ResourceExhaustedError(absl::StrCat(
                                 "the messages of this stream that wait for the coordinator have "
                                 "more than ",
                                 WaitingBytes::kMaxStreamBytes, " bytes (kMaxStreamBytes)")));
      return;
    }
    Event(
        [this, stream, bytes, message = std::move(message)](CoordinatorCore& core, absl::Time now) {
          waiting_.Remove(stream, bytes);
          core.OnMessage(stream, message, now);
        },
        bytes);
  }
  void OnClosed(Streams::StreamId stream, const absl::Status& why) override {
    logger_.Debug("Control stream closed", {{"stream", stream}, {"why", why.ToString()}});
    Event([stream](CoordinatorCore& core, absl::Time now) { core.OnDisconnected(stream, now); });
  }

  // ---- v1::JobControl

  grpc::Status SetDesired(grpc::ServerContext*, const v1::SetDesiredRequest* request,
                          v1::SetDesiredResponse*) override {
    RETURN_IF_ERROR(CheckSetDesired(*request), ToGrpcStatus(_));
    Event([this, request = *request](CoordinatorCore& core, absl::Time now) {
      desired_ = request;
      desired_.clear_deaths();  // reported once; only sizes and `suspend` are kept
      core.OnSetDesired(request, now);
    });
    return grpc::Status::OK;
  }

  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest* request,
                           v1::JobProgress* progress) override {
    const bool last = ended();
    Ask([&](CoordinatorCore& core, absl::Time now) { *progress = core.Progress(*request, now); });
    if (last && !final_progress_asked_.exchange(true)) final_progress_read_.Notify();
    return grpc::Status::OK;
  }

  grpc::ServerWriteReactor<v1::Snapshot>* OpenSnapshot(
      grpc::CallbackServerContext* context, const v1::OpenSnapshotRequest* request) override {
    uint64_t call = 0;
    grpc::ServerWriteReactor<v1::Snapshot>* const reactor = snapshots_.Accept(context, &call);
    const absl::Status may =
        security::MayRead(security::PeerOf(*context->auth_context()), request->reader());
    executor_.Run([this, call, may] {
      if (!may.ok()) {
        snapshots_.Answer(call, may);
      } else if (has_exit_) {
        snapshots_.Answer(call, JobHasEnded());
      }
    });
    if (!may.ok()) return reactor;
    Event([call, request = *request](CoordinatorCore& core, absl::Time now) {
      core.OnOpenSnapshot(call, request, now);
    });
    return reactor;
  }

  // ---- v1::Rendezvous

  grpc::Status Meet(grpc::ServerContext* context, const v1::MeetRequest* request,
                    v1::MeetReply* reply) override {
    RETURN_IF_ERROR(
        security::CheckClaim(security::PeerOf(*context->auth_context()), request->process()),
        ToGrpcStatus(_));
    absl::StatusOr<v1::MeetReply> met;
    Ask([&](CoordinatorCore&, absl::Time) { met = rendezvous_.Meet(*request); });
    if (!met.ok()) return ToGrpcStatus(met.status());
    *reply = *std::move(met);
    return grpc::Status::OK;
  }

 private:
  // Passes an event to the core and performs the actions that follow. Any thread.
  template <typename F>
  void Event(F event, size_t bytes = 0) {
    auto handle = [this, event = std::move(event)]() mutable {
      if (has_exit_) return;
      event(core_, clock_.Now());
      for (Action& action : core_.TakeActions()) {
        std::visit([this](auto& a) { this->Perform(a); }, action);
      }
      const absl::Time now = clock_.Now();
      timer_.Set(core_.NextDeadline());
      NoteView();
      if (now - last_publication_ >= absl::Seconds(1) || has_exit_) {
        last_publication_ = now;
        Publish(core_.Progress(UINT64_MAX, now));
        PublishRefusals(core_.refusals());
      }
    };
    executor_.Run(std::move(handle), bytes);
  }

  // Reads from the core and waits for the answer. Not on the executor: it would wait for itself.
  template <typename F>
  void Ask(F question) {
    Notification done;
    executor_.Run([&] {
      question(core_, clock_.Now());
      done.Notify();
    });
    done.Wait();
  }

  void Perform(Send& send) {
    messages_sent_.Increment();
    streams_.Send(send.stream, std::move(send.message));
  }
  void Perform(CloseStream& close) { streams_.Close(close.stream, close.status); }
  void Perform(ReadStorage&) {
    storage_thread_.Post([this] {
      absl::StatusOr<StorageContents> contents =
          OpenStorage(*storage_, options_.core.job, options_.restore_source);
      if (!contents.ok()) {
        logger_.Warning("The checkpoint storage cannot be used",
                        {{"why", contents.status().ToString()}});
      } else {
        for (const std::string& damaged : contents->damaged) {
          logger_.Warning("The checkpoint storage is damaged", {{"what", damaged}});
        }
      }
      Event([contents = std::move(contents)](CoordinatorCore& core, absl::Time now) mutable {
        core.OnStorageRead(std::move(contents), now);
      });
    });
  }
  void Perform(ClaimAttempt& claim) {
    storage_thread_.Post([this, claim = std::move(claim.claim)] {
      const absl::Status status = storage_->CreateClaim(claim);
      logger_.Info(claim.end() ? "End record written" : "Attempt claimed",
                   {{"attempt", claim.attempt()}, {"status", status.ToString()}});
      Event([attempt = claim.attempt(), status](CoordinatorCore& core, absl::Time now) {
        core.OnClaimResult(attempt, status, now);
      });
    });
  }
  void Perform(ReadClaims&) {
    storage_thread_.Post([this] {
      Event([claims = storage_->ReadClaims()](CoordinatorCore& core, absl::Time now) {
        core.OnClaimsRead(claims, now);
      });
    });
  }
  void Perform(WriteCheckpointIndex& write) {
    storage_thread_.Post([this, checkpoint_index = std::move(write.checkpoint_index)] {
      const absl::Status status = storage_->WriteCheckpointIndex(checkpoint_index);
      logger_.Info("Manifest written",
                   {{"checkpoint", CheckpointDirectory(checkpoint_index.checkpoint())},
                    {"status", status.ToString()}});
      Event([checkpoint = checkpoint_index.checkpoint(), status](CoordinatorCore& core,
                                                                 absl::Time now) {
        core.OnCheckpointIndexWritten(checkpoint, status, now);
      });
    });
  }
  void Perform(DeleteCheckpoint& remove) {
    storage_thread_.Post(
        [this, checkpoint = std::move(remove.checkpoint), attempt = remove.attempt] {
          const absl::Status status = RemoveReplaced(*storage_, checkpoint, attempt);
          if (status.ok()) return;
          logger_.Warning(
              "Old checkpoint could not be removed",
              {{"checkpoint", CheckpointDirectory(checkpoint)}, {"why", status.ToString()}});
        });
  }
  void Perform(RemoveIncomplete& remove) {
    storage_thread_.Post([this, checkpoint = std::move(remove.checkpoint)] {
      // The write of its manifest may have failed after the manifest was in place.
      const bool incomplete = absl::IsNotFound(storage_->ReadCheckpointIndex(checkpoint).status());
      const absl::Status status = incomplete ? storage_->Remove(checkpoint) : absl::OkStatus();
      if (!status.ok()) {
        logger_.Warning(
            "Abandoned checkpoint could not be removed",
            {{"checkpoint", CheckpointDirectory(checkpoint)}, {"why", status.ToString()}});
      }
      Event([](CoordinatorCore& core, absl::Time now) { core.OnIncompleteRemoved(now); });
    });
  }
  void Perform(AnswerSnapshot& answer) {
    snapshots_.Answer(answer.request, std::move(answer.snapshot));
  }
  void Perform(Exit& exit) { End(exit); }

  void End(Exit exit) {
    logger_.Info("Coordinator exits", {{"why", exit.message}});
    exit_ = std::move(exit);
    has_exit_ = true;
    snapshots_.EndAll(JobHasEnded());
    ended_.Notify();
  }

  void NoteView() {
    const v1::View& view = core_.view();
    if (view.id().number() == 0 || Same(view.id(), last_view_)) return;
    last_view_ = view.id();
    rendezvous_.OnView(view);
    view_changes_.Increment();
    logger_.Info("View decided", {{"view", ShortName(view.id())},
                                  {"first_step", view.first_step()},
                                  {"workers", view.workers_size()},
                                  {"shards", view.shards_size()}});
    metrics_->gauge("members", {"worker"}).Set(view.workers_size());
    metrics_->gauge("members", {"shard"}).Set(view.shards_size());
  }

  void PublishRefusals(const CoordinatorCore::Refusals& now) {
    const auto count = [this](absl::string_view kind, uint64_t value, uint64_t before) {
      metrics_->counter("refused_total", {std::string(kind)})
          .Increment(static_cast<double>(value - before));
    };
    count("message", now.messages, refusals_.messages);
    count("figure", now.figures, refusals_.figures);
    count("registration", now.registrations, refusals_.registrations);
    count("reader", now.readers, refusals_.readers);
    refusals_ = now;
    metrics_->gauge("expelled_processes").Set(static_cast<double>(now.expelled));
    metrics_->gauge("reader_snapshots").Set(static_cast<double>(now.snapshots));
    metrics_->gauge("control_waiting_bytes").Set(static_cast<double>(executor_.queued_bytes()));
  }

  void Publish(const v1::JobProgress& progress) {
    const auto set = [this](absl::string_view name, double value) {
      metrics_->gauge(name).Set(value);
    };
    set("attempt", static_cast<double>(progress.attempt()));
    set("step", static_cast<double>(progress.step()));
    set("steps_total_wanted", static_cast<double>(progress.total_steps()));
    set("samples", static_cast<double>(progress.samples()));
    set("samples_per_second", progress.samples_per_second());
    set("recomputed_samples", static_cast<double>(progress.recomputed_samples()));
    set("pushed_bytes", static_cast<double>(progress.pushed_bytes()));
    set("pushed_gradient_bytes", static_cast<double>(progress.gradient_bytes()));
    set("pulled_bytes", static_cast<double>(progress.pulled_bytes()));
    set("pulled_parameter_bytes", static_cast<double>(progress.parameter_bytes()));
    if (progress.has_staleness()) {
      const v1::JobProgress::Staleness& staleness = progress.staleness();
      const std::pair<const char*, uint64_t> quantiles[] = {{"0.5", staleness.median()},
                                                            {"0.95", staleness.percentile_95()},
                                                            {"1", staleness.largest()}};
      for (const auto& [quantile, updates] : quantiles) {
        metrics_->gauge("staleness_quantile_updates", {quantile}).Set(static_cast<double>(updates));
      }
    }
    set("dropped_contributions", static_cast<double>(progress.dropped_contributions()));
    set("skipped_steps", static_cast<double>(progress.skipped_steps()));
    if (progress.has_loss()) set("loss", progress.loss());
    if (progress.has_last_evaluation()) {
      set("evaluation_loss", progress.last_evaluation().loss());
      if (progress.last_evaluation().has_accuracy()) {
        set("evaluation_accuracy_ratio", progress.last_evaluation().accuracy() / 100);
      }
      if (progress.last_evaluation().has_perplexity()) {
        set("evaluation_perplexity", progress.last_evaluation().perplexity());
      }
    }
    if (progress.checkpoint().has_last()) {
      set("checkpoint_step", static_cast<double>(progress.checkpoint().last().step()));
      set("checkpoint_bytes", static_cast<double>(progress.checkpoint().bytes()));
      set("checkpoint_duration_seconds", progress.checkpoint().seconds());
    }
    const auto time = [this](absl::string_view part, double seconds) {
      metrics_->gauge("worker_time_seconds", {std::string(part)}).Set(seconds);
    };
    time("data", progress.data_seconds());
    time("compute", progress.compute_seconds());
    time("push", progress.push_seconds());
    time("wait", progress.wait_seconds());
    time("pull", progress.pull_seconds());
  }

  const Options options_;
  CheckpointStorage* const storage_;
  Metrics* const metrics_;
  const Logger logger_;
  const RealClock clock_;
  prometheus::Counter& messages_received_ = metrics_->counter("control_messages_received_total");
  prometheus::Counter& messages_sent_ = metrics_->counter("control_messages_sent_total");
  prometheus::Counter& view_changes_ = metrics_->counter("view_changes_total");

  // Used only by the executor's tasks.
  CoordinatorCore core_;
  Rendezvous rendezvous_;
  v1::SetDesiredRequest desired_;
  Exit exit_;
  bool has_exit_ = false;
  v1::ViewId last_view_;
  CoordinatorCore::Refusals refusals_;  // as published last
  absl::Time last_publication_ = absl::InfinitePast();

  WaitingBytes waiting_;
  Notification ended_;
  std::atomic<bool> final_progress_asked_{false};
  Notification final_progress_read_;

  Streams streams_;
  SnapshotCalls snapshots_;
  GeneratedService join_service_;
  GeneratedService control_service_;
  GeneratedService rendezvous_service_;
  SerialExecutor executor_;
  Liveness liveness_{&executor_, kLivenessPatience, &clock_};
  SerialExecutor storage_thread_;
  DeadlineTimer timer_;
  std::unique_ptr<GrpcServer> server_;  // last: its threads use all of the above
};

CoordinatorServer::CoordinatorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CoordinatorServer::~CoordinatorServer() = default;

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Options options, CheckpointStorage* storage, Metrics* metrics, Logger logger) {
  auto impl = std::make_unique<Impl>(std::move(options), storage, metrics, std::move(logger));
  RETURN_IF_ERROR(impl->StartServer());
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(impl)));
}

int CoordinatorServer::port() const { return impl_->port(); }

absl::Status CoordinatorServer::Ready() const {
  return impl_->ended() ? absl::UnavailableError("the job has ended") : absl::OkStatus();
}

absl::Status CoordinatorServer::Alive() { return impl_->Alive(); }

void CoordinatorServer::Suspend() { impl_->Suspend(); }

CoordinatorServer::Result CoordinatorServer::Wait() { return impl_->Wait(); }

}  // namespace sluice::coordinator
