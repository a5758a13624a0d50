// Events (events.k8s.io/v1) for users: `kubectl describe` shows them.
#ifndef SLUICE_OPERATOR_RUNTIME_EVENTS_H_
#define SLUICE_OPERATOR_RUNTIME_EVENTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/client.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::runtime {

// The content of an event. Two that agree are repetitions of one event; if they are about a pod,
// their notes may differ.
struct EventRecord {
  enum class Type { kNormal, kWarning };
  Type type = Type::kNormal;
  std::string reason;  // "WorkerReplaced": one word, for machines; at most 128 bytes
  std::string action;  // "ReplaceWorker": what the controller did, or refused to do
  std::string note;    // a sentence; truncated to 1024 bytes
  std::string pod;     // the pod that it is about, in the object's namespace; may be empty
};

// Records events, and sends them when SendPending is called. An event that happens again within
// `series_window` becomes a series: one object, whose count and last time are written at most every
// `series_period`. A token bucket for each regarded object limits new events: further ones are
// dropped and counted. At most `max_pending` wait to be sent; then the oldest are dropped (and
// counted).
class EventRecorder {
 public:
  // New events about one object: `burst` at once, and then one every `token_every`.
  struct Options {
    std::string controller;  // "sluice.dev/operator": reportingController
    std::string instance;    // reportingInstance: the pod
    absl::Duration series_window = absl::Minutes(6);
    absl::Duration series_period = absl::Minutes(1);
    double burst = 25;
    // Events about pods leave this many tokens for events about the object itself.
    double reserve = 10;
    absl::Duration token_every = absl::Minutes(5);
    size_t max_pending = 1000;
  };

  // `clock` outlives this.
  EventRecorder(Options options, const Clock* clock);

  // `regarding`: the object, with apiVersion, kind and metadata. Any thread; never blocks.
  void Record(const kube::Json& regarding, const EventRecord& record);

  // Sends the events that are due; Flush also sends those that are not yet due (counts of series).
  // Stops at the first call that fails for a reason that a retry may overcome, and keeps the rest;
  // a refused event is dropped. Blocks; one thread at a time.
  absl::Status SendPending(kube::Client* client);
  absl::Status Flush(kube::Client* client);

  // How many events were dropped: over a limit, or refused by the API server. Any thread.
  int64_t dropped() const;

 private:
  // An event and its repetitions.
  struct Series {
    std::string name;  // of the Event object
    std::string ns;
    int64_t count = 1;
    absl::Time last;
    int64_t sent_count = 0;  // 0: not created yet
    absl::Time sent_at = absl::InfinitePast();
    kube::Json object;
  };
  // The tokens of one regarded object.
  struct Bucket {
    double tokens;
    absl::Time at;
  };

  // Takes a token for a new event about this object, if at least `reserve` then remain.
  bool TakeToken(const std::string& uid, double reserve, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Drops series that are over and sent, and buckets that are full.
  void Expire(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The object of events.k8s.io/v1, without its series.
  kube::Json MakeObject(const kube::Json& regarding, const EventRecord& record,
                        const std::string& name, const std::string& ns, absl::Time now) const;
  // Sends what is due; `all`: everything that was not sent.
  absl::Status Send(kube::Client* client, bool all);
  // Creates the event, or updates its series.
  static absl::Status SendOne(kube::Client* client, const Series& series);

  const Options options_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  std::map<std::string, Series> series_
      ABSL_GUARDED_BY(mutex_);  // by the fields that make events the same
  std::map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mutex_);  // by the regarded uid
  int64_t last_number_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_EVENTS_H_
