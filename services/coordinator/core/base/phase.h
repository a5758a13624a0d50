// The phase of a coordinator, and why training ends.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_BASE_PHASE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_BASE_PHASE_H_

namespace sluice::coordinator {

enum class Phase {
  kReading,         // the storage's contents
  kGathering,       // until shards and a worker have come
  kTakingOver,      // until all shards of an earlier coordinator's attempt have replied to a Pause
  kClaiming,        // the next attempt
  kPreparing,       // until all shards hold the attempt's first state
  kRunning,         // the first view is being made, or there is a view
  kLeavingWorkers,  // Finish was sent to the workers
  kLeavingShards,   // ... and to the shards
  kExited,
};

// Every legal move:
//
//   to kGathering        from kReading    the storage was read
//                        from kClaiming   the attempt is claimed
//                        from kPreparing, kRunning
//                                         before the attempt's first view: a shard is gone, or no
//                                         worker can create the model
//   to kTakingOver       from kGathering  the shards are in an attempt of an earlier coordinator
//   to kClaiming         from kGathering  shards and workers have come
//   to kPreparing        from kGathering  the claimed attempt begins
//                        from kPreparing  another worker is asked to create the model
//                        from kRunning    before the first view a shard lacks the first state
//   to kRunning          from kPreparing  all shards have the first state
//                        from kTakingOver all shards have replied to the Pause
//   to kReading          from kGathering  another coordinator may have claimed an attempt
//                        from kTakingOver the attempt cannot be continued
//                        from kPreparing, kRunning
//                                         the next attempt begins: a restoration, another mode, or
//                                         a shard that left
//   to kLeavingWorkers   from kReading, kGathering, kTakingOver, kClaiming, kPreparing, kRunning
//                                         the job has ended
//   to kLeavingShards    from kLeavingWorkers
//                                         no worker is left
//   to kExited           from kLeavingShards
//                                         no shard is left
//                        from all others  another coordinator has taken over
inline bool IsLegalMove(Phase from, Phase to) {
  switch (to) {
    case Phase::kReading:
      return from == Phase::kGathering || from == Phase::kTakingOver || from == Phase::kPreparing ||
             from == Phase::kRunning;
    case Phase::kGathering:
      return from == Phase::kReading || from == Phase::kClaiming || from == Phase::kPreparing ||
             from == Phase::kRunning;
    case Phase::kTakingOver:
    case Phase::kClaiming:
      return from == Phase::kGathering;
    case Phase::kPreparing:
      return from == Phase::kGathering || from == Phase::kPreparing || from == Phase::kRunning;
    case Phase::kRunning:
      return from == Phase::kTakingOver || from == Phase::kPreparing;
    case Phase::kLeavingWorkers:
      return from < Phase::kLeavingWorkers;
    case Phase::kLeavingShards:
      return from == Phase::kLeavingWorkers;
    case Phase::kExited:
      return from != Phase::kExited;
  }
  return false;
}

// Whether an attempt has shards.
inline bool HasAttempt(Phase phase) {
  return phase == Phase::kPreparing || phase == Phase::kRunning;
}

// Whether the job has ended, and processes leave.
inline bool IsLeaving(Phase phase) {
  return phase == Phase::kLeavingWorkers || phase == Phase::kLeavingShards;
}

// Why training ends, once it does. kSwitch ends only this attempt, which was asynchronous, so that
// a synchronous attempt can follow; kHandOver ends only this attempt, because a shard asks to
// leave. kStopped: by training.stopping, or at the request of a worker's program.
enum class Goal { kNone, kComplete, kTarget, kStopped, kSuspend, kSwitch, kHandOver };

// Whether the job ends as succeeded before its last step.
inline bool EndsEarly(Goal goal) { return goal == Goal::kTarget || goal == Goal::kStopped; }

// Whether training stops before the job is complete: a view without workers comes first.
inline bool StopsTraining(Goal goal) {
  return goal == Goal::kSuspend || goal == Goal::kHandOver || EndsEarly(goal);
}

// Whether the version that the job ends with is evaluated on all samples.
inline bool EndsWithEvaluation(Goal goal) { return goal == Goal::kComplete || EndsEarly(goal); }

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_BASE_PHASE_H_
