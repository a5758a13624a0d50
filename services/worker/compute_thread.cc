#include "services/worker/compute_thread.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "services/common/process/processors.h"
#include "services/common/status_macros.h"
#include "services/protocol/kernels.h"

namespace sluice::worker {

// Passes gradients to the core as they become final.
class ComputeThread::Sink final : public GradientSink {
 public:
  Sink(CoreShell<WorkerCore>* shell, ComputeId id) : shell_(shell), id_(id) {}

  void OnWeight(double weight) override { Pass(Call(&WorkerCore::OnWeight, id_, weight)); }
  void OnGradient(uint32_t tensor, absl::Cord gradient) override {
    Pass(Call(&WorkerCore::OnGradient, id_, tensor, std::move(gradient)));
  }
  void OnRowGradient(uint32_t tensor, std::vector<uint64_t> rows, absl::Cord values) override {
    Pass(Call(&WorkerCore::OnRowGradient, id_, tensor, std::move(rows), std::move(values)));
  }
  void OnNoGradient(uint32_t tensor) override {
    Pass(Call(&WorkerCore::OnNoGradient, id_, tensor));
  }
  void OnBufferChange(uint32_t tensor, absl::Cord change) override {
    Pass(Call(&WorkerCore::OnBufferChange, id_, tensor, std::move(change)));
  }

 private:
  // While more gradients are coming (Compute ends with OnComputed), fewer bytes than this wait for
  // them: a message would cost more than the work.
  static constexpr size_t kWorthAMessage = 64 << 10;

  template <typename F>
  void Pass(F event) {
    shell_->Event(std::move(event), {.worth = kWorthAMessage});
  }

  CoreShell<WorkerCore>* const shell_;
  const ComputeId id_;
};

ComputeThread::ComputeThread(const WorkerProcess::Options* options, CoreShell<WorkerCore>* shell,
                             Metrics* metrics, Logger logger)
    : options_(options),
      shell_(shell),
      logger_(std::move(logger)),
      evaluated_samples_(metrics->counter("evaluated_samples_total")) {}

void ComputeThread::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  changed_.SignalAll();
  thread_.Stop();
}

// ---- model and data

void ComputeThread::Perform(OpenModel& open) {
  thread_.Post([this, job = std::move(open.job)] {
    step_delay_ = absl::Seconds(job.debug().step_delay_seconds());
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Open(job);
    if (!trainer.ok()) return OnNotOpened(trainer.status());

    logger_.Info("Model and data opened",
                 {{"tensors", (*trainer)->engine().Describe().tensors_size()},
                  {"training_samples", (*trainer)->training_samples()},
                  {"evaluation_samples", (*trainer)->evaluation_samples()}});
    trainer_ = *std::move(trainer);

    shell_->Event([this](WorkerCore& core, absl::Time now) {
      core.SetRowTensors(trainer_->RowTensors());
      core.OnModelReady(trainer_->Ready(), now);
    });
  });
}

absl::StatusOr<std::unique_ptr<Trainer>> ComputeThread::Open(v1::JobSpec job) {
  if (options_->fetch_data) {
    RETURN_IF_ERROR(options_->fetch_data(job.mutable_data(), [this] { return Stopping(); }));
  }
  return Trainer::Open(job, options_->core.process.index(), ThreadsOf(job), options_->make_engine);
}

// Missing data may still appear: the job does not fail, only this worker leaves.
void ComputeThread::OnNotOpened(const absl::Status& status) {
  if (!absl::IsNotFound(status) && !absl::IsPermissionDenied(status)) {
    logger_.Error("Model or data cannot be opened", {{"why", status.ToString()}});
    shell_->Event(Call(&WorkerCore::OnModelFailed, status));
    return;
  }

  std::string message = absl::StrCat("model or data are missing: ", status.message());
  logger_.Error(message);
  shell_->Event([this, message = std::move(message)](WorkerCore& core, absl::Time now) {
    data_missing_ = true;
    core.OnAskedToStop(message, absl::ZeroDuration(), now);
  });
}

int ComputeThread::ThreadsOf(const v1::JobSpec& job) const {
  if (const int fixed = FixedThreads(job.training()); fixed != 0) return fixed;
  if (options_->threads != 0) return options_->threads;
  return AvailableProcessors();
}

void ComputeThread::Perform(ReadInitialTensor& read) {
  thread_.Post([this, read = std::move(read)] {
    absl::StatusOr<absl::Cord> content = trainer_->engine().InitialTensor(read.tensor);
    shell_->Event(
        Call(&WorkerCore::OnInitialTensor, read.init_id, read.tensor, std::move(content)));
  });
}

// ---- computing

void ComputeThread::Perform(Compute& compute) {
  thread_.Post([this, compute] {
    ComputeResult result;
    if (WaitBeforeStep(compute.id)) {
      Sink sink(shell_, compute.id);
      result = trainer_->ComputeGradients(compute, sink);
    }

    shell_->Event([this, id = compute.id, result](WorkerCore& core, absl::Time now) {
      {
        MutexLock lock(&mutex_);  // here: the core can no longer cancel it
        cancelled_.erase(id);
      }
      core.OnComputed(id, result, now);
    });

    trainer_->PrepareNext();
  });
}

void ComputeThread::Perform(FindRows& find) {
  thread_.Post([this, find = std::move(find)] {
    absl::StatusOr<RowSelections> rows = trainer_->FindRows(find.positions);
    shell_->Event(Call(&WorkerCore::OnRows, find.id, std::move(rows)));
  });
}

void ComputeThread::Perform(CancelCompute& cancel) {
  MutexLock lock(&mutex_);
  cancelled_.insert(cancel.id);
  changed_.SignalAll();
}

void ComputeThread::Perform(EvaluateSamples& evaluate) {
  thread_.Post([this, evaluate] {
    const ComputeResult result = trainer_->Evaluate(evaluate);
    evaluated_samples_.Increment(static_cast<double>(result.samples));
    shell_->Event(Call(&WorkerCore::OnEvaluated, evaluate.id, result));
  });
}

void ComputeThread::Perform(ComputeMetrics& compute) {
  v1::MetricValues answer;
  answer.set_error("sluice-worker has no metrics of a program");
  shell_->Event(Call(&WorkerCore::OnMetricValues, compute.id, std::move(answer)));
}

bool ComputeThread::WaitBeforeStep(ComputeId id) {
  const absl::Time until = absl::Now() + step_delay_;
  MutexLock lock(&mutex_);
  while (true) {
    if (stopping_ || cancelled_.count(id) != 0) return false;
    if (step_delay_ <= absl::ZeroDuration() || absl::Now() >= until) return true;
    changed_.WaitWithDeadline(&mutex_, until);
  }
}

bool ComputeThread::Stopping() {
  MutexLock lock(&mutex_);
  return stopping_;
}

}  // namespace sluice::worker
