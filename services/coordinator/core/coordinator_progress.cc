// The job's progress, for people and the operator.

#include <algorithm>
#include <utility>

#include "services/coordinator/core/coordinator_impl.h"

namespace sluice::coordinator {

void CoordinatorCore::Impl::Info(std::string message, absl::Time now) {
  events_.Add(v1::Event::INFO, std::move(message), now);
}

void CoordinatorCore::Impl::Warn(std::string message, absl::Time now) {
  events_.Add(v1::Event::WARNING, std::move(message), now);
}

v1::JobProgress::Phase CoordinatorCore::Impl::CurrentPhase() const {
  switch (phase_) {
    case Phase::kReading:
    case Phase::kGathering:
    case Phase::kClaiming:
      return v1::JobProgress::STARTING;
    case Phase::kPreparing:
      return v1::JobProgress::INITIALIZING;
    case Phase::kRunning:
      if (!change_.has_install()) return v1::JobProgress::INITIALIZING;
      if (goal_ == Goal::kNone || goal_ == Goal::kHandOver) return v1::JobProgress::TRAINING;
      return snapshot_.has_value() && snapshot_->evaluation ? v1::JobProgress::EVALUATING
                                                            : v1::JobProgress::SAVING;
    case Phase::kLeavingWorkers:
    case Phase::kLeavingShards:
    case Phase::kExited:
      break;
  }

  switch (exit_reason_) {
    case ExitReason::kSucceeded:
      return v1::JobProgress::SUCCEEDED;
    case ExitReason::kSuspended:
      return v1::JobProgress::SUSPENDED;
    case ExitReason::kFailed:
      return v1::JobProgress::FAILED;
    case ExitReason::kSuperseded:
      return v1::JobProgress::STARTING;  // as the coordinator that took over reports
  }
  return v1::JobProgress::STARTING;
}

v1::JobProgress CoordinatorCore::Impl::Progress(const v1::GetProgressRequest& request,
                                                absl::Time now) const {
  v1::JobProgress progress;
  progress.set_phase(CurrentPhase());
  progress.set_job(JobName(options_.job));

  if (Leaving() || phase_ == Phase::kExited) {
    progress.set_reason(exit_message_);
    progress.set_reason_code(reason_code_);
  }

  if (view_.has_id()) *progress.mutable_view() = view_;
  progress.set_attempt(attempt_);
  if (length_.has_value()) {
    progress.set_total_steps(length_->total_steps());
    progress.set_total_samples(length_->total_samples());
  }

  if (length_.has_value() && change_.has_install()) {
    progress.set_step(Synchronous() ? committed_ : HighestClosed());
    progress.set_samples(Synchronous() ? length_->SamplesAt(committed_) : Samples());
    progress.set_epoch(length_->EpochsIn(progress.samples()));
  } else if (storage_.has_newest) {
    // Training will continue here.
    const v1::CheckpointIndex& checkpoint_index = storage_.newest;
    progress.set_step(base_.has_value() ? facts_.base_version
                                        : checkpoint_index.checkpoint().step());
    progress.set_samples(IsSynchronous(checkpoint_index.mode())
                             ? checkpoint_index.samples()
                             : SamplesIn(checkpoint_index.ledger()));
    if (length_.has_value()) progress.set_epoch(length_->EpochsIn(progress.samples()));
  }

  meter_.CopyTo(&progress);
  progress.set_samples_per_second(meter_.SamplesPerSecond(now));
  if (last_result_.has_value()) *progress.mutable_last_evaluation() = *last_result_;
  if (evaluation_.has_value()) progress.set_evaluating_step(evaluation_->version());
  *progress.mutable_checkpoint() = checkpoint_status_;

  if (base_.has_value()) {
    progress.set_restored(true);
    progress.set_restored_from_step(base_->step());
  }

  uint64_t skipped = 0;
  for (const auto& [shard, state] : shard_states_) skipped = std::max(skipped, state.skipped);
  progress.set_skipped_steps(skipped);
  for (const auto& [shard, state] : shard_states_) {
    progress.set_dropped_contributions(std::max(progress.dropped_contributions(), state.dropped));
  }

  AddProcesses(&progress, now);
  events_.CopyTo(request.events_after(), &progress);
  if (request.with_losses()) losses_.CopyTo(request.losses_after(), &progress);
  return progress;
}

void CoordinatorCore::Impl::AddProcesses(v1::JobProgress* progress, absl::Time now) const {
  const auto add = [&](const Process& process) {
    v1::ProcessStatus& status = *progress->add_processes();
    *status.mutable_process() = process.id;
    status.set_address(process.address);
    status.set_pid(process.pid);
    status.set_metrics_address(process.metrics_address);
    status.set_seconds_since_last_message(absl::ToDoubleSeconds(now - process.last_message));
    return &status;
  };

  for (v1::Role role : {v1::SHARD, v1::WORKER}) {
    for (const Process* process : membership_.Living(role)) {
      v1::ProcessStatus* status = add(*process);
      bool member = false;

      for (int i = 0; i < view_.shards_size(); ++i) {
        if (view_.shards(i).process().incarnation() != process->incarnation()) continue;
        member = true;
        status->set_partitions(PartitionsWithBlocks(process->incarnation()));
      }

      for (const auto& worker : view_.workers()) {
        if (worker.process().incarnation() != process->incarnation()) continue;
        member = true;
        uint64_t microbatches = 0;
        for (const v1::Range& range : worker.microbatches()) {
          microbatches += range.end() - range.begin();
        }
        status->set_microbatches(microbatches);
        status->set_batch_size(BatchSizeOf(*process));
      }

      status->set_samples_per_second(meter_.SpeedOf(process->incarnation()));
      status->set_state(process->suspect() ? v1::ProcessStatus::SUSPECT
                        : member           ? v1::ProcessStatus::MEMBER
                                           : v1::ProcessStatus::STANDBY);
    }
  }

  for (const Departure& departure : membership_.departures()) {
    add(departure.process)
        ->set_state(departure.expelled ? v1::ProcessStatus::EXPELLED : v1::ProcessStatus::LEFT);
  }
}

}  // namespace sluice::coordinator
