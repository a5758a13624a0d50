#include "services/coordinator/core/lifecycle/ending.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/common/check.h"
#include "services/coordinator/core/facts/training_mode.h"

namespace sluice::coordinator {

// ---- the goal

void Ending::ChooseGoal(const Findings& findings, absl::Time now) {
  SLUICE_DCHECK(facts_.phase == Phase::kRunning, "training ends in a job that trains");
  if (goal_ != Goal::kNone) {
    const bool replaceable = findings.waits_for_storage || goal_ == Goal::kHandOver;
    if (facts_.suspend && replaceable && goal_ != Goal::kSuspend) {
      goal_ = Goal::kSuspend;
      suspend_deadline_ = now + facts_.timers.suspend_checkpoint;
    }
    return;
  }

  const Training& training = facts_.training;
  if (facts_.suspend) {
    goal_ = Goal::kSuspend;
    suspend_deadline_ = now + facts_.timers.suspend_checkpoint;
  } else if (findings.target_reached) {
    goal_ = Goal::kTarget;
    output_.Info("the target is reached", now);
  } else if (training.has_view() && training.idle()) {
    const uint64_t last_position = facts_.attempt.last_position;
    if (last_position != 0) {
      if (facts_.mode().Samples() >= last_position) goal_ = Goal::kSwitch;
    } else if (facts_.mode().Complete()) {
      goal_ = Goal::kComplete;
    }
  }

  if (goal_ == Goal::kNone && findings.stopped) {
    goal_ = Goal::kStopped;
  } else if (goal_ == Goal::kNone && training.has_view() && ShardLeaves()) {
    goal_ = Goal::kHandOver;
    suspend_deadline_ = now + facts_.timers.suspend_checkpoint;
  }
}

bool Ending::ShardLeaves() const {
  if (facts_.CanDrain()) return false;
  const std::vector<uint64_t>& shards = facts_.attempt.facts().shards;
  return std::any_of(shards.begin(), shards.end(), [&](uint64_t incarnation) {
    const Process* shard = facts_.members.Find(incarnation);
    return shard != nullptr && shard->leaving;
  });
}

bool Ending::Late(absl::Time now) const {
  SLUICE_DCHECK((goal_ == Goal::kSuspend || goal_ == Goal::kHandOver) ==
                    (suspend_deadline_ != absl::InfiniteFuture()),
                "a suspension and a shard that leaves wait only for a time");
  return (goal_ == Goal::kSuspend || goal_ == Goal::kHandOver) && suspend_deadline_ <= now;
}

Ending::Step Ending::Next(bool saved, absl::Time now) {
  SLUICE_DCHECK(goal_ != Goal::kNone, "training ends for a reason");
  if (Late(now)) {
    const std::string why = absl::StrCat("no checkpoint within ",
                                         absl::FormatDuration(facts_.timers.suspend_checkpoint));
    if (goal_ == Goal::kSuspend) {
      output_.Warn(absl::StrCat("suspended without a new checkpoint: ", why), now);
      return Step::kLeaveSuspended;
    }
    output_.Warn(absl::StrCat(why, " for a shard that leaves"), now);
    return Step::kHandOver;
  }

  if (!saved) return Step::kWait;
  switch (goal_) {
    case Goal::kSuspend:
      return Step::kLeaveSuspended;
    case Goal::kSwitch:
      return Step::kNextAttempt;
    case Goal::kHandOver:
      return Step::kHandOver;
    default:
      return Step::kRecordEnd;
  }
}

// ---- leaving

std::string Ending::SuspendedMessage(absl::Time now) const {
  if (!Late(now)) return "suspended";
  return absl::StrCat("suspended; no checkpoint within ",
                      absl::FormatDuration(facts_.timers.suspend_checkpoint));
}

void Ending::BeginLeaving(ExitReason reason, const std::string& message, const std::string& code,
                          const std::set<std::string>& refused, absl::Time now) {
  SLUICE_DCHECK(facts_.phase == Phase::kLeavingWorkers, "workers leave before shards");
  reason_ = reason;
  message_ = message;
  code_ = code;
  if (!refused.empty()) {
    absl::StrAppend(&message_,
                    "; refused for another model or other data: ", absl::StrJoin(refused, ", "));
  }

  leave_deadline_ = now + facts_.timers.heartbeat_timeout;
  if (reason == ExitReason::kFailed) {
    output_.Warn(message_, now);
  } else {
    output_.Info(message_, now);
  }

  // A wanted worker that is starting again must learn that the job has ended.
  if (reason == ExitReason::kSucceeded &&
      facts_.members.LivingAndConnected(v1::WORKER).size() < facts_.wanted_workers) {
    linger_until_ = std::max(linger_until_, now + facts_.timers.suspect);
  }

  for (const Process* worker : facts_.members.Living(v1::WORKER)) SendFinish(*worker);
}

bool Ending::HaveLeft(absl::Time now) const {
  SLUICE_DCHECK(leave_deadline_ != absl::InfiniteFuture(), "processes leave within a time");
  if (leave_deadline_ <= now) return true;
  if (facts_.members.registering() > 0) return false;  // a process that is about to register
  if (facts_.phase == Phase::kLeavingShards) {
    return facts_.members.LivingAndConnected(v1::SHARD).empty();
  }
  return linger_until_ <= now && facts_.members.LivingAndConnected(v1::WORKER).empty();
}

void Ending::FinishShards(absl::Time now) {
  SLUICE_DCHECK(facts_.phase == Phase::kLeavingShards, "shards leave after workers");
  leave_deadline_ = now + facts_.timers.heartbeat_timeout;
  for (const Process* shard : facts_.members.Living(v1::SHARD)) SendFinish(*shard);
}

void Ending::SendFinish(const Process& process) {
  SLUICE_DCHECK(facts_.phase == Phase::kLeavingShards || facts_.phase == Phase::kLeavingWorkers,
                "Finish is sent once the job has ended");
  v1::CoordinatorMessage message;
  message.mutable_finish()->set_succeeded(reason_ != ExitReason::kFailed);
  message.mutable_finish()->set_reason(message_);
  output_.Send(process, std::move(message));
}

void Ending::Exit() { output_.Add(coordinator::Exit{reason_, message_}); }

void Ending::Supersede(ExitReason reason, const std::string& why) {
  SLUICE_DCHECK(reason == ExitReason::kSuperseded || reason == ExitReason::kLeft,
                "another coordinator continues the job");
  reason_ = reason;
  message_ = why;
  Exit();
}

absl::Time Ending::NextDeadline() const {
  switch (facts_.phase) {
    case Phase::kRunning:
      return suspend_deadline_;
    case Phase::kLeavingWorkers:
    case Phase::kLeavingShards:
      return facts_.newest_event < linger_until_ ? std::min(leave_deadline_, linger_until_)
                                                 : leave_deadline_;
    default:
      return absl::InfiniteFuture();
  }
}

}  // namespace sluice::coordinator
