#ifndef SLUICE_SERVICES_PS_CORE_PROGRESS_REPORT_H_
#define SLUICE_SERVICES_PS_CORE_PROGRESS_REPORT_H_

#include "absl/time/time.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/membership/registration.h"
#include "services/ps/core/state/shard_state.h"
#include "services/ps/core/training/asynchronous.h"
#include "services/ps/core/training/synchronous.h"

namespace sluice::ps {

// Reports the shard's progress (ShardProgress) at most once per progress_interval, and at once at
// the end of the job, or where training is held.
class ProgressReport {
 public:
  // All must outlive it.
  ProgressReport(const ShardState* state, Outbox* out, const Registration* registration,
                 const Synchronous* synchronous, const Asynchronous* asynchronous)
      : state_(*state),
        out_(*out),
        registration_(*registration),
        synchronous_(*synchronous),
        asynchronous_(*asynchronous) {}

  // Something has changed.
  void Want() { due_ = true; }
  // Sends the report if something has changed and the interval has passed; at once at the last
  // step, or while asynchronous training is held. Without a view or a connection the report stays
  // due.
  void SendIfDue();
  // The shard's last report: a job that ends is known with the steps since the last interval.
  void SendLast();
  // When SendIfDue may send next; InfiniteFuture if nothing is due.
  absl::Time NextDeadline() const;

 private:
  // Whether a report is due and can be sent.
  bool IsWanted() const {
    return due_ && registration_.connected() && state_.view().has_value() && !out_.exited();
  }
  // For assertions: no owned partition is behind the committed version or more than one step ahead
  // of another.
  bool VersionsAreInOrder() const;

  const ShardState& state_;
  Outbox& out_;
  const Registration& registration_;
  const Synchronous& synchronous_;
  const Asynchronous& asynchronous_;
  bool due_ = false;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_PROGRESS_REPORT_H_
