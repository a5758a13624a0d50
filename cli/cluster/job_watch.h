// Watches one TrainingJob: the job, its pods and its events.
#ifndef SLUICE_CLI_CLUSTER_JOB_WATCH_H_
#define SLUICE_CLI_CLUSTER_JOB_WATCH_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/client.h"
#include "operator/kube/object.h"
#include "operator/kube/reflector.h"
#include "services/common/threads/mutex.h"

namespace sluice::cli {

// The changes since the previous JobNews.
struct JobNews {
  bool job_listed = false;                      // the server has answered, and `job` is valid
  kube::Json job;                               // the current version; null: the job does not exist
  std::optional<std::vector<kube::Json>> pods;  // all pods, if any changed
  std::vector<kube::Json> old_events;           // from before the watch, oldest first
  std::vector<kube::Json> events;               // since then: new or repeated
  // Watches that broke ("pods", "events", "trainingjobs"), each with the error; OK: it works again.
  std::map<std::string, absl::Status> problems;

  // Whether Wait has nothing to return.
  bool empty() const {
    return !job_listed && !pods.has_value() && old_events.empty() && events.empty() &&
           problems.empty();
  }
};

// Runs three watches, each on its own thread. A watch that breaks resumes where it was, and retries
// without a limit. At most kMaxEvents events wait to be taken; the oldest are dropped.
class JobWatch {
 public:
  static constexpr size_t kMaxEvents = 1000;

  // `client` outlives this.
  JobWatch(kube::Client* client, const kube::ObjectKey& job);
  // Cancels the watches and waits for them.
  ~JobWatch();

  // Blocks until there is news, Wake is called, or the timeout expires. Empty if there is no news.
  // One thread.
  JobNews Wait(absl::Duration timeout);
  // Any thread. Ends the Wait in progress, or the next one, at once.
  void Wake();

 private:
  // Receives one watch's objects, on its thread, and adds them to the news.
  class Sink;
  // Starts one watch. `name` is the one by which its problems are reported.
  void Start(const std::string& name, kube::ResourceType type, kube::Reflector::Options options);
  // A watch has broken or works again: reports the change, once.
  void SetProblem(const std::string& name, const absl::Status& status);

  kube::Client* const client_;
  kube::Cancellation cancellation_;
  Mutex mutex_;
  CondVar changed_;
  JobNews news_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<kube::ObjectKey, kube::Json> pods_ ABSL_GUARDED_BY(mutex_);
  bool events_listed_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, absl::Status> problems_ ABSL_GUARDED_BY(mutex_);  // the current ones
  std::vector<std::unique_ptr<Sink>> sinks_;
  std::vector<std::unique_ptr<kube::Reflector>> reflectors_;
  std::vector<std::thread> threads_;
};

// When an event happened; for a repeated event, the last time.
absl::Time TimeOfEvent(const kube::Json& event);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_JOB_WATCH_H_
