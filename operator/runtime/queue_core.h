// Which key is worked on next: the rules of the work queue, without threads.
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

// Three collections, and what holds between them after every call:
//   queue       the order in which keys wait; each of them is dirty and not processing;
//   dirty       keys that must be worked on; a dirty key is in the queue, or processing;
//   processing  keys that are worked on now; one that is dirty too is queued when it is done.
// So a key is never worked on twice at a time, no Add is lost, and Adds while a key waits are one.
// The order is first in, first out: a key that comes back at once waits behind all others. Only a
// namespace that has its share of keys at work (Options::max_per_namespace) is passed over.
//
// Delayed keys are no part of these: each waits for its earliest time, and is then added.
// Not thread-safe; `now` never goes back.
class QueueCore {
 public:
  struct Options {
    // Failure n of a key in a row delays it by initial × 2^(n-1), at most max.
    absl::Duration initial_backoff = absl::Milliseconds(5);
    absl::Duration max_backoff = absl::Minutes(5);
    // All rate-limited additions together: a token bucket.
    double tokens_per_second = 50;
    double burst = 300;
    // Keys of one namespace that are worked on at a time; others of it wait, and keys behind them
    // do not. 0: as many as there are.
    int max_per_namespace = 0;
  };

  explicit QueueCore(const Options& options) : options_(options), tokens_(options.burst) {}

  void Add(const Key& key, absl::Time now);
  // At once for a delay that is not positive. Of several, the earliest counts.
  void AddAfter(const Key& key, absl::Duration delay, absl::Time now);
  // After the larger of the key's own backoff and the bucket's wait; returns it.
  absl::Duration AddRateLimited(const Key& key, absl::Time now);
  // The key's failures are over. A delay that is running is not ended by this.
  void Forget(const Key& key) { failures_.erase(key); }
  int Failures(const Key& key) const;

  // The next key, which is processing from now on; with how long it has waited in the queue.
  struct Taken {
    Key key;
    absl::Duration waited;
  };
  std::optional<Taken> Take(absl::Time now);
  // The key, which is processing, was worked on.
  void Done(const Key& key, absl::Time now);

  // When the next delayed key is due; infinite future without one.
  absl::Time NextDue() const;

  size_t depth() const { return queue_.size(); }
  size_t delayed() const { return due_.size(); }
  size_t processing() const { return processing_.size(); }
  bool IsConsistent() const;  // the invariants above; for tests

 private:
  struct Waiting {
    Key key;
    absl::Time since;
  };

  bool HasRoom(const std::string& ns) const;
  void MoveDue(absl::Time now);
  absl::Duration TakeToken(absl::Time now);

  const Options options_;
  std::deque<Waiting> queue_;
  absl::flat_hash_set<Key> dirty_;
  absl::flat_hash_set<Key> processing_;
  absl::flat_hash_map<std::string, int> processing_of_;  // keys by namespace; never 0
  std::set<std::pair<absl::Time, Key>> due_;
  absl::flat_hash_map<Key, absl::Time> due_at_;
  absl::flat_hash_map<Key, int> failures_;
  double tokens_;  // below 0: promised to keys that wait for them
  absl::Time tokens_at_ = absl::InfinitePast();
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_QUEUE_CORE_H_
