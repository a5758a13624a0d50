#include "operator/reconciler/decide.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/report.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using policy::Replica;

constexpr Replica kCoordinator = {v1::COORDINATOR, 0};
// A pod that waits this long without a known reason is re-created if its template has changed.
constexpr absl::Duration kLongWait = absl::Seconds(30);
// A pod that has run for less than this may still be registering; it does not count as missing.
constexpr absl::Duration kStartsUp = absl::Seconds(15);
// For frozen pods. With 0 the API server would drop the pod before its node has stopped it.
constexpr int64_t kKillGraceSeconds = 1;

class JobDecider {
 public:
  JobDecider(const World& world, const policy::Limits& limits, absl::Time now)
      : world_(world), job_(world.job), limits_(limits), now_(now) {
    plan_.status = world.status.is_object() ? world.status : Json(Json::object());
    recovery_ = ReadRecovery(plan_.status);
    for (const PodStatus& pod : world.pods) pods_[pod.replica] = &pod;
  }

  ReconcilePlan Run() {
    // Owned objects are deleted with the job. Jobs managed by another controller are left alone.
    if (job_.being_deleted || job_.managed_by_another) return std::move(plan_);
    if (!job_.problem.empty() && recovery_.shards == 0) {
      Finish();
      return std::move(plan_);
    }

    Activate();
    ObserveWorld();
    HandleDeletions();
    HandleProgressDeadline();

    const policy::Memory before = recovery_.memory;
    policy::Decision decision =
        policy::Decide(policy_plan_, limits_, observation_, recovery_.memory, now_);
    recovery_.memory = decision.memory;
    AgainBy(decision.decide_again);
    stopped_ = decision.finish.has_value();

    TellLostSteps(before);
    if (switching_ && before.suspending_since == absl::InfiniteFuture() && !before.outcome) {
      Tell("SwitchingMode", "Switch",
           absl::StrCat(ModeName(recovery_.mode.mode), " -> ", ModeName(wanted_mode_.mode),
                        ": the job saves a checkpoint and continues in the new mode"));
    }

    CountEnds(before);
    CountRestarts();
    Act(decision);
    ForceStuck();
    ReplaceOutdated();
    CleanUp();
    PlanSync(decision);
    ForgetHealed();
    Finish();
    return std::move(plan_);
  }

 private:
  void AgainBy(absl::Time time) { plan_.decide_again = std::min(plan_.decide_again, time); }

  const PodStatus* PodAt(const Replica& replica) const {
    const auto found = pods_.find(replica);
    return found == pods_.end() ? nullptr : found->second;
  }

  bool HasOutcome() const { return recovery_.memory.outcome.has_value(); }
  bool Suspended() const {
    return HasOutcome() && recovery_.memory.outcome->kind == policy::OutcomeKind::kSuspended;
  }

  // Whether a replica should be filled while the job runs.
  bool Wanted(const Replica& replica) const {
    if (replica.role == v1::COORDINATOR) return true;
    return replica.index < (replica.role == v1::SHARD ? policy_plan_.shards : policy_plan_.workers);
  }

  // Begins an activation if one is due, and sets the plan of the policy.
  void Activate() {
    const uint32_t wanted_shards = job_.job.spec.parameter_server().replicas();
    policy::Memory& memory = recovery_.memory;
    if (Suspended() && !job_.job.suspend && world_.pods.empty()) {
      if (HasCondition(plan_.status, "Suspended")) {
        Tell("Resumed", "Resume", "the job continues from its newest checkpoint");
      }
      policy::Memory kept;
      kept.restorations = memory.restorations;
      kept.worked = memory.worked;
      recovery_ = Recovery();
      memory = std::move(kept);
    }
    wanted_mode_ = ModeOf(job_.job.spec.training());
    if (recovery_.shards == 0 && !job_.job.suspend) {
      recovery_.shards = wanted_shards;
      recovery_.mode = wanted_mode_;
    }
    // An older operator that did not record modes has created the job as the spec says.
    const bool known = recovery_.mode.mode != v1::MODE_UNSPECIFIED;
    if (recovery_.shards != 0 && !known) recovery_.mode = wanted_mode_;
    if (!HasOutcome()) recovery_.images = PinnedImages(recovery_, world_);
    policy_plan_.shards = std::max<uint32_t>(recovery_.shards, 1);
    policy_plan_.workers = job_.job.spec.worker().replicas();
    policy_plan_.backoff_limit = job_.job.spec.backoff_limit();
    policy_plan_.outlives_coordinator = true;
    policy_plan_.failure_rules = job_.failure_rules;
    if (job_.job.active_deadline_seconds.has_value()) {
      policy_plan_.active_deadline = absl::Seconds(*job_.job.active_deadline_seconds);
    }
    if (const double seconds = job_.job.spec.timeouts().suspend_checkpoint(); seconds > 0) {
      policy_plan_.suspend_timeout = absl::Seconds(seconds) + absl::Seconds(5);
    }
    policy::SetTimers(job_.job.spec, &policy_plan_);
    // The coordinator's reports do not distinguish a pod from the previous pod of the same replica.
    policy_plan_.heartbeat_timeout =
        std::max(policy_plan_.heartbeat_timeout, policy_plan_.start_timeout);
    const bool goes_on = !job_.job.suspend && recovery_.shards != 0;
    resizing_ = goes_on && recovery_.shards != wanted_shards;
    switching_ = goes_on && recovery_.mode != wanted_mode_;
    policy_plan_.suspend = job_.job.suspend || resizing_ || switching_;
    // The user did not ask for a stop: the operator waits for the checkpoint for as long as the
    // coordinator tries to save one.
    if (!job_.job.suspend && policy_plan_.suspend) {
      policy_plan_.suspend_timeout = absl::InfiniteDuration();
    }
  }

  void ObserveWorld() {
    for (const auto& [replica, pod] : pods_) {
      if (now_ < pod->slow_from) AgainBy(pod->slow_from);
      observation_.processes[replica] = Observe(*pod);
      if (pod->deletion_asked.has_value()) recovery_.memory.terminated[replica] = pod->uid;
    }
    observation_.coordinator_address = CoordinatorAddress(job_.key);
    progress_ = world_.progress;
    const PodStatus* coordinator = PodAt(kCoordinator);
    if (coordinator == nullptr) return;
    progress_is_new_ = progress_ != nullptr && world_.progress_of == coordinator->uid;
    if (progress_is_new_) {
      observation_.phase = progress_->phase();
      observation_.phase_reason = progress_->reason();
      observation_.phase_code = progress_->reason_code();
      ObserveRegistrations();
    }
    if (coordinator->final_progress.has_value()) {
      observation_.phase = coordinator->final_progress->phase();
      observation_.phase_reason = coordinator->final_progress->reason();
      observation_.phase_code = coordinator->final_progress->reason_code();
      // The termination message is newer than every report that was received.
      progress_ = &*coordinator->final_progress;
      progress_is_new_ = true;
    }
    unsynced_ =
        !progress_is_new_ && !coordinator->ended && recovery_.progress_instance == coordinator->uid;
    if (progress_is_new_) recovery_.progress_instance = coordinator->uid;
  }

  // Which pods have a live process that is registered with the coordinator. Probes find most frozen
  // processes sooner; this also finds frozen user programs, which need not have probes.
  void ObserveRegistrations() {
    observation_.last_progress_at = world_.progress_at;
    for (auto& entry : observation_.processes) {
      const Replica& replica = entry.first;
      const PodStatus& pod = *pods_.at(replica);
      if (replica == kCoordinator || !pod.begun || pod.ended || pod.deletion_asked.has_value()) {
        continue;
      }
      const auto& listed = progress_->processes();
      const bool registered = std::any_of(listed.begin(), listed.end(), [&](const auto& status) {
        return status.process().role() == replica.role &&
               status.process().index() == replica.index &&
               status.state() != v1::ProcessStatus::LEFT &&
               status.state() != v1::ProcessStatus::EXPELLED;
      });
      if (registered) {
        entry.second.registration = policy::Registration::kRegistered;
      } else if (world_.progress_at >= pod.started + kStartsUp) {
        entry.second.registration = policy::Registration::kMissing;
      }
    }
  }

  // Handles pods that were deleted from outside. Their exits are not failures, but replacing them
  // counts as a restart.
  void HandleDeletions() {
    if (HasOutcome() || policy_plan_.suspend) return;
    for (const auto& [replica, pod] : pods_) {
      if (!pod->deletion_asked.has_value() || !Wanted(replica)) continue;
      policy::Memory::ReplicaMemory& kept = recovery_.memory.replicas[replica];
      if (kept.replaced_instance == pod->uid) continue;
      if (pod->tainted && !pod->ended && !pod->node_lost && now_ < pod->gone_by) {
        // Evicted or lost: the reason becomes known later. The successor cannot be created before
        // the name is free anyway.
        AgainBy(pod->gone_by);
        continue;
      }
      kept.replaced_instance = pod->uid;
      ++kept.restarts;
      if (kept.handled_instance == pod->uid) continue;
      kept.handled_instance = pod->uid;
      policy::Exit exit = pod->exit;
      exit.cause = policy::Cause::kOutside;
      if (exit.reason.empty()) exit.reason = pod->node_lost ? "NodeLost" : "Deleted";
      ends_.push_back({pod, std::move(exit), false});
    }
  }

  void HandleProgressDeadline() {
    const policy::Memory& memory = recovery_.memory;
    if (!job_.progress_deadline.has_value() || HasOutcome() || policy_plan_.suspend) return;
    absl::Time last = memory.active_since == absl::InfiniteFuture() ? now_ : memory.active_since;
    const int64_t told = kube::GetInt(plan_.status, {"training", "step"});
    if (progress_is_new_ && static_cast<int64_t>(progress_->step()) > told) last = now_;
    last = std::max(
        last, kube::DecodeTime(kube::GetString(plan_.status, {"training", "lastProgressTime"})));
    const absl::Time deadline = last + *job_.progress_deadline;
    if (now_ < deadline) {
      AgainBy(deadline);
      return;
    }
    recovery_.memory.outcome = policy::Outcome{
        policy::OutcomeKind::kFailed,
        "ProgressDeadlineExceeded",
        absl::StrCat("the job completed no step for ",
                     absl::FormatDuration(*job_.progress_deadline), " (progressDeadlineSeconds)"),
        std::nullopt,
        now_,
        absl::ZeroDuration()};
  }

  void CountEnds(const policy::Memory& before) {
    for (const auto& [replica, kept] : recovery_.memory.replicas) {
      const auto was = before.replicas.find(replica);
      const std::string& known = was == before.replicas.end() ? "" : was->second.handled_instance;
      const PodStatus* pod = PodAt(replica);
      if (pod == nullptr || kept.handled_instance == known || kept.handled_instance != pod->uid)
        continue;
      const bool left =
          pod->exit.cause == policy::Cause::kItself && pod->exit.code == 0 && pod->exit.signal == 0;
      // The exit of a surplus pod is not a loss, nor is an exit caused by the end of the job.
      const bool ended_it = HasOutcome() && !before.outcome.has_value() &&
                            recovery_.memory.outcome->kind == policy::OutcomeKind::kFailed &&
                            recovery_.memory.outcome->blamed == replica;
      if (left || (HasOutcome() && !ended_it) || !Wanted(replica)) continue;
      const bool healthy = pod->was_ready || pod->ended_at - pod->started >= limits_.healthy_after;
      ends_.push_back(
          {pod, pod->exit, policy::IsFailure(policy_plan_, replica, pod->exit) && healthy});
    }
  }

  void CountRestarts() {
    for (auto& [replica, kept] : recovery_.memory.replicas) {
      if (kept.restarts > 0) restarts_[replica.role] += static_cast<int>(kept.restarts);
      kept.restarts = 0;
    }
  }

  void Delete(const PodStatus& pod, std::optional<int64_t> grace) {
    plan_.deletions.push_back({pod.name, pod.uid, grace, pod.replica});
  }
  // A pod without running containers needs no grace period.
  static std::optional<int64_t> GraceOf(const PodStatus& pod) {
    if (pod.terminal) return 0;
    return std::nullopt;
  }

  void Act(const policy::Decision& decision) {
    const bool over = HasOutcome() && !Suspended();
    for (const policy::StopProcess& stop : decision.stops) {
      const PodStatus* pod = PodAt(stop.replica);
      if (pod == nullptr || pod->uid != stop.instance) continue;
      if (over && job_.clean_pod_policy == CleanPodPolicy::kNone) continue;
      Delete(*pod, stop.kill ? std::optional<int64_t>(kKillGraceSeconds) : std::nullopt);
    }
    for (const policy::StartProcess& start : decision.starts) {
      const PodStatus* pod = PodAt(start.replica);
      if (pod == nullptr) {
        plan_.creations.push_back(start.replica);
      } else if (!pod->deletion_asked.has_value()) {
        Delete(*pod, GraceOf(*pod));
        // A pod whose other containers still run must be gone before it can be replaced.
        if (pod->terminal) plan_.creations.push_back(start.replica);
      }
    }
  }

  // Force-deletes pods whose deletion is overdue because their nodes do not answer.
  void ForceStuck() {
    if (job_.force_delete_after == absl::ZeroDuration()) return;
    for (const PodStatus& pod : world_.pods) {
      if (!pod.deletion_asked.has_value() || pod.forced) continue;
      const absl::Time due =
          (pod.node_lost ? *pod.deletion_asked : pod.gone_by) + job_.force_delete_after;
      if (now_ >= due) {
        Delete(pod, 0);
      } else {
        AgainBy(due);
      }
    }
  }

  // Re-creates pods that never began and whose template has changed: the change may fix the cause.
  void ReplaceOutdated() {
    if (HasOutcome()) return;
    for (const PodStatus& pod : world_.pods) {
      if (pod.begun || pod.deletion_asked.has_value() || !Wanted(pod.replica)) continue;
      const auto wanted = world_.template_hashes.find(pod.replica);
      if (wanted == world_.template_hashes.end() || wanted->second == pod.template_hash) continue;
      const absl::Time due = pod.waiting.empty() ? pod.created + kLongWait : now_;
      if (now_ < due) {
        AgainBy(due);
        continue;
      }
      policy::Memory::ReplicaMemory& kept = recovery_.memory.replicas[pod.replica];
      kept.replaced_instance = kept.handled_instance = pod.uid;
      Delete(pod, std::nullopt);
    }
  }

  // Deletes pods that have ended and get no successor.
  void CleanUp() {
    const bool all = Suspended() || (stopped_ && job_.clean_pod_policy == CleanPodPolicy::kAll);
    const bool running = stopped_ && job_.clean_pod_policy == CleanPodPolicy::kRunning;
    for (const PodStatus& pod : world_.pods) {
      if (!pod.ended || pod.deletion_asked.has_value()) continue;
      const bool surplus = !HasOutcome() && !Wanted(pod.replica);
      // Other containers may outlive a pod's process.
      if (all || surplus || (running && !pod.terminal)) Delete(pod, GraceOf(pod));
    }
    if (Suspended() && !world_.pods.empty()) stopped_ = false;
  }

  void PlanSync(const policy::Decision& decision) {
    const PodStatus* coordinator = PodAt(kCoordinator);
    if (coordinator == nullptr || !coordinator->begun || coordinator->ended ||
        coordinator->ip.empty()) {
      return;
    }
    ReconcilePlan::CoordinatorSync sync;
    sync.instance = coordinator->uid;
    sync.ip = coordinator->ip;
    sync.desired.set_workers(decision.desired_workers);
    sync.desired.set_shards(decision.desired_shards);
    sync.desired.set_suspend(decision.desired_suspend);
    for (const policy::ReportDeath& death : decision.deaths) {
      if (!progress_is_new_ || HasOutcome()) break;
      // The report names the incarnation, which differs from the successor's.
      for (const v1::ProcessStatus& process : progress_->processes()) {
        if (process.process().role() != death.replica.role ||
            process.process().index() != death.replica.index) {
          continue;
        }
        v1::SetDesiredRequest::Death report;
        *report.mutable_process() = process.process();
        report.set_reason(death.reason);
        sync.deaths.push_back(std::move(report));
      }
    }
    plan_.sync = std::move(sync);
  }

  // Drops memory that is no longer needed.
  void ForgetHealed() {
    policy::Memory& memory = recovery_.memory;
    // Exits after the end of the job have no effect.
    if (HasOutcome()) memory.replicas.clear();
    for (auto it = memory.replicas.begin(); it != memory.replicas.end();) {
      policy::Memory::ReplicaMemory& kept = it->second;
      const PodStatus* pod = PodAt(it->first);
      if (pod != nullptr && pod->ready) {
        kept.failures_in_row = kept.failed_starts = 0;
        kept.data_missing = kept.refused = false;
      }
      if (kept.start_after <= now_) kept.start_after = absl::InfinitePast();
      if (pod == nullptr || kept.handled_instance != pod->uid) kept.handled_instance.clear();
      if (pod == nullptr || kept.replaced_instance != pod->uid) kept.replaced_instance.clear();
      if (pod == nullptr || kept.missing_instance != pod->uid) kept.missing_instance.clear();
      const bool gone = pod == nullptr && !Wanted(it->first);
      const bool empty = kept.handled_instance.empty() && kept.replaced_instance.empty() &&
                         kept.failures_in_row == 0 && kept.failed_starts == 0 &&
                         kept.missing_instance.empty() && kept.start_after == absl::InfinitePast();
      it = gone || empty ? memory.replicas.erase(it) : std::next(it);
    }
    std::deque<absl::Time>& deaths = memory.worker_deaths;
    while (!deaths.empty() && now_ - deaths.front() > limits_.worker_window) deaths.pop_front();
    if (HasOutcome()) return;
    uint32_t ready = 0;
    bool surplus = false;
    for (const auto& [replica, pod] : pods_) {
      if (replica.role != v1::WORKER) continue;
      if (!Wanted(replica)) {
        surplus = true;
      } else if (pod->ready) {
        ++ready;
      }
    }
    if (ready == policy_plan_.workers && !surplus) recovery_.sized_workers = ready;
  }

  void Tell(std::string reason, std::string action, std::string note,
            runtime::EventRecord::Type type = runtime::EventRecord::Type::kNormal) {
    plan_.events.push_back({type, std::move(reason), std::move(action), std::move(note), ""});
  }

  // The job was stopped to change its size or mode, and saved no checkpoint.
  void TellLostSteps(const policy::Memory& before) {
    if (job_.job.suspend || before.outcome.has_value() || !Suspended()) return;
    const std::string& why = recovery_.memory.outcome->reason;
    if (why.empty() || !(resizing_ || switching_)) return;
    Tell("CheckpointFailed", resizing_ ? "Scale" : "Switch",
         absl::StrCat("no checkpoint was saved before the change (", why,
                      "): training continues from the newest one, and the steps since then are "
                      "computed again"),
         runtime::EventRecord::Type::kWarning);
  }

  void Finish() {
    const bool accepted = job_.problem.empty() || recovery_.shards != 0;
    plan_.shards = policy_plan_.shards;
    plan_.mode = recovery_.mode;
    plan_.images = recovery_.images;
    plan_.keep_objects = accepted && !HasOutcome() && recovery_.shards != 0;
    Findings findings;
    findings.world = &world_;
    findings.recovery = &recovery_;
    findings.phase = observation_.phase;
    findings.progress = progress_;
    findings.progress_is_new = progress_is_new_;
    findings.unsynced = unsynced_;
    findings.workers = job_.job.spec.worker().replicas();
    findings.resizing = resizing_;
    findings.switching = switching_;
    findings.stopped = stopped_;
    findings.ends = std::move(ends_);
    findings.restarts = std::move(restarts_);
    findings.now = now_;
    Report(findings, &plan_.status, &plan_.events);
    plan_.change = CompareStatus(world_.status, plan_.status);
    ExpireJob();
  }

  void ExpireJob() {
    if (!job_.ttl_after_finished.has_value() || !HasOutcome() || Suspended()) return;
    const absl::Time end = kube::DecodeTime(kube::GetString(plan_.status, {"completionTime"}));
    if (end == absl::InfinitePast()) return;
    const absl::Time due = end + *job_.ttl_after_finished;
    if (now_ < due) {
      AgainBy(due);
    } else {
      plan_.delete_job = true;
    }
  }

  const World& world_;
  const ObservedJob& job_;
  const policy::Limits& limits_;
  const absl::Time now_;
  ReconcilePlan plan_;
  Recovery recovery_;
  std::map<Replica, const PodStatus*> pods_;
  policy::JobPlan policy_plan_;
  policy::Observation observation_;
  const v1::JobProgress* progress_ = nullptr;
  bool progress_is_new_ = false;
  bool unsynced_ = false;
  TrainingMode wanted_mode_;
  bool resizing_ = false;   // to another number of shards
  bool switching_ = false;  // to another mode
  bool stopped_ = false;
  std::vector<HandledEnd> ends_;
  std::map<v1::Role, int> restarts_;
};

}  // namespace

policy::Limits ClusterLimits() {
  policy::Limits limits;
  limits.patient = true;
  // The kubelet sends SIGKILL when the pod's own grace period ends.
  limits.stop_grace = absl::InfiniteDuration();
  return limits;
}

PodImages PinnedImages(const Recovery& recovery, const World& world) {
  bool server_ran = !recovery.progress_instance.empty();
  bool worker_ran = recovery.sized_workers > 0;
  for (const PodStatus& pod : world.pods) {
    if (pod.begun) (world.job.NeedsWorkerImage(pod.replica.role) ? worker_ran : server_ran) = true;
  }
  PodImages images = recovery.images;
  if (!server_ran || images.server.empty()) images.server = world.images.server;
  if (!worker_ran || images.worker.empty()) images.worker = world.images.worker;
  return images;
}

ReconcilePlan DecideJob(const World& world, const policy::Limits& limits, absl::Time now) {
  return JobDecider(world, limits, now).Run();
}

}  // namespace sluice::reconciler
