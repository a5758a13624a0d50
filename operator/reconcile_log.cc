#include "operator/reconcile_log.h"

#include <algorithm>
#include <utility>

namespace sluice {

ReconcileLog::ReconcileLog(Options options, std::function<void(const Line&)> write,
                           runtime::ControllerObserver* next, const Clock* clock)
    : options_(options),
      write_(std::move(write)),
      next_(next),
      clock_(clock),
      tokens_(options.burst),
      filled_(clock->Now()) {}

bool ReconcileLog::ShouldLog(const runtime::Key& key, const absl::Status& status) {
  const absl::Time now = clock_->Now();

  // Forgets lines older than `every`, so these jobs are logged again.
  for (auto it = logged_.begin(); it != logged_.end();) {
    it = now - it->second.at >= options_.every ? logged_.erase(it) : std::next(it);
  }

  const auto logged = logged_.find(key);
  if (logged != logged_.end() && logged->second.code == status.code()) return false;

  tokens_ =
      std::min(options_.burst, tokens_ + absl::FDivDuration(now - filled_, options_.line_every));
  filled_ = now;

  if (tokens_ < 1) return false;
  tokens_ -= 1;
  logged_[key] = {status.code(), now};
  return true;
}

void ReconcileLog::OnReconciled(const runtime::Key& key, const runtime::Result& result,
                                absl::Duration waited, absl::Duration took,
                                absl::Duration retry_in) {
  next_->OnReconciled(key, result, waited, took, retry_in);
  if (result.status.ok()) return;

  int suppressed = 0;
  {
    MutexLock lock(&mutex_);
    if (!ShouldLog(key, result.status)) {
      ++suppressed_;
      return;
    }
    suppressed = std::exchange(suppressed_, 0);
  }

  write_({key.ToString(), result.status.ToString(), retry_in, suppressed});
}

}  // namespace sluice
