#ifndef SLUICE_OPERATOR_RECONCILE_LOG_H_
#define SLUICE_OPERATOR_RECONCILE_LOG_H_

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/runtime/controller.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice {

// Logs reconciliations that failed. A failure of a job is logged the first time, when the kind of
// error changes, and once in `every`. For all jobs together, at most `burst` lines are written at
// once, and then one in `line_every`. Any thread.
class ReconcileLog final : public runtime::ControllerObserver {
 public:
  struct Line {
    std::string job;  // "ns/name"
    std::string why;
    absl::Duration retry_in;  // zero: no retry until something changes
    int suppressed = 0;       // failures of all jobs since the previous line that were not logged
  };
  // `every`: of one job. The others are of all jobs together.
  struct Options {
    absl::Duration every = absl::Minutes(1);
    double burst = 20;
    absl::Duration line_every = absl::Seconds(1);
  };

  // `write` is called by the reconciling threads, possibly several at once, and without a lock.
  // `next` is notified of every reconciliation; it and `clock` outlive this.
  ReconcileLog(Options options, std::function<void(const Line&)> write,
               runtime::ControllerObserver* next, const Clock* clock);

  void OnReconciled(const runtime::Key& key, const runtime::Result& result, absl::Duration waited,
                    absl::Duration took, absl::Duration retry_in) override;

 private:
  // The last line about a job.
  struct Logged {
    absl::StatusCode code;
    absl::Time at;
  };

  // Whether this failure gets a line, which then counts against the limits.
  bool ShouldLog(const runtime::Key& key, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const std::function<void(const Line&)> write_;
  runtime::ControllerObserver* const next_;
  const Clock* const clock_;
  Mutex mutex_;  // protects what follows
  std::map<runtime::Key, Logged> logged_ ABSL_GUARDED_BY(mutex_);
  double tokens_ ABSL_GUARDED_BY(mutex_);
  absl::Time filled_ ABSL_GUARDED_BY(mutex_);
  int suppressed_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice

#endif  // SLUICE_OPERATOR_RECONCILE_LOG_H_
