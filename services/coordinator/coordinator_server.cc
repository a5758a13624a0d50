#include "services/coordinator/coordinator_server.h"

#include <grpcpp/impl/codegen/server_callback_handlers.h>

#include <atomic>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "proto/rendezvous.pb.h"
#include "services/common/status_macros.h"
#include "services/common/threads/notification.h"
#include "services/common/threads/serial_executor.h"
#include "services/common/time/clock.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/evaluation/decisions.h"
#include "services/coordinator/core/members/rendezvous.h"
#include "services/coordinator/snapshot_calls.h"
#include "services/protocol/ids.h"
#include "services/shell/core_shell.h"
#include "services/shell/received_bytes.h"
#include "services/shell/role_server.h"
#include "services/transport/grpc_status.h"
#include "services/transport/security/access_policy.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/bounded_message.h"
#include "services/transport/server/grpc_server.h"
#include "services/transport/streams/message_stream.h"

namespace sluice::coordinator {
namespace {

using Streams = MessageStreamServer<v1::MemberMessage, v1::CoordinatorMessage>;

// Bytes of a control stream's messages that wait for the core: twice the largest message.
constexpr size_t kMaxStreamBytes = 2 * kMaxControlMessageBytes;

absl::Status JobHasEnded() { return absl::UnavailableError("the job has ended"); }

using BoundedSnapshotRequest = Bounded<v1::OpenSnapshotRequest, kMaxSmallRequestBytes>;

using Shell = CoreShell<CoordinatorCore>;

class Server final : public CoordinatorServer, public Shell::Role, public Streams::Handler {
 public:
  Server(Options options, CheckpointStorage* storage, Metrics* metrics, Logger logger)
      : options_(std::move(options)),
        storage_(storage),
        metrics_(metrics),
        logger_(std::move(logger)),
        received_(kMaxStreamBytes,
                  [this](Streams::StreamId stream, uint64_t) {
                    streams_.Close(stream,
                                   absl::ResourceExhaustedError(absl::StrCat(
                                       "the messages of this stream that wait for the coordinator "
                                       "have more than ",
                                       kMaxStreamBytes, " bytes (kMaxStreamBytes)")));
                  }),
        shell_("coordinator", &clock_, this),
        streams_("/sluice.v1.Coordinator/Join", {}, this),
        snapshots_([this](uint64_t call) {
          shell_.Event(Call(&CoordinatorCore::OnSnapshotCallEnded, call));
        }),
        calls_service_(&calls_),
        storage_thread_({.name = "storage"}) {
    AddCalls();
    shell_.Start(options_.core, clock_.Now());
  }

  ~Server() override {
    // A coordinator that stops before its job has ended changes nothing: it must not count the
    // streams that end with it as deaths and claim the next attempt.
    shell_.Close([this] { End({ExitReason::kFailed, "the process ends"}); });
    if (server_ != nullptr) server_->Stop();
    storage_thread_.Stop();
    shell_.Stop();
  }

  absl::Status StartServer() {
    ASSIGN_OR_RETURN(
        server_,
        StartRoleServer(
            {.address = options_.address, .max_buffer_bytes = kMaxCoordinatorBufferBytes},
            options_.security, {&streams_, &calls_service_, &snapshots_}, metrics_, logger_));
    logger_.Info("Listening", {{"port", port()}});
    shell_.Event([](CoordinatorCore&, absl::Time) {});  // performs the core's first actions
    return absl::OkStatus();
  }

  // ---- CoordinatorServer

  int port() const override { return server_->port(); }

  absl::Status Ready() const override { return absl::OkStatus(); }

  absl::Status Alive() override { return shell_.Alive(); }

  void Suspend() override {
    v1::SetDesiredRequest request;
    request.set_suspend(true);
    shell_.Event(Call(&CoordinatorCore::OnSetDesired, request));
  }

  void AskToStop() override { shell_.Event(Call(&CoordinatorCore::OnAskedToStop)); }

  Result Wait() override {
    shell_.Wait();
    bool left = false;
    Ask([&](CoordinatorCore&, absl::Time) { left = exit_.reason == ExitReason::kLeft; });
    if (!left) final_progress_read_.WaitWithTimeout(options_.linger);

    // No call runs after this, so the result has the last progress that a client could read.
    server_->Stop();
    shell_.executor().Flush();

    Result result;
    Ask([&](CoordinatorCore& core, absl::Time now) {
      result.reason = exit_.reason;
      result.message = exit_.message;
      result.progress = core.Progress(0, now);
    });
    return result;
  }

  // ---- Streams::Handler

  void OnOpen(Streams::StreamId stream, const std::string& peer) override {
    logger_.Debug("Control stream opened", {{"stream", stream}, {"peer", peer}});
    received_.Open(stream);
    shell_.Event(Call(&CoordinatorCore::OnConnected, stream));
  }
  absl::Status Admit(const std::optional<security::PeerIdentity>& peer,
                     const v1::MemberMessage& message) override {
    absl::Status may = security::MaySend(peer, message);
    if (!may.ok()) logger_.Warning("Message refused", {{"why", may.ToString()}});
    return may;
  }
  void OnMessage(Streams::StreamId stream, v1::MemberMessage message) override {
    messages_received_.Increment();
    // The core repeats parts of this message to other processes, in messages of limited size.
    message.DiscardUnknownFields();
    const size_t bytes = message.SpaceUsedLong();
    ReceivedBytes::Receipt receipt = received_.Add(stream, bytes);
    if (!receipt) return;
    shell_.Event(
        [stream, receipt = std::move(receipt), message = std::move(message)](
            CoordinatorCore& core, absl::Time now) mutable {
          receipt.Release();
          core.OnMessage(stream, message, now);
        },
        {.bytes = bytes});
  }
  void OnClosed(Streams::StreamId stream, const absl::Status& why) override {
    logger_.Debug("Control stream closed", {{"stream", stream}, {"why", why.ToString()}});
    received_.Close(stream);
    shell_.Event(Call(&CoordinatorCore::OnDisconnected, stream));
  }

  // ---- v1::JobControl

  grpc::Status SetDesired(const v1::SetDesiredRequest* request, v1::SetDesiredResponse* response) {
    RETURN_IF_ERROR(CheckSetDesired(*request), ToGrpcStatus(_));
    shell_.Event(Call(&CoordinatorCore::OnSetDesired, *request));
    Ask([&](CoordinatorCore& core, absl::Time) { response->set_number(core.desired_number()); });
    return grpc::Status::OK;
  }

  grpc::Status GetProgress(grpc::ServerContext* context, const v1::GetProgressRequest* request,
                           v1::JobProgress* progress) {
    const std::optional<security::PeerIdentity> caller = security::PeerOf(*context->auth_context());
    if (!caller.has_value() || caller->role == v1::OPERATOR) {
      shell_.Event(Call(&CoordinatorCore::OnParentCall));
    }
    const bool last = shell_.ended();
    Ask([&](CoordinatorCore& core, absl::Time now) { *progress = core.Progress(*request, now); });
    if (last && !final_progress_asked_.exchange(true)) final_progress_read_.Notify();
    return grpc::Status::OK;
  }

  grpc::ServerWriteReactor<v1::Snapshot>* OpenSnapshot(grpc::CallbackServerContext* context,
                                                       const BoundedSnapshotRequest* request) {
    uint64_t call = 0;
    grpc::ServerWriteReactor<v1::Snapshot>* const reactor = snapshots_.Accept(context, &call);

    // The core gets the request only if the reader may read the job.
    absl::Status may = request->fits;
    if (may.ok()) {
      may =
          security::MayRead(security::PeerOf(*context->auth_context()), request->message.reader());
    }

    shell_.executor().Run([this, call, may] {
      if (!may.ok()) {
        snapshots_.Answer(call, may);
      } else if (shell_.ended()) {
        snapshots_.Answer(call, JobHasEnded());
      }
    });

    if (!may.ok()) return reactor;
    v1::OpenSnapshotRequest known = request->message;
    known.DiscardUnknownFields();  // as in OnMessage
    shell_.Event(Call(&CoordinatorCore::OnOpenSnapshot, call, std::move(known)));
    return reactor;
  }

  // ---- v1::Rendezvous

  grpc::Status Meet(grpc::ServerContext* context, const v1::MeetRequest* request,
                    v1::MeetReply* reply) {
    RETURN_IF_ERROR(
        security::CheckClaim(security::PeerOf(*context->auth_context()), request->process()),
        ToGrpcStatus(_));
    absl::StatusOr<v1::MeetReply> met;
    Ask([&](CoordinatorCore&, absl::Time) { met = rendezvous_.Meet(*request); });
    if (!met.ok()) return ToGrpcStatus(met.status());
    *reply = *std::move(met);
    return grpc::Status::OK;
  }

  // ---- Shell::Role

  void PerformAction(Action& action) override {
    std::visit([this](auto& a) { Perform(a); }, action);
  }

  void AfterActions(size_t) override {
    const v1::View& view = shell_.core().view();
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

  void Publish(absl::Time now) override {
    PublishProgress(shell_.core().Progress(UINT64_MAX, now));
    PublishRefusals(shell_.core().refusals());
    metrics_->gauge("learning_rate_factor").Set(LearningRateFactor(shell_.core().decisions()));
    metrics_->gauge("shard_load_ratio").Set(shell_.core().load().highest());
    metrics_->gauge("cooled_shards").Set(static_cast<double>(shell_.core().load().cooled()));
    metrics_->gauge("control_waiting_bytes")
        .Set(static_cast<double>(shell_.executor().queued_bytes()));
  }

 private:
  // Unary calls block a thread; OpenSnapshot, which lasts, does not.
  void AddCalls() {
    calls_.AddUnary<v1::SetDesiredRequest, v1::SetDesiredResponse>(
        "/sluice.v1.JobControl/SetDesired",
        [this](auto*, auto* request, auto* reply) { return SetDesired(request, reply); });

    calls_.AddUnary<v1::GetProgressRequest, v1::JobProgress, kMaxSmallRequestBytes>(
        "/sluice.v1.JobControl/GetProgress", [this](auto* context, auto* request, auto* reply) {
          return GetProgress(context, request, reply);
        });

    calls_.AddUnary<v1::MeetRequest, v1::MeetReply>(
        "/sluice.v1.Rendezvous/Meet", [this](auto* context, auto* request, auto* reply) {
          return Meet(context, request, reply);
        });

    calls_.AddCallback(
        "/sluice.v1.JobControl/OpenSnapshot", grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<BoundedSnapshotRequest, v1::Snapshot>(
            [this](auto* context, auto* request) { return OpenSnapshot(context, request); }));
  }

  // Reads from the core and waits for the answer. Must not be called on the executor, which would
  // wait for itself.
  template <typename F>
  void Ask(F question) {
    Notification done;
    shell_.executor().Run([&] {
      question(shell_.core(), clock_.Now());
      done.Notify();
    });
    done.Wait();
  }

  void Perform(Send& send) {
    messages_sent_.Increment();
    streams_.Send(send.stream, std::move(send.message));
  }

  void Perform(CloseStream& close) { streams_.Close(close.stream, close.status); }

  void Perform(ReadStorage& read) {
    storage_thread_.Post([this, check = read.check] {
      absl::StatusOr<StorageContents> contents =
          OpenStorage(*storage_, options_.core.job, options_.find_source, check);
      if (!contents.ok()) {
        logger_.Warning("The checkpoint storage cannot be used",
                        {{"why", contents.status().ToString()}});
      } else {
        for (const std::string& damaged : contents->damaged) {
          logger_.Warning("The checkpoint storage is damaged", {{"what", damaged}});
        }
      }
      shell_.Event(Call(&CoordinatorCore::OnStorageRead, std::move(contents)));
    });
  }
  void Perform(ClaimAttempt& claim) {
    storage_thread_.Post([this, claim = std::move(claim.claim)] {
      const absl::Status status = storage_->CreateClaim(claim);
      logger_.Info(claim.end() ? "End record written" : "Attempt claimed",
                   {{"attempt", claim.attempt()}, {"status", status.ToString()}});
      shell_.Event(Call(&CoordinatorCore::OnClaimResult, claim.attempt(), status));
    });
  }
  void Perform(ReadClaims&) {
    storage_thread_.Post(
        [this] { shell_.Event(Call(&CoordinatorCore::OnClaimsRead, storage_->ReadClaims())); });
  }
  void Perform(WriteCheckpointIndex& write) {
    storage_thread_.Post([this, checkpoint_index = std::move(write.checkpoint_index)] {
      const absl::Status status = storage_->WriteCheckpointIndex(checkpoint_index);
      logger_.Info("Checkpoint index written",
                   {{"checkpoint", CheckpointDirectory(checkpoint_index.checkpoint())},
                    {"status", status.ToString()}});
      shell_.Event(
          Call(&CoordinatorCore::OnCheckpointIndexWritten, checkpoint_index.checkpoint(), status));
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
      // The write of its index may have failed after the index was in place.
      const bool incomplete = absl::IsNotFound(storage_->ReadCheckpointIndex(checkpoint).status());
      const absl::Status status = incomplete ? storage_->Remove(checkpoint) : absl::OkStatus();
      if (!status.ok()) {
        logger_.Warning(
            "Abandoned checkpoint could not be removed",
            {{"checkpoint", CheckpointDirectory(checkpoint)}, {"why", status.ToString()}});
      }
    });
  }
  void Perform(AnswerSnapshot& answer) {
    snapshots_.Answer(answer.request, std::move(answer.snapshot));
  }
  void Perform(Exit& exit) { End(exit); }

  void End(Exit exit) {
    logger_.Info("Coordinator exits", {{"why", exit.message}});
    exit_ = std::move(exit);
    snapshots_.EndAll(JobHasEnded());
    shell_.End();
  }

  // ---- metrics

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
  }

  void PublishProgress(const v1::JobProgress& progress) {
    const auto set = [this](absl::string_view name, double value) {
      metrics_->gauge(name).Set(value);
    };

    // Totals are set too: the core counts them.
    set("attempt", static_cast<double>(progress.attempt()));
    set("missing_copies", static_cast<double>(progress.missing_copies()));
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
      for (const v1::Metric& metric : progress.last_evaluation().metrics()) {
        metrics_->gauge("evaluation_metric", {metric.name()}).Set(metric.value());
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
  Rendezvous rendezvous_;
  v1::ViewId last_view_;
  CoordinatorCore::Refusals refusals_;  // as published last
  Exit exit_;                           // written before the shell ends

  ReceivedBytes received_;
  std::atomic<bool> final_progress_asked_{false};
  Notification final_progress_read_;

  Shell shell_;
  Streams streams_;
  SnapshotCalls snapshots_;
  BoundedService calls_;
  GeneratedService calls_service_;
  SerialExecutor storage_thread_;
  std::unique_ptr<GrpcServer> server_;  // last: its threads use all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Options options, CheckpointStorage* storage, Metrics* metrics, Logger logger) {
  auto server = std::make_unique<Server>(std::move(options), storage, metrics, std::move(logger));
  RETURN_IF_ERROR(server->StartServer());
  return server;
}

}  // namespace sluice::coordinator
