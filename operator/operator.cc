#include "operator/operator.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include "operator/reconciler/names.h"
#include "operator/reconciler/pod_status.h"

namespace sluice {

using kube::Json;

// Puts a job into the queue when the job changes, or an object with its label.
class Operator::Handler final : public runtime::InformerHandler {
 public:
  explicit Handler(Operator* owner) : owner_(owner) {}
  void OnAdd(const runtime::ObjectPtr& object) override { Enqueue(*object, false); }
  void OnUpdate(const runtime::ObjectPtr&, const runtime::ObjectPtr& after) override {
    Enqueue(*after, false);
  }
  void OnDelete(const runtime::ObjectPtr& object) override { Enqueue(*object, true); }

 private:
  void Enqueue(const Json& object, bool gone) {
    const kube::ObjectKey key = kube::KeyOf(object);
    const std::string job = kube::GetString(object, {"metadata", "labels", reconciler::kJobLabel});
    const bool is_job = kube::GetString(object, {"kind"}) == reconciler::TrainingJobs().kind;
    if (is_job) {
      owner_->Enqueue(key);
    } else if (!job.empty() && !gone && IsPodStarting(object)) {
      owner_->queue()->AddAfter({key.ns, job}, owner_->options_.gather_pod_news);
    } else if (!job.empty()) {
      owner_->Enqueue({key.ns, job});
    }
  }

  // A pod, other than the coordinator's, that is not being deleted and in which no container has
  // ended. A container may have ended while the pod's phase is still Running, so their states are
  // read too.
  static bool IsPodStarting(const Json& object) {
    if (kube::GetString(object, {"kind"}) != reconciler::Pods().kind) return false;
    if (kube::IsBeingDeleted(object)) return false;
    const std::optional<policy::Replica> replica = reconciler::ReplicaOf(object);
    if (!replica.has_value() || replica->role == v1::COORDINATOR) return false;
    const std::string phase = kube::GetString(object, {"status", "phase"});
    if (!phase.empty() && phase != "Pending" && phase != "Running") return false;
    const Json& containers = kube::GetList(object, {"status", "containerStatuses"});
    return std::none_of(containers.begin(), containers.end(), [](const Json& container) {
      return kube::Find(container, {"state", "terminated"}) != nullptr;
    });
  }

  Operator* const owner_;
};

// Puts the objects of one namespace into a cache that other namespaces share.
class Operator::Sink final : public kube::ReflectorSink {
 public:
  Sink(std::string ns, runtime::Informer* informer) : ns_(std::move(ns)), informer_(informer) {}

  void Replace(std::vector<Json> objects) override {
    if (ns_.empty()) {
      informer_->Replace(std::move(objects));
    } else {
      std::set<kube::ObjectKey> there;
      for (Json& object : objects) {
        there.insert(kube::KeyOf(object));
        informer_->Apply({kube::WatchEvent::Type::kModified, std::move(object)});
      }
      for (const runtime::ObjectPtr& object : informer_->List(ns_)) {
        if (there.count(kube::KeyOf(*object)) == 0) {
          informer_->Apply({kube::WatchEvent::Type::kDeleted, *object});
        }
      }
    }

    synced_ = true;
    refused_ = false;
  }
  void Apply(kube::WatchEvent event) override { informer_->Apply(std::move(event)); }
  bool synced() const { return synced_; }
  bool refused() const { return refused_; }
  const std::string& ns() const { return ns_; }
  // Notes a round that failed. If the API server refuses the list, it does not arrive, and
  // HasSynced does not wait for it. The objects in the cache stay.
  void Note(const absl::Status& status) {
    const bool refused = absl::IsPermissionDenied(status) || absl::IsNotFound(status);
    if (!ns_.empty() && refused) refused_ = true;
  }

 private:
  const std::string ns_;
  runtime::Informer* const informer_;
  std::atomic<bool> synced_{false};
  std::atomic<bool> refused_{false};
};

// Delays a job's reconciliation until all lists of its namespace have arrived: before that, the
// caches may have only some of its pods.
class Operator::Gate final : public runtime::Reconciler {
 public:
  Gate(const Operator* owner, runtime::Reconciler* next) : owner_(owner), next_(next) {}

  runtime::Result Reconcile(const runtime::Key& key) override {
    constexpr absl::Duration kRetryAfter = absl::Seconds(5);
    if (!owner_->HasListed(key.ns)) return runtime::Result::RequeueAfter(kRetryAfter);
    return next_->Reconcile(key);
  }

 private:
  const Operator* const owner_;
  runtime::Reconciler* const next_;
};

namespace {

void StripPod(Json* pod) {
  runtime::StripManagedFields(pod);
  reconciler::StripPod(pod);
}

}  // namespace

runtime::Informer* Operator::AddCache(kube::Client* reads, const kube::ResourceType& type) {
  const bool is_job = &type == &reconciler::TrainingJobs();
  runtime::Informer::Options options;
  if (is_job) options.resync = options_.resync;
  options.indexes[reconciler::kControllerIndex] = runtime::IndexByController();
  if (&type == &reconciler::Pods()) {
    options.indexes[reconciler::kJobIndex] = runtime::IndexByLabel(reconciler::kJobLabel);
  }
  informers_.push_back(std::make_unique<runtime::Informer>(std::move(options)));
  runtime::Informer* informer = informers_.back().get();
  informer->AddHandler(handler_.get());

  std::vector<std::string> namespaces = options_.namespaces;
  if (namespaces.empty()) namespaces.push_back("");
  for (const std::string& ns : namespaces) {
    Source source{&type, informer, std::make_unique<Sink>(ns, informer), nullptr};
    kube::Reflector::Options reflector = options_.reflector;
    reflector.ns = ns;
    reflector.strip = &type == &reconciler::Pods() ? StripPod : runtime::StripManagedFields;
    if (!is_job) reflector.label_selector = reconciler::kJobLabel;
    source.reflector =
        std::make_unique<kube::Reflector>(reads, type, std::move(reflector), source.sink.get());
    sources_.push_back(std::move(source));
  }
  return informer;
}

Operator::Operator(Options options, kube::Client* reads, kube::Client* writes,
                   reconciler::Coordinators* coordinators, runtime::EventRecorder* events,
                   const Clock* clock)
    : options_(std::move(options)),
      clock_(clock),
      handler_(std::make_unique<Handler>(this)),
      creators_(options_.creators) {
  reconciler::Caches caches;
  caches.jobs = AddCache(reads, reconciler::TrainingJobs());
  caches.pods = AddCache(reads, reconciler::Pods());
  caches.services = AddCache(reads, reconciler::Services());
  caches.config_maps = AddCache(reads, reconciler::ConfigMaps());
  caches.secrets = AddCache(reads, reconciler::Secrets());
  caches.budgets = AddCache(reads, reconciler::DisruptionBudgets());
  caches.policies = AddCache(reads, reconciler::NetworkPolicies());

  reconciler::JobReconciler::Options reconciler = options_.reconciler;
  reconciler.pool = &creators_;
  reconciler_ = std::make_unique<reconciler::JobReconciler>(std::move(reconciler), writes, caches,
                                                            coordinators, events, clock);
  gate_ = std::make_unique<Gate>(this, reconciler_.get());
  controller_ = std::make_unique<runtime::Controller>(options_.controller, gate_.get(), clock,
                                                      options_.observer);
}

Operator::~Operator() { Stop(); }

void Operator::StartCaches(const WatchError& on_error) {
  for (Source& source : sources_) {
    threads_.emplace_back([this, &source, on_error] {
      source.reflector->Run(&cancellation_, [&](const absl::Status& status) {
        source.sink->Note(status);
        on_error(source.sink->ns(), source.type->resource, status);
      });
    });
  }
}

bool Operator::HasSynced() const {
  for (const Source& source : sources_) {
    if (!source.sink->synced() && !source.sink->refused()) return false;
  }
  return true;
}

bool Operator::HasListed(const std::string& ns) const {
  if (options_.namespaces.empty()) return true;  // the controllers start only after HasSynced
  return std::all_of(sources_.begin(), sources_.end(), [&](const Source& source) {
    return source.sink->ns() != ns || source.sink->synced();
  });
}

std::vector<std::string> Operator::refused_namespaces() const {
  std::set<std::string> refused;
  for (const Source& source : sources_) {
    if (source.sink->refused()) refused.insert(source.sink->ns());
  }
  return {refused.begin(), refused.end()};
}

void Operator::StartControllers() { controller_->Start(); }

void Operator::Stop() {
  controller_->Stop();
  cancellation_.Cancel();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Operator::SyncOnce() {
  for (Source& source : sources_) {
    const absl::Status status = source.reflector->Round(&cancellation_);
    if (!status.ok()) source.sink->Note(status);
  }
}

void Operator::Tick() {
  for (const auto& informer : informers_) informer->MaybeResync(clock_->Now());
}

}  // namespace sluice
