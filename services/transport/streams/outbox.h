#ifndef SLUICE_SERVICES_TRANSPORT_STREAMS_OUTBOX_H_
#define SLUICE_SERVICES_TRANSPORT_STREAMS_OUTBOX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/threads/mutex.h"

namespace sluice::internal {

// The items that wait to be sent on one stream, and the decision which operation on the stream
// comes next.
//
// Intuition. A gRPC stream takes one write at a time, then one final operation, and nothing after
// it. Every call here may come from any thread and returns at once with the action that its caller,
// and only its caller, must take now. So when the stream is free, a write starts on the thread that
// sends (no thread hop); when it is not, writes follow each other on the stream's own thread. No
// lock is held while gRPC is called.
//
// Waiting items may be joined into one when their turn comes (`join`).
//
//   idle --Push--> writing --Sent--> writing (next) or idle
//   idle --Close or Break--> finished;  writing --Close, Break--> writing --Sent (queue empty, or
//   broken)--> finished
template <typename T>
class Outbox {
 public:
  // The action that the caller takes at once.
  enum class Action {
    kNothing,
    kWrite,     // start writing front(); then call Sent
    kFinish,    // the final operation; returned once
    kCutLater,  // closing, but a write is under way: bound its time
  };

  // Moves `next` into `front` and returns true if they can go out as one.
  using Join = std::function<bool(T* front, T* next)>;

  // `on_queued` is called with each change of the queued cost, on any thread, without a lock; may
  // be null. `join` is called with a lock held, for an item that is about to be written and the one
  // behind it; null: items go out one by one.
  Outbox(size_t max_cost, std::function<void(int64_t)> on_queued, Join join = nullptr)
      : max_cost_(max_cost), on_queued_(std::move(on_queued)), join_(std::move(join)) {}

  // For a stream that cannot be written to yet: counts as a write under way until Started.
  void HoldUntilStarted() {
    MutexLock lock(&mutex_);
    writing_ = true;
  }
  // The stream can be written to now.
  Action Started() {
    MutexLock lock(&mutex_);
    return Next();
  }

  // Queues, or drops if the stream is closing. Over the bound the stream breaks with
  // RESOURCE_EXHAUSTED. Goes out with what was queued before it.
  Action Push(T item, size_t cost) { return Enqueue(std::move(item), cost, 0, 0); }

  // As Push, but on a free stream items wait until together they weigh `enough`: they go out with
  // the next Push or Flush, or with the Queue that reaches that weight.
  Action Queue(T item, size_t cost, size_t weight, size_t enough) {
    return Enqueue(std::move(item), cost, weight, enough);
  }
  // Sends the waiting items, if together they weigh at least `worth`.
  Action Flush(size_t worth = 0) {
    MutexLock lock(&mutex_);
    return writing_ || queue_.empty() || weight_ < worth ? Action::kNothing : Next();
  }
  // The write has ended, well or not.
  Action Sent() {
    Entry sent;  // destroyed without the lock
    Action action;
    {
      MutexLock lock(&mutex_);
      std::swap(sent, front_);
      queued_ -= sent.cost;
      action = Next();
    }
    Report(-static_cast<int64_t>(sent.cost));
    return action;
  }

  // Takes no more items; finishes after the queued ones. Of several reasons the first failure
  // counts; OK only without one.
  Action Close(absl::Status why) {
    MutexLock lock(&mutex_);
    NoteReason(std::move(why));
    return closing_ ? Action::kNothing : StartClosing();
  }

  // Drops the queued items and finishes after the write under way.
  Action Break(absl::Status why) {
    Action action;
    int64_t change;
    Entries dropped;
    {
      MutexLock lock(&mutex_);
      NoteReason(std::move(why));
      change = -Drop(&dropped);
      action = closing_ ? Action::kNothing : StartClosing();
    }
    Report(change);
    return action;
  }

  // The item to write after kWrite; stays until Sent.
  T& front() ABSL_NO_THREAD_SAFETY_ANALYSIS { return front_.item; }

  // Whether the end has been decided: no further item is taken.
  bool closing() const {
    MutexLock lock(&mutex_);
    return closing_;
  }
  // The first failure; OK without one. The status with which the stream ends.
  absl::Status why() const {
    MutexLock lock(&mutex_);
    return why_;
  }
  // Cost of the items pushed and not yet Sent or dropped.
  size_t queued() const {
    MutexLock lock(&mutex_);
    return queued_;
  }

 private:
  // An item and its share of max_cost.
  struct Entry {
    T item{};
    size_t cost = 0;
  };
  using Entries = std::deque<Entry>;

  // Checks the bound, queues the item and decides whether to write, under one lock.
  Action Enqueue(T item, size_t cost, size_t weight, size_t enough) {
    Action action = Action::kNothing;
    int64_t change = 0;
    Entries dropped;
    {
      MutexLock lock(&mutex_);
      if (closing_) return Action::kNothing;
      if (cost > max_cost_ - std::min(queued_, max_cost_)) {
        NoteReason(absl::ResourceExhaustedError(
            absl::StrCat("what waits to be sent would pass the bound of ", max_cost_,
                         "; the peer reads too slowly")));
        change = -Drop(&dropped);
        action = StartClosing();
      } else {
        queue_.push_back({std::move(item), cost});
        queued_ += cost;
        change = static_cast<int64_t>(cost);
        weight_ += weight;
        if (!writing_ && weight_ >= enough) action = Next();
      }
    }
    Report(change);
    return action;
  }

  // Takes no more items. The next action follows the write under way, or is due now.
  Action StartClosing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    closing_ = true;
    return writing_ ? Action::kCutLater : Next();
  }

  // The stream is free: starts the next item, or the end.
  Action Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = !queue_.empty();
    weight_ = 0;
    if (writing_) {
      front_ = std::move(queue_.front());
      queue_.pop_front();
      while (join_ && !queue_.empty() && join_(&front_.item, &queue_.front().item)) {
        front_.cost += queue_.front().cost;
        queue_.pop_front();
      }
      return Action::kWrite;
    }
    if (!closing_ || finished_) return Action::kNothing;
    finished_ = true;
    return Action::kFinish;
  }

  // Takes the waiting items out of the queue, to be destroyed without the lock, and returns their
  // cost.
  int64_t Drop(Entries* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    dropped->swap(queue_);
    int64_t cost = 0;
    for (const Entry& entry : *dropped) cost += static_cast<int64_t>(entry.cost);
    queued_ -= cost;
    return cost;
  }

  // The first failure counts; later ones are often its consequences.
  void NoteReason(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (why_.ok()) why_ = std::move(why);
  }

  // Calls `on_queued` with a change. Without the lock: it may take locks of its own.
  void Report(int64_t change) {
    if (on_queued_ && change != 0) on_queued_(change);
  }

  const size_t max_cost_;
  const std::function<void(int64_t)> on_queued_;
  const Join join_;
  mutable Mutex mutex_;  // protects everything below; neither gRPC nor on_queued_ is called with it
  Entries queue_ ABSL_GUARDED_BY(mutex_);
  Entry front_ ABSL_GUARDED_BY(mutex_);  // while writing_: owned by the writer
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t weight_ ABSL_GUARDED_BY(mutex_) = 0;  // of the waiting items; unused while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::internal

#endif  // SLUICE_SERVICES_TRANSPORT_STREAMS_OUTBOX_H_
