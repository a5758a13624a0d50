#include "operator/reconciler/job_reconciler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/kube/api_error.h"
#include "operator/reconciler/create_owned.h"
#include "operator/reconciler/names.h"
#include "operator/reconciler/refusal.h"

namespace sluice::reconciler {

using kube::Json;
using runtime::Result;

namespace {

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

std::shared_ptr<JobReconciler::Expectations> JobReconciler::ExpectationsOf(const runtime::Key& key,
                                                                           const std::string& uid) {
  MutexLock lock(&mutex_);
  std::shared_ptr<Expectations>& expectations = expectations_[key];
  if (expectations == nullptr || expectations->uid != uid) {
    expectations = std::make_shared<Expectations>();
    expectations->uid = uid;
  }
  return expectations;
}

// A cache that lags shows the job as it was before the operator's own last writes.
Json JobReconciler::NewestJob(const Json& cached, Expectations* expectations) const {
  const std::string version = kube::ResourceVersionOf(cached);
  const auto& old = expectations->superseded;
  if (std::find(old.begin(), old.end(), version) != old.end()) return expectations->written;
  expectations->superseded.clear();
  expectations->written = Json();
  return cached;
}

void JobReconciler::UseOwnClock(absl::Time now, Expectations* expectations, PodStatus* pod) const {
  const absl::Time timestamp = pod->gone_by;
  const absl::Time gone_by = now + (timestamp - *pod->deletion_asked);
  const auto [found, is_new] =
      expectations->leaving.try_emplace(pod->uid, Expectations::Leaving{timestamp, now, gone_by});
  Expectations::Leaving& leaving = found->second;
  // A second deletion has shortened the grace period.
  if (leaving.timestamp != timestamp) {
    leaving.timestamp = timestamp;
    leaving.gone_by = std::min(leaving.gone_by, gone_by);
  }
  pod->deletion_asked = leaving.asked;
  pod->gone_by = leaving.gone_by;
  pod->slow_from += leaving.gone_by - timestamp;
}

std::vector<PodStatus> JobReconciler::GatherPods(const std::string& uid,
                                                 Expectations* expectations) const {
  const absl::Time now = clock_->Now();
  std::vector<PodStatus> views;
  std::map<std::string, Expectations::Leaving> leaving;

  for (const runtime::ObjectPtr& pod : caches_.pods->ByIndex(kControllerIndex, uid)) {
    std::optional<PodStatus> view = ReadPod(*pod);
    if (!view.has_value()) continue;
    expectations->created.erase(view->name);
    const auto deleted = expectations->deleted.find(view->uid);
    if (view->deletion_asked.has_value()) {
      UseOwnClock(now, expectations, &*view);
      leaving.insert(expectations->leaving.extract(view->uid));
    }
    if (deleted != expectations->deleted.end() && !view->deletion_asked.has_value()) {
      view->deletion_asked = deleted->second.at;
      view->gone_by = deleted->second.at;
    }
    if (deleted != expectations->deleted.end() && deleted->second.forced) view->forced = true;
    views.push_back(*std::move(view));
  }

  expectations->leaving = std::move(leaving);  // drops the pods that are gone
  for (auto it = expectations->created.begin(); it != expectations->created.end();) {
    if (now - it->second.at > options_.write_lag) {
      it = expectations->created.erase(it);
      continue;
    }
    if (std::optional<PodStatus> view = ReadPod(it->second.object); view.has_value()) {
      views.push_back(*std::move(view));
    }
    ++it;
  }
  for (auto it = expectations->deleted.begin(); it != expectations->deleted.end();) {
    it = now - it->second.at > options_.write_lag ? expectations->deleted.erase(it) : std::next(it);
  }
  return views;
}

std::string JobReconciler::WantedHash(const ObservedJob& job, const policy::Replica& replica,
                                      Expectations* expectations) const {
  std::string& hash = expectations->hashes[replica];
  if (hash.empty())
    hash = TemplateHash(MakePod(job, options_.pods, expectations->hashed_images, replica));
  return hash;
}

World JobReconciler::Gather(const Json& job, const LastProgress& last_progress,
                            Expectations* expectations) const {
  World world;
  world.job = ReadJob(job);
  world.status = StatusOf(job);
  world.pods = GatherPods(world.job.uid, expectations);
  world.progress = last_progress.progress.get();
  world.progress_of = last_progress.instance;
  world.progress_at = last_progress.at;
  world.refused = expectations->refused;
  world.images = ImagesOf(world.job, options_.pods);

  const PodImages images = PinnedImages(ReadRecovery(world.status), world);
  if (expectations->hashes_of != world.job.generation || expectations->hashed_images != images) {
    expectations->hashes.clear();
    expectations->hashes_of = world.job.generation;
    expectations->hashed_images = images;
  }
  for (const PodStatus& pod : world.pods) {
    if (pod.begun || pod.deletion_asked.has_value()) continue;
    world.template_hashes[pod.replica] = WantedHash(world.job, pod.replica, expectations);
  }
  return world;
}

absl::Status JobReconciler::WriteStatus(const Json& job, const World& world,
                                        const ReconcilePlan& plan, Expectations* expectations) {
  Json body = job;
  body["status"] = plan.status;
  kube::WriteOptions options;
  options.subresource = kube::Subresource::kStatus;
  // The update carries the job's resourceVersion: a decision based on an older state of the job, or
  // made by a former leader, is refused.
  absl::StatusOr<Json> written = client_->Update(TrainingJobs(), world.job.key, body, options);
  if (!written.ok()) return written.status();

  expectations->superseded.push_back(kube::ResourceVersionOf(job));
  expectations->written = *std::move(written);
  expectations->status_written = clock_->Now();
  if (plan.change == StatusChange::kTransition)
    expectations->transition = expectations->status_written;
  if (options_.on_status != nullptr) options_.on_status(world.job.key, world.status, plan.status);
  for (const runtime::EventRecord& event : plan.events) events_->Record(job, event);
  return absl::OkStatus();
}

absl::Status JobReconciler::EnsureObjects(const ObservedJob& job, std::vector<OwnedObject> objects,
                                          Expectations* expectations) {
  const absl::Time now = clock_->Now();
  std::vector<Missing> missing;
  for (OwnedObject& wanted : objects) {
    const kube::ObjectKey key = kube::KeyOf(wanted.object);
    const runtime::Informer* cache = wanted.type == &Services()            ? caches_.services
                                     : wanted.type == &ConfigMaps()        ? caches_.config_maps
                                     : wanted.type == &DisruptionBudgets() ? caches_.budgets
                                                                           : caches_.policies;
    const runtime::ObjectPtr live = cache->Get(key);
    const std::string name = absl::StrCat(wanted.type->resource, "/", key.name);
    const auto applied = expectations->applied.find(name);
    const bool known = applied != expectations->applied.end();

    if (live != nullptr && Covers(*live, wanted.object)) {
      if (!known) continue;
      applied->second.shown = true;
      // The write has lasted.
      const absl::Duration quiet = 2 * WriteLag(applied->second.times);
      if (now - applied->second.at >= quiet) expectations->applied.erase(applied);
      continue;
    }
    if (live != nullptr && kube::ControllerUidOf(*live) != job.uid) {
      return NameTaken(*wanted.type, *live, job);
    }
    if (known && applied->second.object == wanted.object) {
      // The first edit is reverted at once; later ones with growing delays.
      const bool first_edit = applied->second.shown && applied->second.times == 1;
      if (!first_edit && now - applied->second.at < WriteLag(applied->second.times)) {
        applied->second.shown = false;
        continue;
      }
    }
    missing.push_back({std::move(wanted), live});
  }
  return ApplyObjects(job, missing, expectations);
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
    absl::StatusOr<Json> made = CreateOwned(client_, *wanted.type, job, wanted.object);
    if (!made.ok()) return made.status();
    if (Covers(*made, wanted.object)) return absl::OkStatus();
    found = *std::move(made);  // from an earlier attempt, or without its label
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
                                         const std::vector<Missing>& objects,
                                         Expectations* expectations) {
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
    const std::string name = kube::KeyOf(wanted.object).name;
    const auto [applied, is_new] =
        expectations->applied.try_emplace(absl::StrCat(wanted.type->resource, "/", name));
    const bool repeated = !is_new && applied->second.object == wanted.object;
    applied->second = {wanted.object, now, repeated ? applied->second.times + 1 : 1, false};
  }
  return status;
}

absl::Status JobReconciler::InParallel(size_t count, const runtime::TaskPool::Task& task) const {
  runtime::TaskPool alone(0);
  runtime::TaskPool* const pool = options_.pool == nullptr ? &alone : options_.pool;
  return pool->ForEach(count, options_.writes_at_once, task);
}

// Deletes the NetworkPolicy of a job whose spec no longer wants one.
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
                                       const std::vector<PodDeletion>& deletions,
                                       Expectations* expectations) {
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
    const bool forced = deletions[i].grace_seconds == 0;
    expectations->deleted[deletions[i].uid] = {forced, now};
    expectations->created.erase(deletions[i].name);
  }
  return status;
}

absl::StatusOr<JobReconciler::NewPod> JobReconciler::CreatePod(
    const World& world, const PodImages& images, const policy::Replica& replica) const {
  const Json pod = MakePod(world.job, options_.pods, images, replica);
  absl::StatusOr<Json> made = CreateOwned(client_, Pods(), world.job, pod);
  if (!made.ok()) return made.status();
  const Json& labels = pod["metadata"]["labels"];
  const Json* found = kube::Find(*made, {"metadata", "labels"});
  if (found == nullptr || !Covers(*found, labels)) {
    // The caches select by label, so they never show this pod.
    return absl::AlreadyExistsError(absl::StrCat(
        "the Pod ", kube::KeyOf(pod).ToString(), " belongs to this job but lacks labels (",
        kJobLabel, ", ", kRoleLabel, ", ", kIndexLabel, "): restore them, or delete the pod"));
  }
  return NewPod{*std::move(made), TemplateHash(pod)};
}

// Several at a time, role by role: if a quota has room for only some pods, no worker takes the
// place of a shard. Pods created before or beside a refused one stay, and are recorded in the
// expectations.
absl::Status JobReconciler::CreatePods(const World& world, const PodImages& images,
                                       const std::vector<policy::Replica>& replicas,
                                       Expectations* expectations) {
  for (size_t begin = 0, end = 0; begin < replicas.size(); begin = end) {
    while (end < replicas.size() && replicas[end].role == replicas[begin].role) ++end;
    std::vector<NewPod> made(end - begin);
    absl::Status status = InParallel(made.size(), [&](size_t i) {
      absl::StatusOr<NewPod> pod = CreatePod(world, images, replicas[begin + i]);
      if (!pod.ok()) return pod.status();
      made[i] = *std::move(pod);
      return absl::OkStatus();
    });

    const absl::Time now = clock_->Now();
    for (size_t i = 0; i < made.size(); ++i) {
      if (made[i].object.is_null()) continue;
      expectations->hashes[replicas[begin + i]] = std::move(made[i].template_hash);
      const std::string uid = kube::UidOf(made[i].object);
      expectations->created[PodName(world.job.key.name, replicas[begin + i])] = {
          uid, std::move(made[i].object), now};
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status JobReconciler::ApplyAccessories(const World& world, const ReconcilePlan& plan,
                                             Expectations* expectations) {
  absl::Status status =
      EnsureObjects(world.job, MakeObjects(world.job, plan.shards, plan.mode), expectations);
  if (status.ok()) status = DropPolicy(world);
  if (!status.ok() || !world.job.tls) return status;
  // Secrets that pods mount must exist before the pods.
  status = expectations->secrets.Ensure(world.job, plan.shards, client_, *caches_.secrets,
                                        clock_->Now());
  if (options_.on_certificates != nullptr) {
    options_.on_certificates(world.job.key, expectations->secrets.expiry());
  }
  return status;
}

absl::Status JobReconciler::ApplyPods(const World& world, const ReconcilePlan& plan,
                                      Expectations* expectations) {
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

  absl::Status status = DeletePods(world.job.key.ns, deletions, expectations);
  if (!status.ok()) return status;
  status = CreatePods(world, plan.images, creations, expectations);
  // Kubernetes evaluates every budget of a namespace at each change of a pod in it. So the budget
  // is created last: when no more pods are to be created, or none can be.
  if (plan.keep_objects && (plan.creations.empty() || !status.ok())) {
    status.Update(
        EnsureObjects(world.job, {MakeDisruptionBudget(world.job, plan.shards)}, expectations));
  }
  return status;
}

absl::Status JobReconciler::Act(const Json& job, const World& world, const ReconcilePlan& plan,
                                Expectations* expectations) {
  absl::Status status;
  if (plan.keep_objects) {
    status = ApplyAccessories(world, plan, expectations);
  } else if (options_.on_certificates != nullptr) {
    options_.on_certificates(world.job.key, absl::InfiniteFuture());
  }
  // Before the first process of a job starts, all its objects must exist. In a running job, dead
  // processes are replaced even if an accessory is refused.
  const bool runs = std::any_of(world.pods.begin(), world.pods.end(),
                                [](const PodStatus& pod) { return pod.begun; });
  if (!status.ok() && !runs) return status;

  status.Update(ApplyPods(world, plan, expectations));
  if (!status.ok()) return status;
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
                                    Expectations* expectations) {
  ControlAddress address;
  if (plan.sync.has_value() && world.job.tls) {
    address.credentials =
        expectations->secrets.ForOperator(world.job, *caches_.secrets, clock_->Now());
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
bool JobReconciler::NoteRefusal(const absl::Status& acted, Expectations* expectations) const {
  const absl::Time now = clock_->Now();
  Refusal refusal = RefusalOf(acted);
  if (!refusal.may_pass) {
    expectations->failing_since = absl::InfiniteFuture();
  } else {
    expectations->failing_since = std::min(expectations->failing_since, now);
    if (now - expectations->failing_since < options_.patience) return false;
  }
  const bool news = refusal.problem.reason != expectations->refused.reason;
  if (news && !acted.ok() && now - expectations->refusal_shown < options_.write_lag) return false;
  expectations->refused = std::move(refusal.problem);
  if (news && !acted.ok()) expectations->refusal_shown = now;
  return news;
}

absl::Duration JobReconciler::WriteLag(int times) const {
  const absl::Duration lag = options_.write_lag * (int64_t{1} << std::min(times - 1, 20));
  return std::min(lag, std::max(options_.write_lag, options_.longest_write_lag));
}

// When a write that the caches do not show becomes doubtful. Objects and certificates of a job that
// keeps no objects (it has ended, or is suspended) are left as they are.
absl::Time JobReconciler::NextLook(const Expectations& expectations, bool keeps_objects) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, made] : expectations.created)
    next = std::min(next, made.at + WriteLag(1));
  for (const auto& [uid, removed] : expectations.deleted)
    next = std::min(next, removed.at + WriteLag(1));
  if (!keeps_objects) return next + absl::Milliseconds(1);
  for (const auto& [name, applied] : expectations.applied) {
    if (!applied.shown) next = std::min(next, applied.at + WriteLag(applied.times));
  }
  return std::min(next + absl::Milliseconds(1), expectations.secrets.look_again());
}

Result JobReconciler::Reconcile(const runtime::Key& key) {
  const runtime::ObjectPtr cached = caches_.jobs->Get(key);
  if (cached == nullptr) {
    coordinators_->Forget(key);
    if (options_.on_certificates != nullptr) {
      options_.on_certificates(key, absl::InfiniteFuture());
    }
    MutexLock lock(&mutex_);
    expectations_.erase(key);
    return Result::Done();
  }

  const std::shared_ptr<Expectations> expectations = ExpectationsOf(key, kube::UidOf(*cached));
  const Json before = NewestJob(*cached, expectations.get());
  const LastProgress last_progress = coordinators_->Latest(key);
  const World world = Gather(before, last_progress, expectations.get());
  const absl::Time now = clock_->Now();
  const ReconcilePlan plan = DecideJob(world, options_.limits, now);

  absl::Time again = plan.decide_again;
  Json job = before;
  if (plan.status != world.status) {
    const absl::Duration counts_interval = std::clamp(
        expectations->status_written - expectations->transition, options_.counts_interval,
        std::max(options_.counts_interval, options_.longest_counts_interval));
    const absl::Duration interval = plan.change == StatusChange::kTransition ? absl::ZeroDuration()
                                    : plan.change == StatusChange::kCounts
                                        ? counts_interval
                                        : options_.progress_interval;
    const absl::Time allowed = expectations->status_written + interval;
    if (now < allowed) {
      again = std::min(again, allowed);
    } else {
      const absl::Status status = WriteStatus(before, world, plan, expectations.get());
      if (absl::IsNotFound(status)) return Result::Done();
      // Another client has written the job meanwhile: the cache will show it.
      if (kube::IsConflict(status)) return Result::Requeue();
      if (!status.ok()) return Result::Error(status);
      job = expectations->written;
    }
  }

  SyncCoordinator(world, plan, expectations.get());
  const absl::Status acted = Act(job, world, plan, expectations.get());
  // The status should show the refusal at once.
  if (NoteRefusal(acted, expectations.get())) return Result::RequeueAfter(absl::Milliseconds(20));
  if (!acted.ok()) return kube::IsConflict(acted) ? Result::Requeue() : Result::Error(acted);
  if (std::max(plan.creations.size(), plan.deletions.size()) > options_.pods_in_a_turn) {
    return Result::RequeueAfter({});
  }

  again = std::min(again, NextLook(*expectations, plan.keep_objects));
  // A coordinator does not notify of mere progress, so the job is looked at again.
  if (plan.sync.has_value()) again = std::min(again, now + options_.progress_interval);
  if (again == absl::InfiniteFuture()) return Result::Done();
  const absl::Duration rest = again - clock_->Now();
  // A time that stays in the past must not cause a busy loop.
  return Result::RequeueAfter(rest > absl::ZeroDuration() ? rest : options_.shortest_rest);
}

}  // namespace sluice::reconciler
