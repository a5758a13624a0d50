#include "operator/reconciler/job_reconciler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"
#include "operator/reconciler/create_owned.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/refusal.h"
#include "services/common/status_macros.h"

namespace sluice::reconciler {

using kube::Json;
using runtime::Result;

namespace {

// How long a refusal is shown before another reason replaces it.
constexpr absl::Duration kRefusalShown = absl::Seconds(10);

// The object's name in the expectations.
std::string NameOf(const OwnedObject& object) {
  return absl::StrCat(object.type->resource, "/", kube::KeyOf(object.object).name);
}

Json StatusOf(const Json& job) {
  const auto found = job.find("status");
  return found != job.end() && found->is_object() ? *found : Json(Json::object());
}

}  // namespace

JobReconciler::JobReconciler(Options options, kube::Client* client, const Caches& caches,
                             Coordinators* coordinators, runtime::EventRecorder* events,
                             const Clock* clock)
    : options_(std::move(options)),
      client_(client),
      caches_(caches),
      coordinators_(coordinators),
      events_(events),
      clock_(clock) {}

std::shared_ptr<JobReconciler::JobState> JobReconciler::StateOf(const runtime::Key& key,
                                                                const std::string& uid) {
  MutexLock lock(&mutex_);
  std::shared_ptr<JobState>& state = states_[key];
  if (state == nullptr || state->uid != uid) {
    state = std::make_shared<JobState>();
    state->uid = uid;
  }
  return state;
}

std::string JobReconciler::WantedHash(const ObservedJob& job, const policy::Replica& replica,
                                      JobState* state) const {
  std::string& hash = state->hashes[replica];
  if (hash.empty()) hash = TemplateHash(MakePod(job, options_.pods, state->hashed_images, replica));
  return hash;
}

World JobReconciler::Gather(const Json& job, const LastProgress& last_progress,
                            JobState* state) const {
  World world;
  world.job = ReadJob(job);
  world.status = StatusOf(job);
  world.pods = state->expectations.Pods(caches_.pods->ByIndex(kControllerIndex, world.job.uid),
                                        clock_->Now());
  world.progress = last_progress.progress.get();
  world.progress_of = last_progress.instance;
  world.progress_at = last_progress.at;
  world.refused = state->refused;
  world.images = ImagesOf(world.job, options_.pods);

  const PodImages images = PinnedImages(ReadRecovery(world.status), world);
  if (state->hashes_of != world.job.generation || state->hashed_images != images) {
    state->hashes.clear();
    state->hashes_of = world.job.generation;
    state->hashed_images = images;
  }

  for (const PodStatus& pod : world.pods) {
    if (pod.begun || pod.deletion_asked.has_value()) continue;
    world.template_hashes[pod.replica] = WantedHash(world.job, pod.replica, state);
  }
  return world;
}

absl::Status JobReconciler::WriteStatus(const Json& job, const World& world,
                                        const ReconcilePlan& plan, JobState* state) {
  Json body = job;
  body["status"] = plan.status;
  kube::WriteOptions options;
  options.subresource = kube::Subresource::kStatus;
  // The update carries the job's resourceVersion: a decision based on an older state of the job, or
  // made by a former leader, is refused.
  ASSIGN_OR_RETURN(Json written, client_->Update(TrainingJobs(), world.job.key, body, options));

  state->expectations.NoteJob(job, std::move(written));
  state->status_written = clock_->Now();
  if (plan.change == StatusChange::kTransition) state->transition = state->status_written;
  if (options_.on_status != nullptr) options_.on_status(world.job.key, world.status, plan.status);
  for (const runtime::EventRecord& event : plan.events) events_->Record(job, event);
  return absl::OkStatus();
}

absl::Status JobReconciler::EnsureObjects(const ObservedJob& job, std::vector<OwnedObject> objects,
                                          JobState* state) {
  const absl::Time now = clock_->Now();
  std::vector<Missing> missing;
  for (OwnedObject& wanted : objects) {
    const kube::ObjectKey key = kube::KeyOf(wanted.object);
    const runtime::Informer* cache = wanted.type == &Services()            ? caches_.services
                                     : wanted.type == &ConfigMaps()        ? caches_.config_maps
                                     : wanted.type == &DisruptionBudgets() ? caches_.budgets
                                                                           : caches_.policies;
    const runtime::ObjectPtr live = cache->Get(key);
    const std::string name = NameOf(wanted);

    if (live != nullptr && Covers(*live, wanted.object)) {
      state->expectations.NoteShown(name, now);
      continue;
    }
    if (live != nullptr && kube::ControllerUidOf(*live) != job.uid) {
      return NameTaken(*wanted.type, *live, job);
    }
    if (!state->expectations.MayApply(name, wanted.object, now)) continue;
    missing.push_back({std::move(wanted), live});
  }
  return ApplyObjects(job, missing, state);
}

// An object that the cache does not have is created, so it never replaces a foreign object: the
// caches hold only objects with the job's label. An object that differs is patched with the uid and
// resourceVersion that were seen, so a former leader does no harm. The patch is a merge patch,
// which replaces whole lists; a server-side apply would leave elements that another client has
// added.
absl::Status JobReconciler::ApplyObjects(const ObservedJob& job, const OwnedObject& wanted,
                                         const Json* live) const {
  Json found;
  if (live == nullptr) {
    ASSIGN_OR_RETURN(Json made, CreateOwned(client_, *wanted.type, job, wanted.object));
    if (Covers(made, wanted.object)) return absl::OkStatus();
    found = std::move(made);  // from an earlier attempt, or without its label
    live = &found;
  }

  kube::WriteOptions options;
  options.field_manager = kFieldManager;
  Json body = wanted.object;
  body["metadata"]["uid"] = kube::UidOf(*live);
  body["metadata"]["resourceVersion"] = kube::ResourceVersionOf(*live);
  return client_
      ->Patch(*wanted.type, kube::KeyOf(wanted.object), kube::PatchKind::kMerge, body, options)
      .status();
}

// Several at a time: no object needs another one, and pods are created later.
absl::Status JobReconciler::ApplyObjects(const ObservedJob& job,
                                         const std::vector<Missing>& objects, JobState* state) {
  std::vector<char> written(objects.size(), 0);  // each element is written by one task
  absl::Status status = InParallel(objects.size(), [&](size_t i) {
    absl::Status done = ApplyObjects(job, objects[i].wanted, objects[i].live.get());
    written[i] = done.ok();
    return done;
  });

  const absl::Time now = clock_->Now();
  for (size_t i = 0; i < objects.size(); ++i) {
    if (!written[i]) continue;
    const OwnedObject& wanted = objects[i].wanted;
    state->expectations.NoteApplied(NameOf(wanted), wanted.object, now);
  }
  return status;
}

absl::Status JobReconciler::InParallel(size_t count, const runtime::TaskPool::Task& task) const {
  runtime::TaskPool alone(0);
  runtime::TaskPool* const pool = options_.pool == nullptr ? &alone : options_.pool;
  return pool->ForEach(count, options_.writes_at_once, task);
}

// Deletes the NetworkPolicy of a job with `networkPolicy: Disabled`.
absl::Status JobReconciler::DropPolicy(const World& world) {
  if (world.job.network_policy) return absl::OkStatus();
  const runtime::ObjectPtr live = caches_.policies->Get(world.job.key);
  if (live == nullptr || kube::IsBeingDeleted(*live) ||
      kube::ControllerUidOf(*live) != world.job.uid) {
    return absl::OkStatus();
  }

  kube::DeleteOptions options;
  options.uid = kube::UidOf(*live);
  absl::Status status = client_->Delete(NetworkPolicies(), world.job.key, options).status();
  return absl::IsNotFound(status) || kube::IsConflict(status) ? absl::OkStatus() : status;
}

absl::Status JobReconciler::DeletePods(const std::string& ns,
                                       const std::vector<PodDeletion>& deletions, JobState* state) {
  std::vector<char> deleted(deletions.size(), 0);  // each element is written by one task
  absl::Status status = InParallel(deletions.size(), [&](size_t i) {
    kube::DeleteOptions options;
    options.uid = deletions[i].uid;
    options.grace_period_seconds = deletions[i].grace_seconds;

    absl::Status done = client_->Delete(Pods(), {ns, deletions[i].name}, options).status();
    // The pod is gone already, or another pod has its name: there is nothing to delete.
    if (!done.ok() && !absl::IsNotFound(done) && !kube::IsConflict(done)) return done;
    deleted[i] = 1;
    return absl::OkStatus();
  });

  const absl::Time now = clock_->Now();
  for (size_t i = 0; i < deletions.size(); ++i) {
    if (!deleted[i]) continue;
    state->expectations.NoteDeleted(deletions[i].name, deletions[i].uid,
                                    deletions[i].grace_seconds == 0, now);
  }
  return status;
}

absl::StatusOr<JobReconciler::NewPod> JobReconciler::CreatePod(
    const World& world, const PodImages& images, const policy::Replica& replica) const {
  const Json pod = MakePod(world.job, options_.pods, images, replica);
  ASSIGN_OR_RETURN(Json made, CreateOwned(client_, Pods(), world.job, pod));

  const Json& labels = pod["metadata"]["labels"];
  const Json* found = kube::Find(made, {"metadata", "labels"});
  if (found == nullptr || !Covers(*found, labels)) {
    // The caches select by label, so they never show this pod.
    return absl::AlreadyExistsError(absl::StrCat(
        "the Pod ", kube::KeyOf(pod).ToString(),
        " belongs to this job, but some of its labels are missing or changed (", kJobLabel, ", ",
        kRoleLabel, ", ", kIndexLabel, "): restore them, or delete the pod"));
  }

  return NewPod{std::move(made), TemplateHash(pod)};
}

// Several at a time, role by role: if a quota has room for only some pods, no worker takes the
// place of a shard. Pods created before or beside a refused one stay, and are recorded in the
// expectations.
absl::Status JobReconciler::CreatePods(const World& world, const PodImages& images,
                                       const std::vector<policy::Replica>& replicas,
                                       JobState* state) {
  for (size_t begin = 0, end = 0; begin < replicas.size(); begin = end) {
    while (end < replicas.size() && replicas[end].role == replicas[begin].role) ++end;
    std::vector<NewPod> made(end - begin);
    absl::Status status = InParallel(made.size(), [&](size_t i) {
      ASSIGN_OR_RETURN(NewPod pod, CreatePod(world, images, replicas[begin + i]));
      made[i] = std::move(pod);
      return absl::OkStatus();
    });

    const absl::Time now = clock_->Now();
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i].object.is_null()) continue;
      state->hashes[replicas[begin + i]] = std::move(made[i].template_hash);
      state->expectations.NoteCreated(PodName(world.job.key.name, replicas[begin + i]),
                                      std::move(made[i].object), now);
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status JobReconciler::ApplyAccessories(const World& world, const ReconcilePlan& plan,
                                             JobState* state) {
  absl::Status status =
      EnsureObjects(world.job, MakeObjects(world.job, plan.shards, plan.mode), state);
  if (status.ok()) status = DropPolicy(world);
  if (!status.ok() || !world.job.tls) return status;
  // Secrets that pods mount must exist before the pods.
  status =
      state->secrets.Ensure(world.job, plan.shard_pods, client_, *caches_.secrets, clock_->Now());

  if (options_.on_certificates != nullptr) {
    options_.on_certificates(world.job.key, state->secrets.expiry());
  }
  return status;
}

absl::Status JobReconciler::ApplyPods(const World& world, const ReconcilePlan& plan,
                                      JobState* state) {
  const size_t turn = options_.pods_in_a_turn;
  std::vector<PodDeletion> deletions = plan.deletions;
  std::vector<policy::Replica> creations = plan.creations;
  if (deletions.size() > turn) {
    // The next pod of a name can be created only after the previous one is deleted.
    for (size_t i = turn; i < deletions.size(); ++i) {
      creations.erase(std::remove(creations.begin(), creations.end(), deletions[i].replica),
                      creations.end());
    }
    deletions.resize(turn);
  }
  if (creations.size() > turn) creations.resize(turn);

  RETURN_IF_ERROR(DeletePods(world.job.key.ns, deletions, state));
  absl::Status status = CreatePods(world, plan.images, creations, state);
  // Kubernetes evaluates every budget of a namespace at each change of a pod in it. So the budget
  // is created last: when no more pods are to be created, or none can be.
  if (plan.ensure_objects && (plan.creations.empty() || !status.ok())) {
    status.Update(EnsureObjects(world.job, {MakeDisruptionBudget(world.job, plan.shards)}, state));
  }
  return status;
}

absl::Status JobReconciler::Act(const Json& job, const World& world, const ReconcilePlan& plan,
                                JobState* state) {
  absl::Status status;
  if (plan.ensure_objects) {
    status = ApplyAccessories(world, plan, state);
  } else if (options_.on_certificates != nullptr) {
    options_.on_certificates(world.job.key, absl::InfiniteFuture());
  }

  // Before the first process of a job starts, all its objects must exist. In a running job, dead
  // processes are replaced even if an accessory is refused.
  const bool runs = std::any_of(world.pods.begin(), world.pods.end(),
                                [](const PodStatus& pod) { return pod.begun; });
  if (!status.ok() && !runs) return status;

  status.Update(ApplyPods(world, plan, state));
  RETURN_IF_ERROR(status);

  if (plan.delete_job) {
    kube::DeleteOptions options;
    options.uid = world.job.uid;
    options.resource_version = kube::ResourceVersionOf(job);
    options.propagation = kube::Propagation::kBackground;
    absl::Status deleted = client_->Delete(TrainingJobs(), world.job.key, options).status();
    if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;
  }
  return absl::OkStatus();
}

void JobReconciler::SyncCoordinator(const World& world, const ReconcilePlan& plan,
                                    JobState* state) {
  ControlAddress address;
  if (plan.sync.has_value() && world.job.tls) {
    address.credentials = state->secrets.ForOperator(world.job, *caches_.secrets, clock_->Now());
  }
  if (!plan.sync.has_value() || (world.job.tls && address.credentials == nullptr)) {
    coordinators_->Pause(world.job.key);
    return;
  }

  const ReconcilePlan::CoordinatorSync& sync = *plan.sync;
  address.host_and_port = options_.control_address(sync.ip);
  coordinators_->Sync(world.job.key, sync.instance, address, sync.desired, sync.deaths);
}

// Returns whether the status must show a change at once. If refusals alternate, each is shown for a
// while: every write of the status puts the job back into the queue.
bool JobReconciler::NoteRefusal(const absl::Status& acted, JobState* state) const {
  const absl::Time now = clock_->Now();
  Refusal refusal = RefusalOf(acted);
  if (!refusal.may_pass) {
    state->failing_since = absl::InfiniteFuture();
  } else {
    state->failing_since = std::min(state->failing_since, now);
    if (now - state->failing_since < options_.patience) return false;
  }

  const bool news = refusal.problem.reason != state->refused.reason;
  if (news && !acted.ok() && now - state->refusal_shown < kRefusalShown) return false;

  state->refused = std::move(refusal.problem);
  if (news && !acted.ok()) state->refusal_shown = now;
  return news;
}

// A deleted job has no status, and foreign finalizers may be there for a reason that only their
// controller knows. So the pod gets an event that says what to do.
Result JobReconciler::ReportHeldPods(const runtime::Key& key) const {
  const absl::Time now = clock_->Now();
  absl::Time again = absl::InfiniteFuture();
  for (const runtime::ObjectPtr& object : caches_.pods->ByIndex(kJobIndex, key.ToString())) {
    const std::optional<PodStatus> pod = ReadPod(*object);
    if (!pod.has_value() || pod->slow.reason != kHeldByFinalizer) continue;

    if (now < pod->slow_from) {
      again = std::min(again, pod->slow_from);
      continue;
    }

    events_->Record(*object, {runtime::EventRecord::Type::kWarning, kHeldByFinalizer, "Delete",
                              absl::StrCat("the job is deleted; ", pod->slow.message), ""});
  }
  return again == absl::InfiniteFuture() ? Result::Done() : Result::RequeueAfter(again - now);
}

Result JobReconciler::Reconcile(const runtime::Key& key) {
  const runtime::ObjectPtr cached = caches_.jobs->Get(key);
  if (cached == nullptr) {
    coordinators_->Forget(key);
    if (options_.on_certificates != nullptr) {
      options_.on_certificates(key, absl::InfiniteFuture());
    }
    {
      MutexLock lock(&mutex_);
      states_.erase(key);
    }
    return ReportHeldPods(key);
  }

  const std::shared_ptr<JobState> state = StateOf(key, kube::UidOf(*cached));
  const Json before = state->expectations.NewestJob(*cached);
  const LastProgress last_progress = coordinators_->Latest(key);
  const World world = Gather(before, last_progress, state.get());

  const absl::Time now = clock_->Now();
  const ReconcilePlan plan = DecideJob(world, options_.limits, now);

  absl::Time again = plan.decide_again;
  Json job = before;

  if (plan.status != world.status) {
    const absl::Duration counts_interval =
        std::clamp(state->status_written - state->transition, options_.counts_interval,
                   std::max(options_.counts_interval, options_.longest_counts_interval));
    const absl::Duration interval = plan.change == StatusChange::kTransition ? absl::ZeroDuration()
                                    : plan.change == StatusChange::kCounts
                                        ? counts_interval
                                        : options_.progress_interval;

    const absl::Time allowed = state->status_written + interval;
    if (now < allowed) {
      again = std::min(again, allowed);
    } else {
      const absl::Status status = WriteStatus(before, world, plan, state.get());
      if (absl::IsNotFound(status)) return Result::Done();
      // Another client has written the job meanwhile: the cache will show it.
      if (kube::IsConflict(status)) return Result::Requeue();
      RETURN_IF_ERROR(status, Result::Error(_));
      job = state->expectations.NewestJob(before);
    }
  }

  SyncCoordinator(world, plan, state.get());
  const absl::Status acted = Act(job, world, plan, state.get());
  // The status should show the refusal at once.
  if (NoteRefusal(acted, state.get())) return Result::RequeueAfter(absl::Milliseconds(20));
  if (!acted.ok()) return kube::IsConflict(acted) ? Result::Requeue() : Result::Error(acted);
  if (world.job.being_deleted) return ReportHeldPods(key);
  if (std::max(plan.creations.size(), plan.deletions.size()) > options_.pods_in_a_turn) {
    return Result::RequeueAfter({});
  }

  again = std::min(again, state->expectations.NextCheck(plan.ensure_objects));
  // Growing steps alone cause no reconciliation, so one is scheduled to write the progress.
  if (plan.sync.has_value()) again = std::min(again, now + options_.progress_interval);

  if (again == absl::InfiniteFuture()) return Result::Done();
  const absl::Duration rest = again - clock_->Now();

  // A time that stays in the past must not cause a busy loop.
  return Result::RequeueAfter(rest > absl::ZeroDuration() ? rest : options_.shortest_rest);
}

}  // namespace sluice::reconciler
