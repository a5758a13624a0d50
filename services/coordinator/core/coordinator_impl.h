// The implementation of CoordinatorCore. Private to this package; its sources are divided by task:
// coordinator_core.cc (events), _start.cc (storage, claims, initialization, restoration),
// _views.cc, _snapshots.cc (checkpoints, evaluation, readers), _handover.cc (leaving shards),
// _end.cc, _progress.cc.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_IMPL_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_IMPL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/core/evaluation.h"
#include "services/coordinator/core/init_request.h"
#include "services/coordinator/core/member_checks.h"
#include "services/coordinator/core/membership.h"
#include "services/coordinator/core/progress.h"
#include "services/coordinator/core/snapshot.h"
#include "services/coordinator/core/timers.h"
#include "services/coordinator/core/view_change.h"
#include "services/coordinator/core/view_decision.h"
#include "services/protocol/job_length.h"

namespace sluice::coordinator {

// Members are grouped by topic; a process has one instance, so padding does not matter.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
class CoordinatorCore::Impl {
 public:
  Impl(CoordinatorOptions options, absl::Time now, const CoordinatorRules* rules);

  void OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now);
  void OnConnected(StreamId stream, absl::Time now);
  void OnMessage(StreamId stream, const v1::MemberMessage& message, absl::Time now);
  void OnDisconnected(StreamId stream, absl::Time now);
  void OnClaimResult(uint64_t attempt, const absl::Status& status, absl::Time now);
  void OnClaimsRead(absl::StatusOr<std::vector<v1::Claim>> claims, absl::Time now);
  void OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint, const absl::Status& status,
                                absl::Time now);
  void OnIncompleteRemoved(absl::Time now);
  void OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now);
  void OnOpenSnapshot(uint64_t request, const v1::OpenSnapshotRequest& snapshot, absl::Time now);
  void OnSnapshotCallEnded(uint64_t request, absl::Time now);
  void OnTick(absl::Time now);

  CoordinatorCore::Refusals refusals() const;

  std::vector<Action> TakeActions() { return std::exchange(actions_, {}); }
  absl::Time NextDeadline() const;
  v1::JobProgress Progress(const v1::GetProgressRequest& request, absl::Time now) const;
  const v1::View& view() const { return view_; }

 private:
  // A process that violates the contract this many times is expelled.
  static constexpr int kMaxBreaches = 3;
  // Default of timeouts.gradients.
  static constexpr double kDefaultGradientsSeconds = 600;

  // A shard's report is about this old, and an answer takes about this long to reach the shard.
  static constexpr absl::Duration kControlDelay = absl::Milliseconds(200);

  // kReading -> kGathering <-> kClaiming; kGathering -> kPreparing -> kRunning; kPreparing,
  // kRunning -> kGathering (the job loses a shard or the asked worker before the first view);
  // kPreparing, kRunning -> kReading (restoration); any -> kLeavingWorkers -> kLeavingShards ->
  // kExited; any -> kExited (superseded).
  enum class Phase {
    kReading,         // the storage's contents
    kGathering,       // until shards and a worker have come
    kClaiming,        // the next attempt
    kPreparing,       // until all shards hold the attempt's first state
    kRunning,         // the first view is being made, or there is a view
    kLeavingWorkers,  // Finish was sent to the workers
    kLeavingShards,   // ... and to the shards
    kExited,
  };

  // Why training ends, once it does. kSwitch ends only this attempt, which was asynchronous, so
  // that a synchronous attempt can follow; kHandOver ends only this attempt, because a shard asks
  // to leave.
  enum class Goal { kNone, kComplete, kTarget, kSuspend, kSwitch, kHandOver };

  struct ShardState {
    uint64_t closed = 0;  // in the current view; asynchronous: updates applied
    uint64_t samples = 0;
    uint64_t skipped = 0;
    uint64_t dropped = 0;
    uint64_t leaseholders = 0;
  };

  struct WantedChange {
    bool wanted = false;
    bool now = false;
  };

  // ---- events (coordinator_core.cc)
  void Step(absl::Time now);  // notes the time, then Advance
  void Advance(absl::Time now);
  void AdvanceStage(absl::Time now);
  void OnRegister(StreamId stream, const v1::Register& request, absl::Time now);
  void OnWorkerMessage(Process& process, const v1::MemberMessage& message, absl::Time now);
  void OnShardMessage(Process& process, const v1::MemberMessage& message, absl::Time now);
  void OnReady(Process& process, const v1::Ready& ready, absl::Time now);
  void OnLeave(Process& process, absl::Time now);
  void OnShardProgress(const Process& process, const v1::ShardProgress& progress, absl::Time now);
  void OnFailure(Process& process, const v1::Failure& failure, absl::Time now);
  bool FailureEndsJob(const Process& process) const;
  void OnWorkerProgress(Process& process, const v1::WorkerProgress& progress, absl::Time now);
  // OK: the message is valid, or will be ignored.
  absl::Status CheckShardMessage(const Process& process, const v1::MemberMessage& message) const;
  ShardFacts FactsOf(const Process& shard) const;
  uint64_t LastStep() const;
  uint64_t LastSample() const;
  void OnAwaited(const std::string& shard, const v1::ShardProgress& progress, absl::Time now);
  void OnOwing(const Process& worker, const v1::WorkerProgress& progress, absl::Time now);
  void OnGone(const Departure& departure, absl::Time now);
  void Breach(StreamId stream, const std::string& what, absl::Time now);
  void Refuse(StreamId stream, v1::Refusal refusal);
  void Resend(const Process& process);
  void TellAdmitted();
  v1::CoordinatorMessage AdmittedMessage() const;

  // ---- start (coordinator_start.cc)
  void ReadStorageAgain(absl::Time now);
  void AcceptStorage(StorageContents contents, absl::Time now);
  void AnswerRegistration(const Process& process, absl::Time now);
  void NoteTerm(const v1::ViewId& seen, absl::Time now);
  void AdvanceGathering(absl::Time now);
  void LookAtClaims(absl::Time now);
  void OnClaimsSeen(const absl::StatusOr<std::vector<v1::Claim>>& claims, absl::Time now);
  bool Gathered(absl::Time now);
  std::vector<const Process*> ReadyWorkers() const;
  void Claim(bool end, absl::Time now);
  bool AcceptModel(const v1::Ready& ready, absl::Time now);
  void ConfirmModel(const Process& worker);
  void OnOtherModel(Process& worker, const std::string& difference, absl::Time now);
  std::string CheckCheckpoint() const;
  bool MakeAttempt(absl::Time now);
  void BeginFromCheckpoint(absl::Time now);
  void RequestInit(absl::Time now);
  v1::PrepareState PrepareStateMessage() const;
  v1::Initialize InitializeMessage() const;
  void OnStateReady(const Process& process, const v1::StateReady& ready, absl::Time now);
  void AdvancePreparing(absl::Time now);
  void LoseShard(const std::string& why, absl::Time now);
  void Restore(const std::string& why, absl::Time now);
  bool SpendRestoration(const std::string& why, absl::Time now);
  void ForgetAttempt();
  void BeginNextAttempt(absl::Time now);

  // ---- shards that ask to leave (coordinator_handover.cc)
  bool HoldsState(uint64_t incarnation) const;
  bool AsksToLeave(Process& process, absl::Time now);
  bool ShardLeaves() const;
  void LetShardsGo(absl::Time now);
  void EndHandOver(absl::Time now);
  void GoOnWithout(const std::string& why, absl::Time now);

  // ---- views (coordinator_views.cc)
  void AdvanceViews(absl::Time now);
  WantedChange Wanted(absl::Time now);
  absl::Time LeasesOverdue() const;
  void ExpelIdleLeaseholders(absl::Time now);
  static std::string IdleLeaseholder(absl::Duration limit);  // the reason of its expulsion
  bool HasDeadMember() const;
  bool HasStoppedBefore(uint64_t step) const;
  bool JoinDue(absl::Time now);
  bool RebalanceDue(absl::Time now);
  std::vector<const Process*> NextMembers() const;
  void BeginPause(bool at_once, absl::Time now);
  uint64_t StepsIn(absl::Duration time, absl::Time now) const;
  uint64_t ScheduleStep() const;
  void Decide(absl::Time now);
  v1::View MakeView(const Decision& decision, const std::vector<const Process*>& members) const;
  void CarrySnapshot(const Decision& decision, v1::Install* install, absl::Time now);
  void SendView(const Process& worker);
  void TellCommitted();
  bool Idle() const { return !change_.pausing() && !change_.installing(); }
  bool IsMember(uint64_t incarnation) const;
  bool Synchronous() const { return IsSynchronous(mode_); }
  bool OwnsBlocks(uint64_t shard) const;
  uint32_t PartitionsWithBlocks(uint64_t shard) const;
  uint64_t LowestClosed() const;
  uint64_t HighestClosed() const;
  uint64_t Samples() const;
  uint64_t BatchSizeOf(const Process& worker) const;

  // ---- snapshots (coordinator_snapshots.cc)
  void AdvanceSnapshots(absl::Time now);
  void PlanSynchronousSnapshot(absl::Time now);
  bool AsynchronousSnapshotDue(absl::Time now) const;
  std::optional<SnapshotPlan> PlanNow(absl::Time now) const;
  uint64_t EarliestSnapshot(absl::Time now) const;
  static uint64_t SamplesIn(const v1::Ledger& ledger);
  uint64_t ScheduleStepOf(const Snapshot& snapshot) const;
  bool InStep() const;
  bool SnapshotLingers(absl::Time now) const;
  uint64_t NextBarrier(uint64_t from, absl::Time now) const;
  bool BarrierLapses(absl::Time now) const;
  void MoveBarrier(absl::Time now);
  v1::CoordinatorMessage BarrierMessage() const;
  void OpenNewSnapshot(const SnapshotPlan& plan, uint64_t step);
  void ReplanSoon();  // abandons the open snapshot; its purposes become due again
  void CloseSnapshot();
  void AdvanceSaving(absl::Time now);
  v1::CheckpointIndex MakeCheckpointIndex(absl::Time now) const;
  std::string Arithmetic() const;
  void FinishCheckpoint(absl::Time now);
  void FailCheckpoint(const std::string& why, absl::Time now);
  absl::Duration RetryDelay(int failures) const;
  void RemoveIncompletes();
  // Whether a report is about the open snapshot. Each coordinator numbers snapshots from 1; names
  // are unique.
  bool IsOpenSnapshot(uint64_t snapshot, const v1::CheckpointRef& name) const;
  std::string CheckFiles(const Process& process, const v1::SnapshotWritten& written) const;
  void OnSnapshotPinned(const Process& process, const v1::SnapshotPinned& pinned);
  void OnSnapshotWritten(const Process& process, const v1::SnapshotWritten& written,
                         absl::Time now);
  void OnSnapshotFailed(const Process& process, const v1::SnapshotFailed& failed, absl::Time now);
  void AdvanceEvaluation(absl::Time now);
  void FinishEvaluation(absl::Time now);
  void NoteEvaluation(v1::Evaluation result, absl::Time now);
  uint64_t EvaluationSamples() const;
  void AdvanceReaders(absl::Time now);
  void AnswerReaders(absl::Time now);
  absl::Status CheckReader(const v1::OpenSnapshotRequest& request) const;
  void EndReader(const ReaderHold& hold, absl::Status why);
  void EndReadersIf(absl::FunctionRef<bool(const ReaderHold&)> which, const absl::Status& why);
  void EndReaders(const absl::Status& why);
  bool SnapshotIsForReadersOnly() const;
  uint64_t ReaderLead(absl::Time now) const;
  template <typename F>
  void ForEachReader(F f) const {
    for (const ReaderHold& hold : waiting_readers_) f(hold);
    if (!snapshot_.has_value()) return;
    for (const ReaderHold& hold : snapshot_->readers) f(hold);
  }
  size_t OpenReaders() const {
    return waiting_readers_.size() + (snapshot_.has_value() ? snapshot_->readers.size() : 0);
  }

  // ---- end (coordinator_end.cc)
  void AdvanceEnding(absl::Time now);
  void ChooseGoal(absl::Time now);
  bool Stopping() const {
    return goal_ == Goal::kSuspend || goal_ == Goal::kTarget || goal_ == Goal::kHandOver;
  }
  // The version that the job ends with is evaluated on all samples.
  bool EndsWithEvaluation() const;
  std::vector<Evaluator> Evaluators() const;
  SnapshotPlan FinalPlan() const;
  void Leave(ExitReason reason, const std::string& message, absl::Time now);
  void Fail(const std::string& reason, absl::Time now, const std::string& code = "");
  void Supersede(const std::string& why);
  void AdvanceLeaving(absl::Time now);
  void SendFinish(const Process& process);
  bool Leaving() const {
    return phase_ == Phase::kLeavingWorkers || phase_ == Phase::kLeavingShards;
  }

  // ---- progress (coordinator_progress.cc)
  v1::JobProgress::Phase CurrentPhase() const;
  void AddProcesses(v1::JobProgress* progress, absl::Time now) const;
  void Info(std::string message, absl::Time now);
  void Warn(std::string message, absl::Time now);

  // ---- sending
  void Send(const Process& process, v1::CoordinatorMessage message);
  void SendToShards(const v1::CoordinatorMessage& message);
  uint64_t NextNumber() { return ++last_number_; }

  const CoordinatorOptions options_;
  const CoordinatorRules* const rules_;
  const Timers timers_;
  std::vector<Action> actions_;
  Phase phase_ = Phase::kReading;
  Membership membership_;
  EventLog events_;
  TrainingMeter meter_;
  BatchLosses losses_;
  absl::Time last_step_;

  // Wanted processes.
  uint64_t wanted_workers_;
  uint64_t wanted_shards_;
  bool suspend_ = false;

  // Storage and claims.
  StorageContents storage_;
  bool storage_known_ = false;  // read at least once
  bool storage_pending_ = false;
  absl::Time retry_at_ = absl::InfiniteFuture();
  int storage_errors_ = 0;
  uint64_t highest_claim_ = 0;
  // The highest attempt of which a shard has a view, now and when the latest read of the storage
  // began. If the storage has no claim of the latter, the claim was lost.
  uint64_t shards_attempt_ = 0;
  uint64_t shards_attempt_at_read_ = 0;
  absl::Time look_at_ = absl::InfiniteFuture();  // at the claims, while gathering
  bool looking_ = false;                         // a read of the claims for that is under way
  bool claim_unused_ = false;                    // attempt_ is claimed and no view of it was made
  std::optional<v1::Claim> claim_;               // wanted, or under way
  bool claim_pending_ = false;
  v1::Term term_;
  uint64_t highest_counter_ = 0;  // of the terms seen so far
  uint64_t last_number_ = 0;      // of pauses and init requests, over the whole term
  uint64_t restorations_ = 0;
  std::optional<v1::CheckpointRef> unloadable_;  // a shard could not load it
  std::string unloadable_why_;

  // The model and the data, as the first worker reported them.
  std::optional<v1::Ready> model_;
  std::set<uint32_t> model_workers_;      // indexes of the workers that reported it
  bool model_confirmed_ = false;          // it is the job's; workers with another model are refused
  std::set<std::string> refused_models_;  // names of the workers refused for another model
  std::optional<JobLength> length_;

  // The attempt.
  uint64_t attempt_ = 0;
  v1::Layout layout_;
  uint64_t layout_hash_ = 0;
  v1::Mode mode_;               // of this attempt
  uint64_t last_position_ = 0;  // kSwitch: the position at which training ends
  AttemptFacts facts_;
  std::vector<v1::View::Shard> shards_;
  std::optional<v1::CheckpointRef> base_;
  InitRequest init_request_;
  ViewChange change_;
  v1::View view_;  // newest that was decided; empty before the first
  absl::Time view_since_;
  uint64_t committed_ = 0;
  std::map<uint64_t, ShardState> shard_states_;  // by incarnation
  absl::flat_hash_set<StreamId> knows_model_;    // streams on which table and layout were sent
  uint64_t reader_changes_ = 0;                  // snapshots opened and ended
  uint64_t admitted_changes_ = 0;                // of the members and readers that shards were sent
  // By shard: the members of the view that wait for a version of it, and when each last reported
  // that.
  std::map<uint64_t, std::map<uint64_t, absl::Time>> owed_;
  absl::Time applied_at_;  // asynchronous: when samples were last applied, or were being evaluated
  bool judge_leases_ = false;  // in the current view change
  absl::Time gather_at_ = absl::InfiniteFuture();
  absl::Time join_at_ = absl::InfiniteFuture();
  absl::Time unbalanced_since_ = absl::InfiniteFuture();

  // Snapshots.
  IntervalSchedule checkpoints_;
  IntervalSchedule evaluations_;
  std::optional<Snapshot> snapshot_;
  // Steps of this attempt's checkpoints that were begun and not completed. Their files are removed
  // once the next checkpoint is complete or has failed. No snapshot is opened until the removal is
  // done, because it might get the same name.
  std::set<uint64_t> incomplete_;  // steps
  int removals_ = 0;               // under way
  uint64_t last_snapshot_ = 0;
  uint64_t last_evaluation_id_ = 0;
  uint64_t snapshot_lead_ = 1;  // grows while shards report that they are past the step
  std::optional<Evaluation> evaluation_;
  uint64_t barrier_ = 0;  // last sent to shards: Barrier, Install.barrier as a step
  absl::Time evaluated_at_ =
      absl::InfinitePast();                  // a step waited while an evaluation was under way
  std::vector<ReaderHold> waiting_readers_;  // waiting for a snapshot
  std::optional<v1::Evaluation> last_result_;
  CoordinatorCore::Refusals refusals_;
  v1::CheckpointStatus checkpoint_status_;

  // The end.
  Goal goal_ = Goal::kNone;
  bool target_reached_ = false;
  bool final_snapshot_open_ = false;
  bool final_evaluation_given_up_ = false;
  int final_failures_ = 0;                // of the last checkpoint, in a row
  std::set<std::string> final_problems_;  // reported of it, each once
  absl::Time final_retry_at_ = absl::InfiniteFuture();
  absl::Time suspend_deadline_ = absl::InfiniteFuture();  // of kSuspend and kHandOver
  absl::Time leave_deadline_ = absl::InfiniteFuture();
  absl::Time linger_until_ = absl::InfinitePast();
  ExitReason exit_reason_ = ExitReason::kFailed;
  std::string exit_message_;
  std::string reason_code_;  // JobProgress.reason_code
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_IMPL_H_
