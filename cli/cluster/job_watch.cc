#include "cli/cluster/job_watch.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "operator/reconciler/names.h"

namespace sluice::cli {

using kube::Json;
using kube::WatchEvent;

namespace {

// Events of the core group: the role view of a namespace may read these.
const kube::ResourceType& Events() {
  static const auto* const type = new kube::ResourceType{"", "v1", "events", "Event", true};
  return *type;
}

}  // namespace

absl::Time TimeOfEvent(const Json& event) {
  for (const absl::Time time :
       {kube::DecodeTime(kube::GetString(event, {"series", "lastObservedTime"})),
        kube::DecodeTime(kube::GetString(event, {"lastTimestamp"})),
        kube::DecodeTime(kube::GetString(event, {"eventTime"})),
        kube::DecodeTime(kube::GetString(event, {"metadata", "creationTimestamp"}))}) {
    if (time != absl::InfinitePast()) return time;
  }
  return absl::InfinitePast();
}

// Takes the changes of one watch, on that watch's thread.
class JobWatch::Sink final : public kube::ReflectorSink {
 public:
  Sink(JobWatch* watch, std::string name) : watch_(watch), name_(std::move(name)) {}

  void Replace(std::vector<Json> objects) override {
    watch_->SetProblem(name_, absl::OkStatus());
    MutexLock lock(&watch_->mutex_);

    JobNews& news = watch_->news_;
    if (name_ == "trainingjobs") {
      news.job_listed = true;
      news.job = objects.empty() ? Json() : std::move(objects.front());
    } else if (name_ == "pods") {
      watch_->pods_.clear();
      for (Json& pod : objects) {
        const kube::ObjectKey key = kube::KeyOf(pod);
        watch_->pods_[key] = std::move(pod);
      }
      PublishPods();
    } else {
      std::stable_sort(objects.begin(), objects.end(), [](const Json& a, const Json& b) {
        return TimeOfEvent(a) < TimeOfEvent(b);
      });
      std::vector<Json>* const events =
          std::exchange(watch_->events_listed_, true) ? &news.events : &news.old_events;
      for (Json& event : objects) AddEvent(std::move(event), events);
    }

    watch_->changed_.SignalAll();
  }

  void Apply(WatchEvent event) override {
    watch_->SetProblem(name_, absl::OkStatus());
    MutexLock lock(&watch_->mutex_);

    const bool gone = event.type == WatchEvent::Type::kDeleted;
    if (name_ == "trainingjobs") {
      watch_->news_.job_listed = true;
      watch_->news_.job = gone ? Json() : std::move(event.object);
    } else if (name_ == "pods") {
      const kube::ObjectKey key = kube::KeyOf(event.object);
      if (gone) {
        watch_->pods_.erase(key);
      } else {
        watch_->pods_[key] = std::move(event.object);
      }
      PublishPods();
    } else if (!gone) {
      AddEvent(std::move(event.object), &watch_->news_.events);
    }

    watch_->changed_.SignalAll();
  }

 private:
  void PublishPods() ABSL_EXCLUSIVE_LOCKS_REQUIRED(watch_->mutex_) {
    std::vector<Json> pods;
    pods.reserve(watch_->pods_.size());
    for (const auto& [key, pod] : watch_->pods_) pods.push_back(pod);
    watch_->news_.pods = std::move(pods);
  }
  static void AddEvent(Json event, std::vector<Json>* events) {
    if (events->size() >= kMaxEvents) events->erase(events->begin());
    events->push_back(std::move(event));
  }

  JobWatch* const watch_;
  const std::string name_;
};

JobWatch::JobWatch(kube::Client* client, const kube::ObjectKey& job) : client_(client) {
  kube::Reflector::Options options;
  options.ns = job.ns;
  options.max_backoff = absl::Seconds(5);  // a user is waiting

  kube::Reflector::Options jobs = options;
  jobs.field_selector = absl::StrCat("metadata.name=", job.name);
  Start("trainingjobs", reconciler::TrainingJobs(), std::move(jobs));

  kube::Reflector::Options pods = options;
  pods.label_selector = absl::StrCat(reconciler::kJobLabel, "=", job.name);
  Start("pods", reconciler::Pods(), std::move(pods));

  kube::Reflector::Options events = options;
  events.field_selector =
      absl::StrCat("involvedObject.kind=TrainingJob,involvedObject.name=", job.name);
  Start("events", Events(), std::move(events));
}

JobWatch::~JobWatch() {
  cancellation_.Cancel();
  for (std::thread& thread : threads_) thread.join();
}

void JobWatch::Start(const std::string& name, kube::ResourceType type,
                     kube::Reflector::Options options) {
  auto random = std::make_shared<std::mt19937_64>(std::random_device()());
  options.random = [random] { return std::uniform_real_distribution<double>(0, 1)(*random); };
  sinks_.push_back(std::make_unique<Sink>(this, name));
  reflectors_.push_back(std::make_unique<kube::Reflector>(client_, std::move(type),
                                                          std::move(options), sinks_.back().get()));
  kube::Reflector* const reflector = reflectors_.back().get();
  threads_.emplace_back([this, name, reflector] {
    reflector->Run(&cancellation_,
                   [this, name](const absl::Status& status) { SetProblem(name, status); });
  });
}

void JobWatch::SetProblem(const std::string& name, const absl::Status& status) {
  MutexLock lock(&mutex_);

  const auto known = problems_.find(name);
  if (status.ok()) {
    if (known == problems_.end()) return;
    problems_.erase(known);
  } else {
    const bool same = known != problems_.end() && known->second.code() == status.code();
    if (same) return;
    problems_[name] = status;
  }

  news_.problems[name] = status;
  changed_.SignalAll();
}

JobNews JobWatch::Wait(absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  while (news_.empty() && !woken_) {
    if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
  }
  woken_ = false;
  return std::exchange(news_, JobNews());
}

void JobWatch::Wake() {
  MutexLock lock(&mutex_);
  woken_ = true;
  changed_.SignalAll();
}

}  // namespace sluice::cli
