// The end of training and of the job.
//
// Intuition. First a goal is chosen: training is complete, has reached its target, or stops for a
// suspension, for a shard that leaves, or because the next attempt trains in another mode. From
// then on only what the goal needs is done: a view without workers, the last evaluation and the
// last checkpoint. Then the job ends, or the next attempt begins. A job that ends sends Finish to
// the workers, and when they have left, to the shards.
//
// A shard that asks to leave (SIGTERM) may hold the only copy of its partitions, with no shard to
// move them to: then training stops as for a suspension. Once the checkpoint is complete the shard
// may leave, and the next attempt begins with that checkpoint as soon as another shard has replaced
// it. Nothing is lost, and it does not count against backoffLimit.
//
// It writes Facts::goal.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_ENDING_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_ENDING_H_

#include <set>
#include <string>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {

class Ending {
 public:
  // All must outlive it.
  Ending(const Facts& facts, Goal* goal, Output* output)
      : facts_(facts), goal_(*goal), output_(*output) {}

  // ---- phase kRunning

  struct Findings {
    bool waits_for_storage = false;  // the last checkpoint or the end could not be written so far
    bool target_reached = false;
    bool stopped = false;
  };
  // Chooses the goal when training should end. It is final, except that a suspension replaces it
  // while the job waits for its disk (such a job can be stopped, and continues from its newest
  // checkpoint when it is started again) or has stopped training for a shard that leaves.
  void ChooseGoal(const Findings& findings, absl::Time now);

  enum class Step {
    kWait,
    kLeaveSuspended,
    kRecordEnd,    // (R11) the end takes the next name in the sequence of claims
    kNextAttempt,  // with the checkpoint that was just made
    kHandOver,     // the same, and the shards that ask to leave may leave
  };
  // Requires a goal. `saved`: what the goal needs is done. The last checkpoint of a suspension or
  // of a shard that leaves is awaited only for a time.
  Step Next(bool saved, absl::Time now);

  // ---- leaving

  // The message of Step::kLeaveSuspended.
  std::string SuspendedMessage(absl::Time now) const;
  // A job that has ended waits this long for processes that start again.
  void LingerUntil(absl::Time until) { linger_until_ = until; }
  // Phase kLeavingWorkers begins. `refused`: workers that were refused for another model.
  void BeginLeaving(ExitReason reason, const std::string& message, const std::string& code,
                    const std::set<std::string>& refused, absl::Time now);
  // Phases kLeavingWorkers and kLeavingShards: the processes of this phase have left, or are late.
  bool HaveLeft(absl::Time now) const;
  // Phase kLeavingShards begins.
  void FinishShards(absl::Time now);
  // Phase kExited begins.
  void Exit();
  // Another coordinator continues the job. `reason`: kSuperseded or kLeft.
  void Supersede(ExitReason reason, const std::string& why);

  void SendFinish(const Process& process);
  ExitReason reason() const { return reason_; }
  const std::string& message() const { return message_; }
  const std::string& code() const { return code_; }

  absl::Time NextDeadline() const;

 private:
  bool ShardLeaves() const;
  bool Late(absl::Time now) const;

  const Facts& facts_;
  Goal& goal_;
  Output& output_;
  absl::Time suspend_deadline_ = absl::InfiniteFuture();  // of kSuspend and kHandOver
  absl::Time leave_deadline_ = absl::InfiniteFuture();
  absl::Time linger_until_ = absl::InfinitePast();
  ExitReason reason_ = ExitReason::kFailed;
  std::string message_;
  std::string code_;  // JobProgress.reason_code
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_ENDING_H_
