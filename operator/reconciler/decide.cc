#include "operator/reconciler/decide.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/report.h"
#include "operator/reconciler/report_input.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::reconciler {
namespace {

using kube::Json;
using policy::kCoordinator;
using policy::Replica;

// A pod that waits this long without a known reason is re-created if its template has changed.
constexpr absl::Duration kLongWait = absl::Seconds(30);
// A pod that has run for less than this may still be registering; it does not count as missing.
constexpr absl::Duration kStartsUp = absl::Seconds(15);
// For frozen pods. With 0 the API server would drop the pod before its node has stopped it.
constexpr int64_t kKillGraceSeconds = 1;

class JobDecider {
 public:
  JobDecider(const World& world, const policy::Limits& limits, absl::Time now)
      : input_(world, now), world_(world), job_(world.job), limits_(limits), now_(now) {
    plan_.status = world.status.is_object() ? world.status : Json(Json::object());
  }

  ReconcilePlan Run() {
    // Owned objects are deleted with the job. Jobs managed by another controller are left alone.
    if (job_.being_deleted || job_.managed_by_another) return std::move(plan_);
    if (!input_.Accepted()) {
      Finish();
      return std::move(plan_);
    }

    Activate();
    MakePolicyPlan();
    ObserveWorld();

    policy::Memory& memory = recovery_.memory;
    const bool was_over = HasOutcome();
    const bool was_stopping = memory.suspending_since != absl::InfiniteFuture();
    policy::Decision decision = policy::Decide(input_.plan, limits_, observation_, memory, now_);
    memory = std::move(decision.memory);
    input_.exits = std::move(decision.exits);
    input_.replaced = std::move(decision.replaced);
    input_.stopped = decision.finish.has_value();
    RequeueBy(decision.decide_again);
    if (!was_over) AddStopEvents(was_stopping);

    Act(decision);
    ForceStuck();
    CleanUp();
    PlanSync(decision);
    NoteSize();
    Finish();
    return std::move(plan_);
  }

 private:
  void RequeueBy(absl::Time time) { plan_.decide_again = std::min(plan_.decide_again, time); }

  bool HasOutcome() const { return input_.Outcome().has_value(); }
  bool Suspended() const { return input_.EndedAs(policy::OutcomeKind::kSuspended); }

  // Begins an activation if one is due.
  void Activate() {
    if (Suspended() && !job_.job.suspend && world_.pods.empty()) {
      if (HasCondition(plan_.status, "Suspended")) AddEvent("Resumed", "Resume", HowItResumes());
      Recovery resumed;
      resumed.memory = policy::Resumed(recovery_.memory);
      resumed.trained_steps =
          std::max(recovery_.trained_steps, kube::GetInt(plan_.status, {"training", "step"}));
      recovery_ = std::move(resumed);
    }

    wanted_mode_ = ModeOf(job_.job.spec.training());
    if (recovery_.shards == 0 && !job_.job.suspend) {
      recovery_.shards = job_.job.spec.parameter_server().replicas();
      recovery_.mode = wanted_mode_;
    }

    // An older operator that did not record modes has created the job as the spec says.
    const bool known = recovery_.mode.mode != v1::MODE_UNSPECIFIED;
    if (recovery_.shards != 0 && !known) recovery_.mode = wanted_mode_;

    if (!HasOutcome()) recovery_.images = PinnedImages(recovery_, world_);
  }

  std::string HowItResumes() const {
    if (kube::Find(plan_.status, {"training", "step"}) == nullptr) {
      return "the job starts for the first time";
    }
    const kube::Json* step = kube::Find(plan_.status, {"checkpoint", "step"});
    if (step == nullptr)
      return "no checkpoint is known: the job continues from one if it finds one";
    return absl::StrCat("the job continues from its newest checkpoint, of step ", step->dump(),
                        ", if the checkpoint still exists");
  }

  void MakePolicyPlan() {
    policy::JobPlan& plan = input_.plan;

    const bool continues = !job_.job.suspend && recovery_.shards != 0;
    const bool other_size = continues && recovery_.shards != plan.shards;
    input_.switching = continues && recovery_.mode != wanted_mode_;

    const bool moves = recovery_.shards != 0 && !input_.switching && MovesPartitions(job_.job.spec);
    input_.moving = other_size && moves;
    input_.resizing = other_size && !moves;
    if (!moves) plan.shards = std::max<uint32_t>(recovery_.shards, 1);

    plan.failure_rules = job_.failure_rules;
    plan.progress_deadline = job_.progress_deadline;
    if (job_.job.active_deadline_seconds.has_value()) {
      plan.active_deadline = absl::Seconds(*job_.job.active_deadline_seconds);
    }

    // The coordinator's reports do not distinguish a pod from the previous pod of the same replica.
    plan.heartbeat_timeout = std::max(plan.heartbeat_timeout, plan.start_timeout);

    plan.suspend = job_.job.suspend || input_.resizing || input_.switching;

    // The user did not ask for a stop: the operator waits for the checkpoint for as long as the
    // coordinator tries to save one.
    if (!job_.job.suspend && plan.suspend) plan.suspend_timeout = absl::InfiniteDuration();
  }

  void ObserveWorld() {
    for (const auto& [replica, pod] : input_.pods) {
      if (now_ < pod->slow_from) RequeueBy(pod->slow_from);
      observation_.processes[replica] = Observe(*pod);
      observation_.processes[replica].outdated_from = OutdatedFrom(*pod);
    }

    observation_.coordinator_address = CoordinatorAddress(job_.key);
    observation_.last_step_at =
        kube::DecodeTime(kube::GetString(plan_.status, {"training", "lastProgressTime"}));

    input_.progress = world_.progress;
    if (const PodStatus* coordinator = input_.PodAt(kCoordinator); coordinator != nullptr) {
      ObserveProgress(*coordinator);
    }
    input_.phase = observation_.phase;
  }

  // When a pod that never began should be re-created because its template has changed: the change
  // may fix the cause.
  absl::Time OutdatedFrom(const PodStatus& pod) const {
    const auto wanted = world_.template_hashes.find(pod.replica);
    if (pod.begun || pod.deletion_asked.has_value() || wanted == world_.template_hashes.end() ||
        wanted->second == pod.template_hash) {
      return absl::InfiniteFuture();
    }
    return pod.waiting.empty() ? pod.created + kLongWait : absl::InfinitePast();
  }

  void ObserveProgress(const PodStatus& coordinator) {
    bool& is_new = input_.progress_is_new;
    is_new = world_.progress != nullptr && world_.progress_of == coordinator.uid;
    if (is_new) ObserveRegistrations();

    if (coordinator.final_progress.has_value()) {
      // The termination message is newer than every report that was received.
      input_.progress = &*coordinator.final_progress;
      is_new = true;
    }

    input_.unsynced =
        !is_new && !coordinator.ended && recovery_.progress_instance == coordinator.uid;
    if (!is_new) return;

    const v1::JobProgress& progress = *input_.progress;
    CompareStart(progress);
    recovery_.progress_instance = coordinator.uid;
    observation_.phase = progress.phase();
    observation_.phase_reason = progress.reason();
    observation_.phase_code = progress.reason_code();

    const int64_t recorded = kube::GetInt(plan_.status, {"training", "step"});
    if (static_cast<int64_t>(progress.step()) > recorded) {
      observation_.last_step_at = std::max(observation_.last_step_at, now_);
    }
  }

  // Once after a resumption, when the job trains: whether it continues where it was stopped.
  void CompareStart(const v1::JobProgress& progress) {
    const v1::JobProgress::Phase phase = progress.phase();
    const bool started = phase >= v1::JobProgress::TRAINING &&
                         phase <= v1::JobProgress::SUCCEEDED && phase != v1::JobProgress::SUSPENDED;
    if (recovery_.trained_steps == 0 || !started) return;

    const int64_t start =
        progress.restored() ? static_cast<int64_t>(progress.restored_from_step()) : 0;
    const int64_t lost = recovery_.trained_steps - start;
    const std::string from = progress.restored()
                                 ? absl::StrCat("from the checkpoint of step ", start)
                                 : "at step 0, without a checkpoint";

    if (lost > 0) {
      AddEvent("StepsLost", "Resume",
               absl::StrCat(lost, " steps were lost: the job had trained ", recovery_.trained_steps,
                            " steps when it was stopped, and has started ", from),
               runtime::EventRecord::Type::kWarning);
    }
    recovery_.trained_steps = 0;
  }

  // Which pods have a live process that is registered with the coordinator. Probes find most frozen
  // processes sooner; this also finds frozen user programs, which need not have probes.
  void ObserveRegistrations() {
    observation_.last_progress_at = world_.progress_at;
    for (auto& entry : observation_.processes) {
      const Replica& replica = entry.first;
      const PodStatus& pod = *input_.pods.at(replica);
      if (replica == kCoordinator || !pod.begun || pod.ended || pod.deletion_asked.has_value()) {
        continue;
      }

      const auto& listed = input_.progress->processes();
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

  void Delete(const PodStatus& pod, std::optional<int64_t> grace) {
    plan_.deletions.push_back({pod.name, pod.uid, grace, pod.replica});
  }
  // A pod without running containers needs no grace period.
  static std::optional<int64_t> GraceOf(const PodStatus& pod) {
    if (pod.terminal) return 0;
    return std::nullopt;
  }

  void Act(const policy::Decision& decision) {
    const bool over = input_.Over();
    for (const policy::StopProcess& stop : decision.stops) {
      const PodStatus* pod = input_.PodAt(stop.replica);
      if (pod == nullptr || pod->uid != stop.instance) continue;
      if (over && job_.clean_pod_policy == CleanPodPolicy::kNone) continue;
      Delete(*pod, stop.kill ? std::optional<int64_t>(kKillGraceSeconds) : std::nullopt);
    }

    for (const policy::StartProcess& start : decision.starts) {
      const PodStatus* pod = input_.PodAt(start.replica);
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
        RequeueBy(due);
      }
    }
  }

  // Deletes pods that have ended and get no successor.
  void CleanUp() {
    const bool all =
        Suspended() || (input_.stopped && job_.clean_pod_policy == CleanPodPolicy::kAll);
    const bool running = input_.stopped && job_.clean_pod_policy == CleanPodPolicy::kRunning;

    for (const PodStatus& pod : world_.pods) {
      if (!pod.ended || pod.deletion_asked.has_value()) continue;
      const bool surplus = !HasOutcome() && !policy::Wanted(input_.plan, pod.replica);
      if (all || surplus || (running && pod.lingers)) Delete(pod, GraceOf(pod));
    }

    if (Suspended() && !world_.pods.empty()) input_.stopped = false;
  }

  void PlanSync(const policy::Decision& decision) {
    const PodStatus* coordinator = input_.PodAt(kCoordinator);
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
      if (!input_.progress_is_new || HasOutcome()) break;
      // The report names the incarnation, which differs from the successor's.
      for (const v1::ProcessStatus& process : input_.progress->processes()) {
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

  void NoteSize() {
    if (HasOutcome()) return;
    if (HasExactly(v1::WORKER, input_.plan.workers)) recovery_.sized_workers = input_.plan.workers;
    if (input_.moving && HasExactly(v1::SHARD, input_.plan.shards)) {
      recovery_.shards = input_.plan.shards;
    }
  }
  // Whether all pods of the role are ready, and no other pod of it is left.
  bool HasExactly(v1::Role role, uint32_t wanted) const {
    uint32_t ready = 0;
    for (const auto& [replica, pod] : input_.pods) {
      if (replica.role != role) continue;
      if (!policy::Wanted(input_.plan, replica)) return false;
      ready += pod->ready;
    }
    return ready == wanted;
  }

  void AddEvent(std::string reason, std::string action, std::string note,
                runtime::EventRecord::Type type = runtime::EventRecord::Type::kNormal) {
    plan_.events.push_back({type, std::move(reason), std::move(action), std::move(note), ""});
  }

  // Events of a job that is stopped to change its size or mode.
  void AddStopEvents(bool was_stopping) {
    const std::string why = Suspended() ? input_.Outcome()->reason : "";
    if ((input_.resizing || input_.switching) && !why.empty()) {
      AddEvent(
          "CheckpointFailed", input_.resizing ? "Scale" : "Switch",
          absl::StrCat("no checkpoint was saved before the change (", why,
                       "): training continues from the newest one, and the steps since then are "
                       "recomputed"),
          runtime::EventRecord::Type::kWarning);
    }

    if (input_.switching && !was_stopping) {
      AddEvent("SwitchingMode", "Switch",
               absl::StrCat(ModeName(recovery_.mode.mode), " -> ", ModeName(wanted_mode_.mode),
                            ": the job saves a checkpoint and continues in the new mode"));
    }
  }

  void Finish() {
    plan_.shards = plan_.shard_pods = input_.plan.shards;

    for (const auto& [replica, pod] : input_.pods) {
      if (replica.role != v1::SHARD) continue;
      plan_.shard_pods = std::max(plan_.shard_pods, replica.index + 1);
    }

    plan_.mode = recovery_.mode;
    plan_.images = recovery_.images;
    plan_.ensure_objects = !HasOutcome() && recovery_.shards != 0;

    Report(input_, &plan_.status, &plan_.events);
    plan_.change = CompareStatus(world_.status, plan_.status);
    ExpireJob();
  }

  void ExpireJob() {
    if (!job_.ttl_after_finished.has_value() || !input_.Over()) return;
    const absl::Time end = kube::DecodeTime(kube::GetString(plan_.status, {"completionTime"}));
    if (end == absl::InfinitePast()) return;
    const absl::Time due = end + *job_.ttl_after_finished;
    if (now_ < due) {
      RequeueBy(due);
    } else {
      plan_.delete_job = true;
    }
  }

  ReportInput input_;
  const World& world_;
  const ObservedJob& job_;
  const policy::Limits& limits_;
  const absl::Time now_;
  Recovery& recovery_ = input_.recovery;
  ReconcilePlan plan_;
  policy::Observation observation_;
  UpdateMode wanted_mode_;
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
