// How a job ends: it is complete, has reached its target, is suspended, has failed, or another
// coordinator has taken over.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/coordinator/core/coordinator_impl.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

void CoordinatorCore::Impl::ChooseGoal(absl::Time now) {
  // A job that waits for its disk at the end can be stopped: it continues from its newest
  // checkpoint when it is started again. Training has stopped in the same way for a shard that
  // leaves.
  const bool waits = final_failures_ > 0 || (claim_.has_value() && storage_errors_ > 0);
  const bool hands_over = goal_ == Goal::kHandOver;
  if (suspend_ && (waits || hands_over) && goal_ != Goal::kNone && goal_ != Goal::kSuspend) {
    goal_ = Goal::kSuspend;
    suspend_deadline_ = now + timers_.suspend_checkpoint;
    final_retry_at_ = absl::InfiniteFuture();
    return;
  }

  if (goal_ != Goal::kNone) return;

  if (suspend_) {
    goal_ = Goal::kSuspend;
    suspend_deadline_ = now + timers_.suspend_checkpoint;
  } else if (target_reached_) {
    goal_ = Goal::kTarget;
    Info("the target is reached", now);
  } else if (change_.has_install() && Idle()) {
    // All shards must have closed the last step; one shard's `committed` is not enough.
    const bool complete = Synchronous()
                              ? std::min(committed_, LowestClosed()) >= length_->total_steps()
                              : Samples() >= length_->total_samples();
    if (last_position_ != 0) {
      if (Samples() >= last_position_) goal_ = Goal::kSwitch;
    } else if (complete) {
      goal_ = Goal::kComplete;
    }
  }

  if (goal_ == Goal::kNone && change_.has_install() && ShardLeaves()) {
    goal_ = Goal::kHandOver;
    suspend_deadline_ = now + timers_.suspend_checkpoint;
  }

  if (goal_ != Goal::kNone) EndReaders(absl::UnavailableError("the job is ending"));
}

void CoordinatorCore::Impl::AdvanceEnding(absl::Time now) {
  // A complete job stays complete: a suspension comes too late then, unless the job waits for its
  // disk.
  const Goal before = goal_;
  ChooseGoal(now);
  if (goal_ == Goal::kNone) return;
  if (goal_ != before) {
    // What this makes due: a view without workers, or the last snapshot.
    AdvanceViews(now);
    if (phase_ == Phase::kRunning) AdvanceSnapshots(now);
    if (phase_ != Phase::kRunning) return;
  }

  if (goal_ == Goal::kSuspend && suspend_deadline_ <= now) {
    const std::string why =
        absl::StrCat("no checkpoint within ", absl::FormatDuration(timers_.suspend_checkpoint));
    Warn(absl::StrCat("suspended without a new checkpoint: ", why), now);
    Leave(ExitReason::kSuspended, absl::StrCat("suspended; ", why), now);
    return;
  }

  if (goal_ == Goal::kHandOver && suspend_deadline_ <= now) {
    Warn(absl::StrCat("no checkpoint within ", absl::FormatDuration(timers_.suspend_checkpoint),
                      " for a shard that leaves"),
         now);
    EndHandOver(now);
    return;
  }

  if (!change_.has_install() || !Idle() || snapshot_.has_value()) return;
  if (Stopping() && view_.workers_size() > 0) return;
  const SnapshotPlan missing = FinalPlan();
  if (missing.checkpoint || missing.evaluation) return;

  if (goal_ == Goal::kSuspend) {
    Leave(ExitReason::kSuspended, "suspended", now);
  } else if (goal_ == Goal::kSwitch) {
    BeginNextAttempt(now);  // with the checkpoint that was just made
  } else if (goal_ == Goal::kHandOver) {
    EndHandOver(now);
  } else if (!claim_.has_value() || (!claim_pending_ && retry_at_ <= now)) {
    // (R11) The end record takes the next name in the sequence of claims.
    Claim(/*end=*/true, now);
  }
}

bool CoordinatorCore::Impl::EndsWithEvaluation() const {
  return goal_ == Goal::kComplete || goal_ == Goal::kTarget;
}

// The parts of the last checkpoint and the last evaluation that are still missing.
SnapshotPlan CoordinatorCore::Impl::FinalPlan() const {
  SnapshotPlan plan;
  plan.step = Synchronous() ? LowestClosed() : HighestClosed();
  const v1::CheckpointRef& last = checkpoint_status_.last();
  plan.checkpoint =
      !checkpoint_status_.has_last() || last.attempt() != attempt_ || last.step() != plan.step;
  const bool evaluated = last_result_.has_value() && last_result_->step() == plan.step &&
                         last_result_->samples() == model_->evaluation_samples();
  plan.evaluation =
      EndsWithEvaluation() && EvaluationSamples() > 0 && !evaluated && !final_evaluation_given_up_;
  // Only a version that no longer changes can be final.
  if (Stopping() && view_.workers_size() > 0 && Synchronous()) return {};
  return plan;
}

// ---- leaving

void CoordinatorCore::Impl::Leave(ExitReason reason, const std::string& message, absl::Time now) {
  EndReaders(absl::UnavailableError(message));

  snapshot_.reset();
  evaluation_.reset();
  claim_.reset();
  claim_pending_ = false;
  exit_reason_ = reason;
  exit_message_ = message;

  if (!refused_models_.empty()) {
    absl::StrAppend(&exit_message_, "; refused for another model or other data: ",
                    absl::StrJoin(refused_models_, ", "));
  }

  phase_ = Phase::kLeavingWorkers;
  leave_deadline_ = now + timers_.heartbeat_timeout;
  if (reason == ExitReason::kFailed) {
    Warn(exit_message_, now);
  } else {
    Info(exit_message_, now);
  }

  // A wanted worker that is starting again must learn that the job has ended.
  if (reason == ExitReason::kSucceeded &&
      membership_.LivingAndConnected(v1::WORKER).size() < wanted_workers_) {
    linger_until_ = std::max(linger_until_, now + timers_.suspect);
  }

  for (const Process* worker : membership_.Living(v1::WORKER)) SendFinish(*worker);
}

void CoordinatorCore::Impl::Fail(const std::string& reason, absl::Time now,
                                 const std::string& code) {
  if (Leaving() || phase_ == Phase::kExited) return;
  reason_code_ = code;
  Leave(ExitReason::kFailed, reason, now);
}

void CoordinatorCore::Impl::SendFinish(const Process& process) {
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(exit_reason_ != ExitReason::kFailed);
  message.mutable_finish()->set_reason(exit_message_);
  Send(process, std::move(message));
}

void CoordinatorCore::Impl::AdvanceLeaving(absl::Time now) {
  const bool late = leave_deadline_ <= now;
  if (!late && membership_.registering() > 0) return;  // a process that is about to register
  if (phase_ == Phase::kLeavingWorkers) {
    const bool linger = linger_until_ > now;
    if (!late && (linger || !membership_.LivingAndConnected(v1::WORKER).empty())) return;
    phase_ = Phase::kLeavingShards;
    leave_deadline_ = now + timers_.heartbeat_timeout;
    for (const Process* shard : membership_.Living(v1::SHARD)) SendFinish(*shard);
    return;
  }
  if (!late && !membership_.LivingAndConnected(v1::SHARD).empty()) return;
  phase_ = Phase::kExited;
  actions_.push_back(Exit{exit_reason_, exit_message_});
}

void CoordinatorCore::Impl::Supersede(const std::string& why) {
  EndReaders(absl::UnavailableError(why));
  exit_reason_ = ExitReason::kSuperseded;
  exit_message_ = why;
  phase_ = Phase::kExited;
  actions_.push_back(Exit{exit_reason_, exit_message_});
}

}  // namespace sluice::coordinator
