#include "operator/runtime/queue_core.h"

#include <algorithm>
#include <cmath>

#include "services/common/check.h"

namespace sluice::runtime {

void QueueCore::Add(const Key& key, absl::Time now) {
  if (!dirty_.insert(key).second) return;
  if (!processing_.contains(key)) queue_.push_back({key, now});
  SLUICE_DCHECK(IsConsistent(), "a key that is added is queued, or will be when it is done");
}

void QueueCore::AddAfter(const Key& key, absl::Duration delay, absl::Time now) {
  if (delay <= absl::ZeroDuration()) {
    Add(key, now);
    return;
  }

  const absl::Time due = now + delay;
  const auto [found, is_new] = due_at_.try_emplace(key, due);
  if (!is_new) {
    if (found->second <= due) return;
    due_.erase({found->second, key});
    found->second = due;
  }
  due_.insert({due, key});
}

absl::Duration QueueCore::TakeToken(absl::Time now) {
  if (tokens_at_ != absl::InfinitePast() && now > tokens_at_) {
    tokens_ = std::min(options_.burst, tokens_ + absl::ToDoubleSeconds(now - tokens_at_) *
                                                     options_.tokens_per_second);
  }
  tokens_at_ = std::max(tokens_at_, now);
  tokens_ -= 1;
  if (tokens_ >= 0) return absl::ZeroDuration();
  return absl::Seconds(-tokens_ / options_.tokens_per_second);
}

absl::Duration QueueCore::AddRateLimited(const Key& key, absl::Time now) {
  const int failures = failures_[key]++;
  // 2^40 × the smallest backoff exceeds any bound.
  const absl::Duration own =
      std::min(options_.max_backoff, options_.initial_backoff * std::exp2(std::min(failures, 40)));
  const absl::Duration delay = std::max(own, TakeToken(now));
  AddAfter(key, delay, now);
  return delay;
}

int QueueCore::Failures(const Key& key) const {
  const auto found = failures_.find(key);
  return found == failures_.end() ? 0 : found->second;
}

void QueueCore::MoveDue(absl::Time now) {
  while (!due_.empty() && due_.begin()->first <= now) {
    const auto [due, key] = *due_.begin();
    due_.erase(due_.begin());
    due_at_.erase(key);
    Add(key, due);
  }
}

bool QueueCore::HasRoom(const std::string& ns) const {
  if (options_.max_per_namespace <= 0) return true;
  const auto found = processing_of_.find(ns);
  return found == processing_of_.end() || found->second < options_.max_per_namespace;
}

std::optional<QueueCore::Taken> QueueCore::Take(absl::Time now) {
  MoveDue(now);
  const auto first = std::find_if(queue_.begin(), queue_.end(), [this](const Waiting& waiting) {
    return HasRoom(waiting.key.ns);
  });

  if (first == queue_.end()) return std::nullopt;
  Waiting next = std::move(*first);
  queue_.erase(first);

  dirty_.erase(next.key);
  processing_.insert(next.key);
  ++processing_of_[next.key.ns];

  SLUICE_DCHECK(IsConsistent(), "a key that is taken is worked on by one thread");
  return Taken{std::move(next.key), now - next.since};
}

void QueueCore::Done(const Key& key, absl::Time now) {
  if (processing_.erase(key) == 0) return;
  if (const auto found = processing_of_.find(key.ns); --found->second == 0) {
    processing_of_.erase(found);
  }
  if (dirty_.contains(key)) queue_.push_back({key, now});
  SLUICE_DCHECK(IsConsistent(), "no key that was added during the work is lost");
}

absl::Time QueueCore::NextDue() const {
  return due_.empty() ? absl::InfiniteFuture() : due_.begin()->first;
}

bool QueueCore::IsConsistent() const {
  absl::flat_hash_set<Key> queued;
  for (const Waiting& waiting : queue_) {
    if (!queued.insert(waiting.key).second) return false;
    if (!dirty_.contains(waiting.key) || processing_.contains(waiting.key)) return false;
  }
  for (const Key& key : dirty_) {
    if (!queued.contains(key) && !processing_.contains(key)) return false;
  }
  return due_.size() == due_at_.size();
}

}  // namespace sluice::runtime
