// The job's progress, for people and the operator.

#include <algorithm>
#include <utility>

#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

CoordinatorCore::Refusals CoordinatorCore::refusals() const {
  Refusals refusals = refusals_;
  refusals.registrations = registrar_.refused();
  refusals.readers = snapshots_.readers().refused();
  refusals.expelled = facts_.members.expelled();
  refusals.snapshots = snapshots_.readers().size();
  return refusals;
}

v1::JobProgress::Phase CoordinatorCore::ShownPhase() const {
  switch (facts_.phase) {
    case Phase::kReading:
    case Phase::kGathering:
    case Phase::kTakingOver:
    case Phase::kClaiming:
      return v1::JobProgress::STARTING;
    case Phase::kPreparing:
      return v1::JobProgress::INITIALIZING;
    case Phase::kRunning:
      if (!facts_.training.has_view()) return v1::JobProgress::INITIALIZING;
      if (facts_.attempt.goal == Goal::kNone || facts_.attempt.goal == Goal::kHandOver) {
        return v1::JobProgress::TRAINING;
      }
      return snapshots_.evaluations().pending() ? v1::JobProgress::EVALUATING
                                                : v1::JobProgress::SAVING;
    case Phase::kLeavingWorkers:
    case Phase::kLeavingShards:
    case Phase::kExited:
      break;
  }

  switch (attempt_->ending.reason()) {
    case ExitReason::kSucceeded:
      return v1::JobProgress::SUCCEEDED;
    case ExitReason::kSuspended:
      return v1::JobProgress::SUSPENDED;
    case ExitReason::kFailed:
      return v1::JobProgress::FAILED;
    case ExitReason::kSuperseded:
    case ExitReason::kLeft:
      return v1::JobProgress::STARTING;  // as the coordinator that takes over reports
  }
  return v1::JobProgress::STARTING;
}

v1::JobProgress CoordinatorCore::Progress(uint64_t events_after, absl::Time now) const {
  v1::GetProgressRequest request;
  request.set_events_after(events_after);
  return Progress(request, now);
}

v1::JobProgress CoordinatorCore::Progress(const v1::GetProgressRequest& request,
                                          absl::Time now) const {
  v1::JobProgress progress;
  progress.set_phase(ShownPhase());
  progress.set_job(JobName(facts_.job()));

  if (Leaving() || Is(Phase::kExited)) {
    progress.set_reason(attempt_->ending.message());
    progress.set_reason_code(attempt_->ending.code());
  }

  AddProgress(&progress);
  facts_.meter.CopyTo(&progress);
  progress.set_samples_per_second(facts_.meter.SamplesPerSecond(now));
  const Evaluations& evaluations = snapshots_.evaluations();
  if (facts_.last_evaluation.has_value()) {
    *progress.mutable_last_evaluation() = *facts_.last_evaluation;
  }
  if (evaluations.running()) progress.set_evaluating_step(evaluations.version());
  *progress.mutable_checkpoint() = snapshots_.checkpoints().status();

  if (facts_.attempt.base.has_value()) {
    progress.set_restored(true);
    progress.set_restored_from_step(facts_.attempt.base->step());
  }
  progress.set_skipped_steps(facts_.training.skipped());
  progress.set_dropped_contributions(facts_.training.dropped());
  attempt_->moves.CopyTo(&progress);

  AddProcesses(&progress, now);
  output_.events().CopyTo(request.events_after(), &progress);
  if (request.with_losses()) batch_losses_.CopyTo(request.losses_after(), &progress);
  return progress;
}

// How far the job has come. Before an attempt's first view: the checkpoint with which training will
// continue.
void CoordinatorCore::AddProgress(v1::JobProgress* progress) const {
  const Attempt& attempt = facts_.attempt;
  const v1::View& current = facts_.training.view();
  if (current.has_id()) *progress->mutable_view() = current;
  progress->set_attempt(attempt.id.number);
  if (attempt.model.length.has_value()) {
    progress->set_total_steps(attempt.model.length->total_steps());
    progress->set_total_samples(attempt.model.length->total_samples());
  }

  if (attempt.model.length.has_value() && facts_.training.has_view()) {
    progress->set_step(facts_.mode().ShownStep());
    progress->set_samples(facts_.mode().ShownSamples());
    progress->set_epoch(attempt.model.length->EpochsIn(progress->samples()));
  } else if (facts_.storage.has_newest) {
    const v1::CheckpointIndex& index = facts_.storage.newest;
    progress->set_step(attempt.base.has_value() ? attempt.facts().base_version
                                                : index.checkpoint().step());
    progress->set_samples(IsSynchronous(index.mode()) ? index.samples()
                                                      : SamplesIn(index.ledger()));
    if (attempt.model.length.has_value()) {
      progress->set_epoch(attempt.model.length->EpochsIn(progress->samples()));
    }
  }
}

void CoordinatorCore::AddProcesses(v1::JobProgress* progress, absl::Time now) const {
  const v1::View& view = facts_.training.view();
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
    for (const Process* process : facts_.members.Living(role)) {
      v1::ProcessStatus* status = add(*process);
      bool member = false;

      for (int i = 0; i < view.shards_size(); ++i) {
        if (view.shards(i).process().incarnation() != process->incarnation()) continue;
        member = true;
        status->set_partitions(static_cast<uint32_t>(
            facts_.attempt.PartitionsWithBlocks(process->incarnation()).size()));
        status->set_copies(facts_.training.shard(process->incarnation()).copies.size());
      }

      for (const auto& worker : view.workers()) {
        if (worker.process().incarnation() != process->incarnation()) continue;
        member = true;
        uint64_t microbatches = 0;
        for (const v1::Range& range : worker.microbatches()) {
          microbatches += range.end() - range.begin();
        }
        status->set_microbatches(microbatches);
        status->set_batch_size(facts_.mode().BatchSizeOf(*process));
      }

      status->set_samples_per_second(facts_.meter.SpeedOf(process->incarnation()));
      status->set_state(process->suspect() ? v1::ProcessStatus::SUSPECT
                        : member           ? v1::ProcessStatus::MEMBER
                                           : v1::ProcessStatus::STANDBY);
    }
  }

  for (const Departure& departure : facts_.members.departures()) {
    add(departure.process)
        ->set_state(departure.expelled ? v1::ProcessStatus::EXPELLED : v1::ProcessStatus::LEFT);
  }
}

}  // namespace sluice::coordinator
