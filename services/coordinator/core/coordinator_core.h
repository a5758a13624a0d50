// The coordinator of one job. It decides which workers are members, which view is current, when
// versions are saved and evaluated, and how the job ends. Shards and workers carry out its
// decisions.
//
// Intuition. Everything that the members must agree on is a view, and a view changes in one way
// only: Pause, replies, a decision, Install. So the core is a small set of facts (the live
// processes, the view, the progress of the shards, the open snapshot) and one function that checks
// the facts after each event and starts what is due. The core does not remember *why* something is
// due.
//
// The core itself is a dispatcher. Its parts have the state and do the work, each for one task:
// claims.h (the storage, attempts, terms), model_check.h, initialization.h (an attempt's
// beginning), takeover.h (or its continuation), views.h, moves.h (shards and partitions), losses.h,
// waits.h (members that are too slow), snapshots.h (with readers.h, checkpoints.h and
// evaluations.h), registrar.h (which processes are admitted), ending.h. They read each other's
// results as Facts (facts.h), do not call each other, and return what concerns the whole job as a
// Verdict. training_mode.h has what differs between synchronous and asynchronous training. The core
// passes events to the parts in a fixed order, changes the phase (phase.h), and expels processes.
//
// A new coordinator reads the claims (R11). If all of its shards are in the newest claim's attempt,
// it takes the attempt over; otherwise it claims the next one and restores from the newest
// checkpoint. Views and init requests carry (attempt, term, number), so that messages of an older
// coordinator that are still under way are refused (R1).
//
//   start:     ReadStorage -> shards and a worker have come -> ClaimAttempt -> PrepareState (and
//              Initialize) -> StateReady from all shards -> first view
//   takeover:  ReadStorage -> shards and a worker have come -> the next view
//   each view: Pause -> PauseReply of all shards -> Install -> Installed; NewView to the workers
//   a shard's death: the next view, if other shards have whole copies of its partitions
//                    (losses.h, moves.h); else the same as start, with the processes that live
//   end:       last version committed -> last evaluation, last checkpoint -> end record -> Finish
//              to the workers -> they leave -> Finish to the shards -> they leave -> Exit
//
// Pure: no threads, clocks, sockets, files. Single-threaded: the shell calls it from one thread at
// a time. An event only appends actions; the shell reads them (TakeActions) after each event, and
// carries them out before the next one, in order. Call OnTick not later than NextDeadline(). Times
// must not go backwards.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_CORE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_CORE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/membership.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/facts/progress.h"
#include "services/coordinator/core/lifecycle/ending.h"
#include "services/coordinator/core/lifecycle/initialization.h"
#include "services/coordinator/core/lifecycle/model_check.h"
#include "services/coordinator/core/lifecycle/takeover.h"
#include "services/coordinator/core/members/registrar.h"
#include "services/coordinator/core/members/waits.h"
#include "services/coordinator/core/snapshots/snapshots.h"
#include "services/coordinator/core/storage/claims.h"
#include "services/coordinator/core/storage/losses.h"
#include "services/coordinator/core/views/moves.h"
#include "services/coordinator/core/views/views.h"

namespace sluice::coordinator {

// "<namespace>/<name>/<uid>", as members name the job.
std::string JobName(const v1::JobSpec& job);

class CoordinatorCore {
 public:
  // The first action is ReadStorage. All `options` must be set. `rules` must outlive the core;
  // null: all rules.
  CoordinatorCore(CoordinatorOptions options, absl::Time now,
                  const CoordinatorRules* rules = nullptr);
  CoordinatorCore(const CoordinatorCore&) = delete;
  CoordinatorCore& operator=(const CoordinatorCore&) = delete;

  // ---- events

  // Answer to ReadStorage. After a transient error the storage is read again later; the error's
  // message is a sentence.
  void OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now);

  // A process has opened a control stream. It must register on it.
  void OnConnected(StreamId stream, absl::Time now);
  // A message that violates the contract closes the stream with INVALID_ARGUMENT.
  void OnMessage(StreamId stream, const v1::MemberMessage& message, absl::Time now);
  void OnDisconnected(StreamId stream, absl::Time now);

  // Answer to ClaimAttempt: OK, ALREADY_EXISTS (another coordinator made it), or another error
  // (tried again if it is transient; otherwise the job fails).
  void OnClaimResult(uint64_t attempt, const absl::Status& status, absl::Time now);
  // Answer to ReadClaims.
  void OnClaimsRead(const absl::StatusOr<std::vector<v1::Claim>>& claims, absl::Time now);
  // Answer to WriteCheckpointIndex.
  void OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint, const absl::Status& status,
                                absl::Time now);

  // The parent has called JobControl, and is answered.
  void OnParentCall(absl::Time now);
  // JobControl. Repeating a call has no effect. The request has passed CheckSetDesired, whose error
  // answers the call. An older request than another one changes no sizes
  // (SetDesiredRequest.number).
  void OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now);
  uint64_t desired_number() const { return desired_number_; }
  // Answered by AnswerSnapshot with this request number, which the shell chooses and never reuses.
  // The version stays pinned until the shell reports the end of the call, or the core ends the
  // call.
  void OnOpenSnapshot(uint64_t request, const v1::OpenSnapshotRequest& snapshot, absl::Time now);
  // The reader has ended its call, or has disconnected. No effect if the core has ended the call.
  void OnSnapshotCallEnded(uint64_t request, absl::Time now);

  // This process is asked to stop, and the job is not. A new coordinator takes over: this one exits
  // soon, once the shards that were asked to stop as well are drained. If no shard can take their
  // partitions, the job is suspended instead, so that its state is saved.
  void OnAskedToStop(absl::Time now);

  void OnTick(absl::Time now);

  // ---- actions

  std::vector<Action> TakeActions() { return output_.TakeActions(); }
  // InfiniteFuture: none.
  absl::Time NextDeadline() const;

  // ---- state

  // For JobControl.GetProgress; events with a sequence above `events_after` only.
  v1::JobProgress Progress(uint64_t events_after, absl::Time now) const;
  v1::JobProgress Progress(const v1::GetProgressRequest& request, absl::Time now) const;
  // Counts of refusals so far, and of kept objects, for the metrics.
  struct Refusals {
    uint64_t messages = 0;       // violated the contract; their streams were closed
    uint64_t figures = 0;        // dropped from workers' reports
    uint64_t registrations = 0;  // refused or postponed
    uint64_t readers = 0;        // snapshots refused
    uint64_t expelled = 0;       // incarnations remembered as expelled
    uint64_t snapshots = 0;      // open
  };
  Refusals refusals() const;
  const ShardLoad& load() const { return facts_.load; }
  // The decisions of the job's evaluations; empty without optimizer.plateau and training.stopping.
  const v1::EvaluationDecisions& decisions() const { return facts_.attempt.decisions; }
  // The newest view that was decided; empty before the first one of an attempt.
  const v1::View& view() const { return facts_.training.view(); }

 private:
  // A process that violates the contract this many times is expelled.
  static constexpr int kMaxBreaches = 3;

  // The parts whose state is of one attempt. The core leaves an attempt by destroying them, so
  // nothing of it can be left over in the next one.
  struct AttemptParts {
    AttemptParts(Facts* facts, Output* output)
        : initialization(*facts, &facts->attempt, output),
          takeover(*facts, &facts->attempt, &facts->training),
          losses(*facts, &facts->attempt.losses, output),
          moves(*facts, output),
          views(*facts, &facts->view_change, &facts->training, output),
          waits(*facts, output),
          ending(*facts, &facts->attempt.goal, output) {}

    Initialization initialization;
    Takeover takeover;
    Losses losses;
    Moves moves;
    Views views;
    Waits waits;
    Ending ending;
    std::map<uint64_t, std::string> gone;  // shards of the newest view -> how they ended
  };

  // ---- time and phases

  // Every event runs in here, and to the end: the parts name only deadlines after the newest event,
  // so what is due must start in the event that passes its deadline.
  template <typename Do>
  void Handle(absl::Time now, Do&& handle) {
    Step(now);
    handle();
    Advance(now);
    CheckInvariants(now);
  }
  void Step(absl::Time now);
  void ExtendDeadlinesOfQuiet(absl::Time now);
  void Advance(absl::Time now);  // starts what is due
  void CheckInvariants(absl::Time now) const;
  void AdvancePhase(absl::Time now);
  void AdvanceGathering(absl::Time now);
  void AdvanceTakingOver(absl::Time now);
  void AdvancePreparing(absl::Time now);
  absl::Time AnswersDue() const;
  void ExpelUnanswering(absl::Time now);
  void AdvanceViews(absl::Time now);
  void MeasureLoad(absl::Time now);
  void AdvanceSnapshots(absl::Time now);
  void AdvanceEnding(absl::Time now);
  void AdvanceLeaving(absl::Time now);

  // The only place where the phase changes; phase.h has the legal moves.
  void Transition(Phase to);
  bool Is(Phase phase) const { return facts_.phase == phase; }
  bool Leaving() const { return IsLeaving(facts_.phase); }
  bool HasAttempt() const { return coordinator::HasAttempt(facts_.phase); }

  // ---- what concerns several parts

  // False: the verdict was carried out, and the caller must stop.
  bool CarryOut(const Verdict& verdict, absl::Time now);
  void ReadStorageAgain();
  void Claim(bool end, absl::Time now);
  std::string StopReason() const;
  void LeaveComplete(absl::Time now);
  void TakeClaimResult(const absl::Status& status, absl::Time now);
  bool SuspendBeforeTraining(absl::Time now);
  absl::Time SuspendBy() const;
  void LeaveSuspended(absl::Time now);
  bool MayTakeOver() const;
  void BeginTakeover(absl::Time now);
  const v1::Claim& AttemptClaim() const;
  absl::Status CompleteTakeover(absl::Time now);
  void BeginAttempt(absl::Time now);
  void RequestInit(absl::Time now);
  void BeginPause(bool at_once, absl::Time now);
  void Decide(absl::Time now);
  void Install(const Decision& decision, absl::Time now);
  void ReportShards(const v1::View& next, absl::Time now);

  void LoseShard(const std::string& why, absl::Time now);
  void ContinueWithout(const std::string& why, absl::Time now);
  void Restore(const std::string& why, absl::Time now);
  bool SpendRestoration(const std::string& why, absl::Time now);
  void LeaveAttempt();
  void BeginNextAttempt(absl::Time now);
  void ReleaseLeavingShards(absl::Time now);
  void ReleaseDrainedShards(absl::Time now);
  void SendRelease(const Process& shard);
  void Release(uint64_t incarnation, const std::string& what, absl::Time now);

  void Leave(ExitReason reason, const std::string& message, absl::Time now,
             const std::string& code = "");
  void Fail(const std::string& why, absl::Time now, const std::string& code = "");
  void Supersede(ExitReason reason, const std::string& why);
  void AdvanceStop(absl::Time now);
  void SetSizes(const v1::SetDesiredRequest& desired);
  void SetDesired(const v1::SetDesiredRequest& desired, absl::Time now);

  // ---- messages (coordinator_messages.cc)

  void TakeMessage(StreamId stream, const v1::MemberMessage& message, absl::Time now);
  void OnRegister(StreamId stream, const v1::Register& request, absl::Time now);
  void OnViewSeen(uint64_t shard, const v1::ViewId& seen, absl::Time now);
  void OnWorkerMessage(Process& process, const v1::MemberMessage& message, absl::Time now);
  void OnShardMessage(Process& process, const v1::MemberMessage& message, absl::Time now);
  void OnReady(Process& process, const v1::Ready& ready, absl::Time now);
  void OnStateReady(const Process& process, const v1::StateReady& ready, absl::Time now);
  void OnLeave(Process& process, absl::Time now);
  bool NeedsStateOf(const Process& shard) const;
  void OnShardProgress(const Process& process, const v1::ShardProgress& progress, absl::Time now);
  void OnSnapshotFailed(const Process& process, const v1::SnapshotFailed& failed, absl::Time now);
  void OnFailure(Process& process, const v1::Failure& failure, absl::Time now);
  bool FailureEndsJob(const Process& process) const;
  void OnJobRequest(Process& process, const v1::JobRequest& request, absl::Time now);
  void OnWorkerProgress(Process& process, const v1::WorkerProgress& report, absl::Time now);
  bool IsOfOutsider(const Process& shard, const v1::MemberMessage& message) const;
  // OK: the message is valid, or will be ignored.
  absl::Status CheckShardMessage(const Process& process, const v1::MemberMessage& message) const;
  ShardFacts FactsOf(const Process& shard) const;

  void OnGone(const Departure& departure, absl::Time now);
  void Expel(uint64_t incarnation, const std::string& why, absl::Time now);
  void Breach(StreamId stream, const std::string& what, absl::Time now);
  void Resend(const Process& process);
  void ResendToShard(const Process& shard);

  // ---- progress (coordinator_progress.cc)

  v1::JobProgress::Phase ShownPhase() const;
  void AddProgress(v1::JobProgress* progress) const;
  void AddProcesses(v1::JobProgress* progress, absl::Time now) const;

  Facts facts_;
  Output output_;
  Claims claims_;
  ModelCheck model_;
  Snapshots snapshots_;
  Registrar registrar_;
  BatchLosses batch_losses_;
  std::optional<AttemptParts> attempt_;  // always set
  uint64_t restorations_ = 0;
  bool knows_wanted_shards_ = false;  // by SetDesired
  uint64_t desired_number_ = 0;       // the highest of a SetDesired
  bool read_losses_again_ = false;    // in a takeover; once
  // SuspendBeforeTraining was first called for a job that is to be suspended.
  absl::Time suspend_since_ = absl::InfiniteFuture();
  absl::Time stop_at_ = absl::InfiniteFuture();  // OnAskedToStop: when this coordinator exits
  std::string stop_request_;  // of a worker's program: "worker 1: reason"; empty: none
  Refusals refusals_;         // messages and figures
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_CORE_H_
