// Chooses the next key to work on: the logic of the work queue, without threads.
#ifndef SLUICE_OPERATOR_RUNTIME_QUEUE_CORE_H_
#define SLUICE_OPERATOR_RUNTIME_QUEUE_CORE_H_

#include <cstddef>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "operator/kube/object.h"

namespace sluice::runtime {

using Key = kube::ObjectKey;

// Three collections, and the invariants that hold after every call:
//   queue       the order of waiting keys; each of them is dirty and not processing;
//   dirty       keys to be worked on; a dirty key is in the queue, or processing;
//   processing  keys being worked on; one that is also dirty is queued when it is done.
// So no two threads work on the same key, no Add is lost, and all Adds while a key waits count as
// one. The order is first in, first out: a key that is added again waits behind all others. Only
// keys of a namespace that has used its share (Options::max_per_namespace) are passed over.
//
// Delayed keys are in none of these: each waits for its earliest time, and is then added. Not
// thread-safe; `now` never decreases.
class QueueCore {
 public:
  struct Options {
    // The n-th failure of a key in a row delays it by initial × 2^(n-1), at most max.
    absl::Duration initial_backoff = absl::Milliseconds(5);
    absl::Duration max_backoff = absl::Minutes(5);
    // Limits all rate-limited additions together: a token bucket.
    double tokens_per_second = 50;
    double burst = 300;
    // The number of keys of one namespace that are worked on at a time; further keys of that
    // namespace wait without blocking the keys behind them. 0: no limit.
    int max_per_namespace = 0;
  };

  explicit QueueCore(const Options& options) : options_(options), tokens_(options.burst) {}

  // Queues the key, unless it waits already. A key that is processing is queued at its Done.
  void Add(const Key& key, absl::Time now);
  // Immediately, unless the delay is positive. Of several times, the earliest counts.
  void AddAfter(const Key& key, absl::Duration delay, absl::Time now);
  // After the larger of the key's own backoff and the bucket's delay; returns that.
  absl::Duration AddRateLimited(const Key& key, absl::Time now);
  // Resets the key's failures. A running delay does not end early.
  void Forget(const Key& key) { failures_.erase(key); }
  // Failures in a row since the last Forget.
  int Failures(const Key& key) const;

  // Returns the next key, which is processing from now on, and how long it has waited in the queue.
  struct Taken {
    Key key;
    absl::Duration waited;
  };
  std::optional<Taken> Take(absl::Time now);
  // The work on this key, which was processing, has ended.
  void Done(const Key& key, absl::Time now);

  // When the next delayed key is due; infinite future if there is none.
  absl::Time NextDue() const;

  // For metrics: keys that wait, keys that are not due yet, keys that are processing.
  size_t depth() const { return queue_.size(); }
  size_t delayed() const { return due_.size(); }
  size_t processing() const { return processing_.size(); }

 private:
  // A queued key, and since when.
  struct Waiting {
    Key key;
    absl::Time since;
  };

  bool IsConsistent() const;  // the invariants above
  // Whether one more key of the namespace may be processing (max_per_namespace).
  bool HasRoom(const std::string& ns) const;
  // Queues the delayed keys that are due.
  void MoveDue(absl::Time now);
  // Takes a token; returns the delay until the bucket has one.
  absl::Duration TakeToken(absl::Time now);

  const Options options_;
  std::deque<Waiting> queue_;
  absl::flat_hash_set<Key> dirty_;
  absl::flat_hash_set<Key> processing_;
  absl::flat_hash_map<std::string, int> processing_of_;  // keys by namespace; never 0
  std::set<std::pair<absl::Time, Key>> due_;
  absl::flat_hash_map<Key, absl::Time> due_at_;
  absl::flat_hash_map<Key, int> failures_;
  double tokens_;  // below 0: promised to waiting keys
  absl::Time tokens_at_ = absl::InfinitePast();
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_QUEUE_CORE_H_
