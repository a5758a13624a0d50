#include "services/worker/worker_process.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/clock.h"
#include "services/common/deadline_timer.h"
#include "services/common/liveness.h"
#include "services/common/mutex.h"
#include "services/common/notification.h"
#include "services/common/serial_executor.h"
#include "services/common/status_macros.h"
#include "services/common/utf8.h"
#include "services/protocol/ids.h"
#include "services/transport/coordinator_link.h"
#include "services/transport/event_loop.h"
#include "services/transport/stream_client.h"
#include "services/worker/collective/reducer.h"
#include "services/worker/trainer.h"

namespace sluice::worker {
namespace {

// While more gradients are coming, fewer bytes than this wait for them: a message costs more than
// it carries.
constexpr size_t kWorthAMessage = 64 << 10;

}  // namespace

class WorkerProcess::Impl {
 public:
  Impl(Options options, Metrics* metrics, Logger logger)
      : options_(std::move(options)),
        metrics_(metrics),
        logger_(std::move(logger)),
        core_(options_.core),
        executor_({.name = "worker"}),
        compute_thread_({.name = "compute"}),
        closing_thread_({.name = "closing"}),
        timer_(&clock_,
               [this] { Event([](WorkerCore& core, absl::Time now) { core.OnTick(now); }); }) {
    CoordinatorLink::Options link;
    link.address = options_.coordinator;
    link.loop = &loop_;
    link.credentials = security::ChannelCredentialsOf(options_.security);
    link.on_round_trip = [this](absl::Duration duration) {
      coordinator_latency_.Observe(absl::ToDoubleSeconds(duration));
    };
    link_ = CoordinatorLink::Start(
        link,
        {.on_connected =
             [this] {
               Event([](WorkerCore& core, absl::Time now) { core.OnCoordinatorConnected(now); });
             },
         .on_message =
             [this](v1::CoordinatorMessage message) {
               Event([this, message = std::move(message)](WorkerCore& core, absl::Time now) {
                 heard_ = true;
                 last_break_.clear();
                 core.OnCoordinatorMessage(message, now);
               });
             },
         .on_broken =
             [this](absl::Status why) {
               Event([this, why = why.ToString()](WorkerCore& core, absl::Time now) {
                 // Of identical failures in a row only the first is logged.
                 if (last_break_ != why) logger_.Info("Control stream closed", {{"why", why}});
                 last_break_ = why;
                 core.OnCoordinatorDisconnected(now);
               });
             }});
    link_ready_.Notify();
  }

  ~Impl() {
    executor_.Post([this] {
      if (!ended_.HasBeenNotified()) End(ExitReason::kLeft, "the process ends");
    });
    executor_.Flush();  // from here on events have no effect

    link_.reset();

    {
      MutexLock lock(&cancel_mutex_);
      stopping_ = true;
    }
    cancel_changed_.SignalAll();
    compute_thread_.Stop();

    executor_.Flush();
    reducer_.reset();  // the executor still exists: the reducer's callbacks have no effect
    executor_.Post([this] { shards_.clear(); });
    executor_.Stop();
    closing_thread_.Stop();
  }

  absl::Status Ready() const {
    return member_ ? absl::OkStatus() : absl::UnavailableError("not a member of the view");
  }

  absl::Status Alive() { return liveness_.Check(); }

  void Leave(std::string reason, absl::Duration grace) {
    Event([reason = std::move(reason), grace](WorkerCore& core, absl::Time now) {
      core.OnLeave(reason, grace, now);
    });
  }

  Result Wait() {
    ended_.Wait();
    link_->Finish(absl::Seconds(2));
    return result_;
  }

 private:
  struct Shard {
    uint64_t connection = 0;  // number of this stream among all streams of the process
    std::unique_ptr<StreamClient> stream;
    struct Pushed {
      absl::Time at;
      uint32_t partition;
    };
    std::optional<Pushed> pushed;  // not answered
  };

  // Passes gradients to the core as they become final.
  class Sink final : public GradientSink {
   public:
    Sink(Impl* process, ComputeId id) : process_(process), id_(id) {}

    void OnGradient(uint32_t tensor, absl::Cord gradient) override {
      process_->Event(
          [id = id_, tensor, gradient = std::move(gradient)](WorkerCore& core,
                                                             absl::Time now) mutable {
            core.OnGradient(id, tensor, std::move(gradient), now);
          },
          kWorthAMessage);
    }
    void OnRowGradient(uint32_t tensor, std::vector<uint64_t> rows, absl::Cord values) override {
      process_->Event(
          [id = id_, tensor, rows = std::move(rows), values = std::move(values)](
              WorkerCore& core, absl::Time now) mutable {
            core.OnRowGradient(id, tensor, std::move(rows), std::move(values), now);
          },
          kWorthAMessage);
    }
    void OnNoGradient(uint32_t tensor) override {
      process_->Event([id = id_, tensor](WorkerCore& core,
                                         absl::Time now) { core.OnNoGradient(id, tensor, now); },
                      kWorthAMessage);
    }
    void OnBufferChange(uint32_t tensor, absl::Cord change) override {
      process_->Event(
          [id = id_, tensor, change = std::move(change)](WorkerCore& core, absl::Time now) mutable {
            core.OnBufferChange(id, tensor, std::move(change), now);
          },
          kWorthAMessage);
    }

   private:
    Impl* const process_;
    const ComputeId id_;
  };

  // Passes an event to the core and performs the resulting actions. Any thread. When other events
  // are sure to follow (Compute ends with OnComputed), fewer than `worth` bytes of frames wait for
  // them.
  template <typename F>
  void Event(F event, size_t worth = 0) {
    executor_.Run([this, event = std::move(event), worth]() mutable {
      if (ended_.HasBeenNotified()) return;
      const absl::Time now = clock_.Now();
      TellWhatWasSent();
      event(core_, now);
      const bool lives = PerformActions();
      FlushShards(worth);
      if (lives) AfterEvents(now);
    });
  }

  // False: the worker has ended.
  bool PerformActions() {
    for (WorkerAction& action : core_.TakeActions()) {
      std::visit([this](auto& a) { this->Perform(a); }, action);
      if (ended_.HasBeenNotified()) return false;
    }
    return true;
  }

  void AfterEvents(absl::Time now) {
    if (!heard_ && now - started_ >= options_.connect_timeout) return GiveUp();
    if (now - last_publication_ >= absl::Seconds(1)) Publish(now);
    timer_.Set(std::min(core_.NextDeadline(), last_publication_ + absl::Seconds(1)));
  }

  // ---- streams

  void Perform(ConnectShard& connect) {
    const ShardId shard = connect.shard;
    const uint64_t connection = ++last_connection_;
    Shard& entry = shards_[shard];
    entry.connection = connection;

    StreamClient::Options options;
    options.address = connect.address;
    options.loop = &loop_;
    if (!options_.shared_memory) options.shared_memory_bytes = 0;
    options.credentials = security::ChannelCredentialsOf(options_.security);
    options.on_queued_bytes = [this](int64_t change) {
      queued_send_.Increment(static_cast<double>(change));
      if (queued_bytes_.fetch_add(change) + change == 0) {
        sent_at_ = absl::ToUnixNanos(clock_.Now());
      }
    };

    entry.stream = StreamClient::Connect(
        options, {.on_frames =
                      [this, shard, connection](std::vector<DecodedFrame> frames) {
                        OnFrames(shard, connection, std::move(frames));
                      },
                  .on_broken =
                      [this, shard, connection](absl::Status why) {
                        Event([this, shard, connection, why](WorkerCore& core, absl::Time now) {
                          if (!IsCurrent(shard, connection)) return;
                          logger_.Info("Shard stream closed", {{"why", why.ToString()}});
                          Retire(shard);
                          core.OnShardDisconnected(shard, why, now);
                        });
                      }});

    Event([this, shard, connection](WorkerCore& core, absl::Time now) {
      if (!IsCurrent(shard, connection)) return;
      core.OnShardConnected(shard, now);
    });
  }
  void OnFrames(ShardId shard, uint64_t connection, std::vector<DecodedFrame> frames) {
    frames_received_.Increment(static_cast<double>(frames.size()));
    for (const DecodedFrame& frame : frames) {
      bytes_received_.Increment(static_cast<double>(frame.payload.size()));
    }

    executor_.Run([this, shard, connection, frames = std::move(frames)]() mutable {
      if (ended_.HasBeenNotified()) return;
      const absl::Time now = clock_.Now();
      TellWhatWasSent();
      for (DecodedFrame& frame : frames) {
        if (!IsCurrent(shard, connection)) break;
        NoteAnswer(shards_[shard], frame.header, now);
        core_.OnShardFrame(shard, frame.header, std::move(frame.payload), now);
        if (!PerformActions()) break;
      }
      FlushShards(0);
      if (!ended_.HasBeenNotified()) AfterEvents(now);
    });
  }
  void Perform(DisconnectShard& disconnect) {
    logger_.Info("Disconnected from a shard", {{"why", disconnect.reason}});
    Retire(disconnect.shard);
  }
  void Perform(SendFrame& send) {
    const auto it = shards_.find(send.shard);
    if (it == shards_.end() || it->second.stream == nullptr) return;
    frames_sent_.Increment();
    bytes_sent_.Increment(static_cast<double>(send.payload.size()));
    Shard& shard = it->second;
    NotePush(send.shard, shard, send.header);
    shard.stream->Queue(send.header, std::move(send.payload));
  }
  // Reports with the next event of any kind: no thread is woken up for it.
  void TellWhatWasSent() {
    if (const int64_t at = sent_at_; at != told_sent_at_) {
      told_sent_at_ = at;
      core_.OnSent(absl::FromUnixNanos(at));
    }
  }

  // The round trip of a push: from the frame that completes a partition to the first data of that
  // partition, or to the answer to an asynchronous update. A later push restarts the measurement.
  void NotePush(ShardId id, Shard& shard, const v1::Header& header) {
    if (!header.has_push() || header.push().complete_size() == 0) return;
    if (logger_.debug_enabled()) {
      const v1::Push& push = header.push();
      logger_.Debug("Sent gradients", {{"step", std::max(push.step(), push.clock())},
                                       {"samples", push.samples()},
                                       {"shard", id}});
    }
    shard.pushed =
        Shard::Pushed{clock_.Now(), header.push().complete(header.push().complete_size() - 1)};
  }
  void NoteAnswer(Shard& shard, const v1::Header& header, absl::Time now) {
    if (!shard.pushed) return;
    const bool answers = header.has_staged() || header.has_applied() ||
                         (header.has_data() && header.data().snapshot_id() == 0 &&
                          header.data().partition() == shard.pushed->partition);
    if (!answers) return;
    push_latency_.Observe(absl::ToDoubleSeconds(now - shard.pushed->at));
    shard.pushed.reset();
  }

  void FlushShards(size_t worth) {
    for (const auto& [id, shard] : shards_) {
      if (shard.stream != nullptr) shard.stream->Flush(worth);
    }
  }
  void Perform(SendToCoordinator& send) {
    link_ready_.Wait();
    if (send.message.has_worker_progress()) NoteProgress(send.message.worker_progress());
    link_->Send(std::move(send.message));
  }

  bool IsCurrent(ShardId shard, uint64_t connection) const {
    const auto it = shards_.find(shard);
    return it != shards_.end() && it->second.connection == connection;
  }

  // A stream must not be destroyed by its own callback, which may be the caller.
  void Retire(ShardId shard) {
    const auto it = shards_.find(shard);
    if (it == shards_.end()) return;
    closing_thread_.Post([stream = std::move(it->second.stream)] {});
    shards_.erase(it);
  }

  // ---- model and compute

  int Threads(const v1::JobSpec& job) const {
    if (job.training().bit_exact() && job.training().threads() == 0) return 1;
    if (job.training().threads() != 0) return static_cast<int>(job.training().threads());
    if (options_.threads != 0) return options_.threads;
    return std::max(1u, std::thread::hardware_concurrency());
  }

  bool Stopping() {
    MutexLock lock(&cancel_mutex_);
    return stopping_;
  }

  absl::StatusOr<std::unique_ptr<Trainer>> OpenTrainer(v1::JobSpec job) {
    if (options_.fetch_data) {
      RETURN_IF_ERROR(options_.fetch_data(job.mutable_data(), [this] { return Stopping(); }));
    }
    return Trainer::Open(job, options_.core.process.index(), Threads(job), options_.make_engine);
  }

  void Perform(OpenModel& open) {
    compute_thread_.Post([this, job = std::move(open.job)] {
      step_delay_ = absl::Seconds(job.debug().step_delay_seconds());
      absl::StatusOr<std::unique_ptr<Trainer>> trainer = OpenTrainer(job);
      if (!trainer.ok()) {
        NotOpened(trainer.status());
        return;
      }

      logger_.Info("Model and data opened",
                   {{"tensors", (*trainer)->engine().Describe().tensors_size()},
                    {"training_samples", (*trainer)->training_samples()},
                    {"evaluation_samples", (*trainer)->evaluation_samples()}});
      trainer_ = *std::move(trainer);

      Event([this](WorkerCore& core, absl::Time now) {
        core.SetRowTensors(trainer_->RowTensors());
        core.OnModelReady(trainer_->engine().Describe(), trainer_->training_samples(),
                          trainer_->evaluation_samples(), now);
      });
    });
  }

  // Missing data may still appear: the job does not fail, only this worker leaves.
  void NotOpened(const absl::Status& status) {
    if (!absl::IsNotFound(status) && !absl::IsPermissionDenied(status)) {
      logger_.Error("Model or data cannot be opened", {{"why", status.ToString()}});
      Event([status](WorkerCore& core, absl::Time now) { core.OnModelFailed(status, now); });
      return;
    }
    std::string message = absl::StrCat("model or data are missing: ", status.message());
    logger_.Error(message);
    Event([this, message = std::move(message)](WorkerCore& core, absl::Time now) {
      data_missing_ = true;
      core.OnLeave(message, absl::ZeroDuration(), now);
    });
  }

  void Perform(ReadInitialTensor& read) {
    compute_thread_.Post([this, read = std::move(read)] {
      absl::StatusOr<absl::Cord> content = trainer_->engine().InitialTensor(read.tensor);
      Event([init_id = read.init_id, tensor = read.tensor, content = std::move(content)](
                WorkerCore& core, absl::Time now) mutable {
        core.OnInitialTensor(init_id, tensor, std::move(content), now);
      });
    });
  }

  void Perform(StoreBlock& store) {
    if (absl::Status status = trainer_->Store(store); !status.ok()) {
      Fail(absl::StrCat("a received block cannot be stored: ", status.message()));
    }
  }

  void Perform(AdoptVersion& adopt) {
    if (logger_.debug_enabled()) logger_.Debug("Received weights", {{"version", adopt.version}});
    if (absl::Status status = trainer_->engine().Adopt(); !status.ok()) {
      Fail(absl::StrCat("a version cannot be adopted: ", status.message()));
    }
  }

  void Perform(Compute& compute) {
    compute_thread_.Post([this, compute = std::move(compute)] {
      ComputeResult result;
      if (WaitBeforeStep(compute.id)) {
        Sink sink(this, compute.id);
        result = trainer_->ComputeGradients(compute, sink);
      }
      Event([this, id = compute.id, result](WorkerCore& core, absl::Time now) {
        {
          MutexLock lock(&cancel_mutex_);  // here: the core can no longer cancel it
          cancelled_.erase(id);
        }
        core.OnComputed(id, result, now);
      });
      trainer_->PrepareNext();
    });
  }

  void Perform(FindRows& find) {
    compute_thread_.Post([this, find = std::move(find)] {
      absl::StatusOr<RowSelections> rows = trainer_->FindRows(find.positions);
      Event([id = find.id, rows = std::move(rows)](WorkerCore& core, absl::Time now) mutable {
        core.OnRows(id, std::move(rows), now);
      });
    });
  }

  void Perform(CancelCompute& cancel) {
    MutexLock lock(&cancel_mutex_);
    cancelled_.insert(cancel.id);
    cancel_changed_.SignalAll();
  }

  void Perform(EvaluateSamples& evaluate) {
    compute_thread_.Post([this, evaluate = std::move(evaluate)] {
      const ComputeResult result = trainer_->Evaluate(evaluate);
      evaluated_samples_.Increment(static_cast<double>(result.samples));
      Event([id = evaluate.id, result](WorkerCore& core, absl::Time now) {
        core.OnEvaluated(id, result, now);
      });
    });
  }

  // The job's delay before each step. False: the result is no longer needed.
  bool WaitBeforeStep(ComputeId id) {
    const absl::Time until = absl::Now() + step_delay_;
    MutexLock lock(&cancel_mutex_);
    while (true) {
      if (stopping_ || cancelled_.count(id) != 0) return false;
      if (step_delay_ <= absl::ZeroDuration() || absl::Now() >= until) return true;
      cancel_changed_.WaitWithDeadline(&cancel_mutex_, until);
    }
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
    Event([this, view, step, part = std::move(part)](WorkerCore& core, absl::Time now) mutable {
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

  void Perform(Exit& exit) { End(exit.reason, exit.message); }

  void Fail(std::string message) {
    constexpr size_t kMaxReasonBytes = 4096;
    v1::MemberMessage failure;
    failure.mutable_failure()->set_reason(CleanUtf8(message, kMaxReasonBytes));
    link_->Send(std::move(failure));
    End(ExitReason::kFailed, std::move(message));
  }

  void GiveUp() {
    const std::string message =
        absl::StrCat("no coordinator has answered at ", options_.coordinator, " within ",
                     absl::FormatDuration(options_.connect_timeout),
                     ": the job has ended or has not begun, or its coordinator is elsewhere",
                     last_break_.empty() ? "" : absl::StrCat(" (", last_break_, ")"));
    logger_.Error(message);
    unreachable_ = true;
    End(ExitReason::kFailed, "no coordinator has answered");
  }

  void End(ExitReason reason, std::string message) {
    logger_.Info("Worker stopped", {{"why", message}});
    result_ = {reason, std::move(message), data_missing_ && reason == ExitReason::kLeft,
               unreachable_};
    ended_.Notify();
  }

  // ---- metrics

  void NoteProgress(const v1::WorkerProgress& progress) {
    for (const v1::WorkerProgress::Step& step : progress.steps()) {
      steps_.Increment();
      samples_.Increment(static_cast<double>(step.samples()));
      if (step.has_staleness()) staleness_.Observe(static_cast<double>(step.staleness()));
      if (step.samples() > 0) {
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

  void Publish(absl::Time now) {
    last_publication_ = now;
    const WorkerStatus status = core_.Status();
    member_ = status.member;
    metrics_->gauge("member").Set(status.member ? 1 : 0);
    metrics_->gauge("step").Set(static_cast<double>(status.step));
    metrics_->gauge("recomputed_samples").Set(static_cast<double>(status.recomputed_samples));
    metrics_->gauge("credit_queue_bytes").Set(static_cast<double>(status.queued_bytes));
    metrics_->gauge("pending_computes").Set(static_cast<double>(status.pending_computes));
    if (status.view != last_view_) {
      last_view_ = status.view;
      metrics_->counter("view_changes_total").Increment();
      logger_.Info("View installed",
                   {{"view", status.view}, {"member", status.member}, {"step", status.step}});
    }
  }

  const Options options_;
  Metrics* const metrics_;
  const Logger logger_;
  const RealClock clock_;
  const absl::Time started_ = clock_.Now();
  prometheus::Counter& frames_received_ = metrics_->counter("frames_received_total");
  prometheus::Counter& bytes_received_ = metrics_->counter("received_bytes_total");
  prometheus::Counter& frames_sent_ = metrics_->counter("frames_sent_total");
  prometheus::Counter& bytes_sent_ = metrics_->counter("sent_bytes_total");
  prometheus::Counter& steps_ = metrics_->counter("steps_total");
  prometheus::Counter& samples_ = metrics_->counter("samples_total");
  prometheus::Counter& evaluated_samples_ = metrics_->counter("evaluated_samples_total");
  prometheus::Counter& time_data_ = metrics_->counter("step_time_seconds_total", {"data"});
  prometheus::Counter& time_compute_ = metrics_->counter("step_time_seconds_total", {"compute"});
  prometheus::Counter& time_push_ = metrics_->counter("step_time_seconds_total", {"push"});
  prometheus::Counter& time_wait_ = metrics_->counter("step_time_seconds_total", {"wait"});
  prometheus::Counter& time_pull_ = metrics_->counter("step_time_seconds_total", {"pull"});
  prometheus::Gauge& loss_ = metrics_->gauge("loss");
  prometheus::Gauge& queued_send_ = metrics_->gauge("send_queue_bytes");
  prometheus::Counter& pushed_bytes_ = metrics_->counter("pushed_bytes_total");
  prometheus::Counter& gradient_bytes_ = metrics_->counter("pushed_gradient_bytes_total");
  prometheus::Histogram& staleness_ = metrics_->histogram("staleness_updates");
  prometheus::Histogram& push_latency_ = metrics_->histogram("push_latency_seconds");
  prometheus::Histogram& all_reduce_seconds_ = metrics_->histogram("all_reduce_seconds");
  prometheus::Counter& all_reduce_sent_ = metrics_->counter("all_reduce_sent_bytes_total");
  prometheus::Histogram& coordinator_latency_ = metrics_->histogram("coordinator_latency_seconds");

  // Of all streams; changed by the streams' threads.
  std::atomic<int64_t> queued_bytes_{0};
  std::atomic<int64_t> sent_at_{0};  // Unix nanoseconds: when the queues were last empty

  // Used by the executor's tasks only.
  WorkerCore core_;
  std::map<ShardId, Shard> shards_;
  uint64_t last_connection_ = 0;
  std::unique_ptr<Reducer> reducer_;  // null: not needed so far
  absl::Time reduce_began_;
  uint64_t reduced_bytes_ = 0;  // sent to other workers, as counted
  int64_t told_sent_at_ = 0;
  absl::Time last_publication_ = absl::InfinitePast();
  std::string last_view_;
  bool heard_ = false;      // whether the coordinator has sent anything
  std::string last_break_;  // why its stream broke; empty once it has sent something
  bool unreachable_ = false;
  bool data_missing_ = false;
  Result result_;  // written before ended_ is notified

  // Set on the compute thread before OnModelReady, constant from then on.
  std::unique_ptr<Trainer> trainer_;
  absl::Duration step_delay_;

  Mutex cancel_mutex_;  // protects the members below
  CondVar cancel_changed_;
  std::set<ComputeId> cancelled_ ABSL_GUARDED_BY(cancel_mutex_);
  bool stopping_ ABSL_GUARDED_BY(cancel_mutex_) = false;

  std::atomic<bool> member_{false};
  Notification link_ready_;  // link_ is set
  Notification ended_;

  EventLoop loop_{"streams"};
  SerialExecutor executor_;
  Liveness liveness_{&executor_, kLivenessPatience, &clock_};
  SerialExecutor compute_thread_;
  SerialExecutor closing_thread_;
  DeadlineTimer timer_;
  std::unique_ptr<CoordinatorLink> link_;
};

WorkerProcess::WorkerProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerProcess::~WorkerProcess() = default;

std::unique_ptr<WorkerProcess> WorkerProcess::Start(Options options, Metrics* metrics,
                                                    Logger logger) {
  return std::unique_ptr<WorkerProcess>(
      new WorkerProcess(std::make_unique<Impl>(std::move(options), metrics, std::move(logger))));
}

absl::Status WorkerProcess::Alive() { return impl_->Alive(); }
absl::Status WorkerProcess::Ready() const { return impl_->Ready(); }
void WorkerProcess::Leave(std::string reason, absl::Duration grace) {
  impl_->Leave(std::move(reason), grace);
}
WorkerProcess::Result WorkerProcess::Wait() { return impl_->Wait(); }

}  // namespace sluice::worker
