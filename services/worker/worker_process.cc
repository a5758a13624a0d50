#include "services/worker/worker_process.h"

#include <atomic>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/common/text/utf8.h"
#include "services/common/time/clock.h"
#include "services/protocol/ids.h"
#include "services/protocol/worker_limits.h"
#include "services/shell/core_shell.h"
#include "services/shell/member_link.h"
#include "services/transport/streams/event_loop.h"
#include "services/worker/collective/reducer.h"
#include "services/worker/compute_thread.h"
#include "services/worker/shard_streams.h"

namespace sluice::worker {
namespace {

using Shell = CoreShell<WorkerCore>;

class Process final : public WorkerProcess, public Shell::Role {
 public:
  Process(Options options, Metrics* metrics, Logger logger)
      : options_(std::move(options)),
        metrics_(metrics),
        logger_(std::move(logger)),
        shell_("worker", &clock_, this),
        streams_(&options_, &loop_, &shell_, metrics_, logger_),
        compute_(options_.make_runner
                     ? options_.make_runner(&shell_)
                     : std::make_unique<ComputeThread>(&options_, &shell_, metrics_, logger_)),
        link_(&shell_, metrics_, logger_) {
    shell_.Start(options_.core);
    link_.Start(options_.coordinator, &loop_, options_.security);
  }

  ~Process() override {
    shell_.Close([this] { End(ExitReason::kLeft, "the process ends"); });
    link_.Stop();
    compute_->Stop();
    reducer_.reset();  // the executor still exists: the reducer's callbacks have no effect
    shell_.Stop();
    streams_.Close();
  }

  // ---- WorkerProcess

  absl::Status Ready() const override {
    return joined_ ? absl::OkStatus() : absl::UnavailableError("not a member of a view yet");
  }

  absl::Status Alive() override { return shell_.Alive(); }

  void Leave(std::string reason, absl::Duration grace) override {
    shell_.Event(Call(&WorkerCore::OnAskedToStop, std::move(reason), grace));
  }

  Result Wait() override {
    shell_.Wait();
    link_.Finish();
    return result_;
  }

  // ---- Shell::Role

  void BeforeEvent(WorkerCore& core) override { streams_.ReportSent(core); }

  void PerformAction(WorkerAction& action) override {
    std::visit([this](auto& a) { Perform(a); }, action);
  }

  void AfterActions(size_t worth) override { streams_.Flush(worth); }

  absl::Time ServeDeadlines(absl::Time now) override {
    if (link_.has_received()) return absl::InfiniteFuture();
    const absl::Time deadline = started_ + options_.connect_timeout;
    if (now >= deadline) GiveUp();
    return deadline;
  }

  void Publish(absl::Time) override {
    const WorkerStatus status = shell_.core().Status();
    if (status.member) joined_ = true;

    metrics_->gauge("member").Set(status.member ? 1 : 0);
    metrics_->gauge("step").Set(static_cast<double>(status.step));
    metrics_->gauge("recomputed_samples").Set(static_cast<double>(status.recomputed_samples));
    metrics_->gauge("credit_queue_bytes").Set(static_cast<double>(status.queued_bytes));
    metrics_->gauge("pending_computes").Set(static_cast<double>(status.pending_computes));

    if (status.view != last_view_) {
      last_view_ = status.view;
      view_changes_.Increment();
      logger_.Info("View installed",
                   {{"view", status.view}, {"member", status.member}, {"step", status.step}});
    }
  }

 private:
  // ---- actions

  void Perform(ConnectShard& connect) { streams_.Connect(connect); }
  void Perform(DisconnectShard& disconnect) { streams_.Disconnect(disconnect); }
  void Perform(SendFrame& send) { streams_.Queue(send); }

  void Perform(SendToCoordinator& send) {
    if (send.message.has_worker_progress()) NoteProgress(send.message.worker_progress());
    link_.Send(std::move(send.message));
  }

  void Perform(StoreBlock& store) {
    if (absl::Status status = compute_->Store(store); !status.ok()) {
      Fail(absl::StrCat("a received block cannot be stored: ", status.message()));
    }
  }

  void Perform(AdoptVersion& adopt) {
    if (logger_.debug_enabled()) logger_.Debug("Received weights", {{"version", adopt.version}});
    if (absl::Status status = compute_->Adopt(adopt.version); !status.ok()) {
      Fail(absl::StrCat("a version cannot be adopted: ", status.message()));
    }
  }

  void Perform(OpenModel& open) { compute_->Perform(open); }
  void Perform(ReadInitialTensor& read) { compute_->Perform(read); }
  void Perform(Compute& compute) { compute_->Perform(compute); }
  void Perform(FindRows& find) { compute_->Perform(find); }
  void Perform(CancelCompute& cancel) { compute_->Perform(cancel); }
  void Perform(EvaluateSamples& evaluate) { compute_->Perform(evaluate); }
  void Perform(ComputeMetrics& compute) { compute_->Perform(compute); }
  void Perform(GiveSum& give) { compute_->Perform(give); }

  void Perform(Exit& exit) {
    result_.refusal = exit.refusal;
    End(exit.reason, std::move(exit.message));
  }

  // ---- sums among workers

  void Perform(JoinGroup& join) {
    if (options_.security != nullptr && options_.security->tls()) {
      return Fail("dense: {aggregation: AllReduce} needs tls: Disabled: gloo does not encrypt");
    }

    if (reducer_ == nullptr) {
      reducer_ = std::make_unique<Reducer>(Reducer::Options{
          .coordinator = options_.coordinator,
          .credentials = security::ChannelCredentialsOf(options_.security),
          .advertised_host = options_.advertised_host,
          .process = options_.core.process,
          .done = [this](const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part) {
            OnReduced(view, step, std::move(part));
          }});
    }

    reducer_->Join(join.view, std::move(join.plan), join.idle_timeout);
  }
  void Perform(LeaveGroup&) { reducer_->Leave(); }
  void Perform(ReduceGradients& reduce) {
    reduce_began_ = clock_.Now();
    reducer_->Reduce(reduce.step, std::move(reduce.gradients));
  }

  void OnReduced(const v1::ViewId& view, uint64_t step, absl::StatusOr<ReducedPart> part) {
    shell_.Event([this, view, step, part = std::move(part)](WorkerCore& core,
                                                            absl::Time now) mutable {
      if (part.ok()) {
        all_reduce_seconds_.Observe(absl::ToDoubleSeconds(now - reduce_began_));
      } else {
        logger_.Warning("Gradients could not be summed among the workers",
                        {{"view", ShortName(view)}, {"why", part.status().ToString()}});
      }

      const uint64_t sent = reducer_->sent_bytes();
      all_reduce_sent_.Increment(static_cast<double>(sent - std::exchange(reduced_bytes_, sent)));

      core.OnReduced(view, step, std::move(part), now);
    });
  }

  // ---- the end

  void Fail(std::string message) {
    constexpr size_t kMaxReasonBytes = 4096;
    v1::MemberMessage failure;
    failure.mutable_failure()->set_reason(CleanUtf8(message, kMaxReasonBytes));
    link_.Send(std::move(failure));
    End(ExitReason::kFailed, std::move(message));
  }

  void GiveUp() {
    const std::string& why = link_.last_break();
    std::string message =
        absl::StrCat("no coordinator has answered at ", options_.coordinator, " within ",
                     absl::FormatDuration(options_.connect_timeout),
                     ": the job has ended or has not begun, or its coordinator is elsewhere",
                     why.empty() ? "" : absl::StrCat(" (", why, ")"));
    logger_.Error(message);
    result_.unreachable = true;
    End(ExitReason::kFailed, std::move(message));
  }

  void End(ExitReason reason, std::string message) {
    logger_.Info("Worker stopped", {{"why", message}});
    result_.reason = reason;
    result_.message = std::move(message);
    result_.data_missing = compute_->data_missing() && reason == ExitReason::kLeft;
    shell_.End();
  }

  // ---- metrics

  void NoteProgress(const v1::WorkerProgress& progress) {
    for (const v1::WorkerProgress::Step& step : progress.steps()) {
      steps_.Increment();
      samples_.Increment(static_cast<double>(step.samples()));
      if (step.has_staleness()) staleness_.Observe(static_cast<double>(step.staleness()));

      const bool weightless = step.has_weight() && step.weight() < kMinWeight;
      if (step.samples() > 0 && !weightless) {
        loss_.Set(step.loss_sum() / static_cast<double>(step.samples()));
      }
    }

    pushed_bytes_.Increment(static_cast<double>(progress.pushed_bytes()));
    gradient_bytes_.Increment(static_cast<double>(progress.gradient_bytes()));

    time_data_.Increment(progress.data_seconds());
    time_compute_.Increment(progress.compute_seconds());
    time_push_.Increment(progress.push_seconds());
    time_wait_.Increment(progress.wait_seconds());
    time_pull_.Increment(progress.pull_seconds());
  }

  const Options options_;
  Metrics* const metrics_;
  const Logger logger_;
  const RealClock clock_;
  const absl::Time started_ = clock_.Now();
  prometheus::Counter& steps_ = metrics_->counter("steps_total");
  prometheus::Counter& samples_ = metrics_->counter("samples_total");
  prometheus::Counter& time_data_ = metrics_->counter("step_time_seconds_total", {"data"});
  prometheus::Counter& time_compute_ = metrics_->counter("step_time_seconds_total", {"compute"});
  prometheus::Counter& time_push_ = metrics_->counter("step_time_seconds_total", {"push"});
  prometheus::Counter& time_wait_ = metrics_->counter("step_time_seconds_total", {"wait"});
  prometheus::Counter& time_pull_ = metrics_->counter("step_time_seconds_total", {"pull"});
  prometheus::Gauge& loss_ = metrics_->gauge("loss");
  prometheus::Counter& pushed_bytes_ = metrics_->counter("pushed_bytes_total");
  prometheus::Counter& gradient_bytes_ = metrics_->counter("pushed_gradient_bytes_total");
  Histogram staleness_ = metrics_->histogram("staleness_updates");
  prometheus::Counter& view_changes_ = metrics_->counter("view_changes_total");
  prometheus::Counter& all_reduce_sent_ = metrics_->counter("all_reduce_sent_bytes_total");
  Histogram all_reduce_seconds_ = metrics_->histogram("all_reduce_seconds");

  // Used by the executor's tasks only.
  std::unique_ptr<Reducer> reducer_;  // null: not needed so far
  absl::Time reduce_began_;
  uint64_t reduced_bytes_ = 0;  // sent to other workers, as counted
  std::string last_view_;
  Result result_;  // written before the shell ends

  std::atomic<bool> joined_{false};  // it is or was a member

  EventLoop loop_{"streams"};
  Shell shell_;
  ShardStreams streams_;
  const std::unique_ptr<ModelRunner> compute_;
  MemberLink<WorkerCore> link_;
};

}  // namespace

std::unique_ptr<WorkerProcess> WorkerProcess::Start(Options options, Metrics* metrics,
                                                    Logger logger) {
  return std::make_unique<Process>(std::move(options), metrics, std::move(logger));
}

}  // namespace sluice::worker
