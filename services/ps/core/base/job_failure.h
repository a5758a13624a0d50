#ifndef SLUICE_SERVICES_PS_CORE_BASE_JOB_FAILURE_H_
#define SLUICE_SERVICES_PS_CORE_BASE_JOB_FAILURE_H_

#include <string>
#include <utility>

#include "proto/control.pb.h"
#include "services/common/check.h"
#include "services/ps/core/base/outbox.h"

namespace sluice::ps {

// The reason why the job cannot continue. From the first one on, no step closes and no update is
// applied any more in the attempt. The coordinator ends the job with this reason.
class JobFailure {
 public:
  // `out` must outlive it.
  explicit JobFailure(Outbox* out) : out_(*out) {}

  // Whether Fail was called in this attempt.
  bool failed() const { return !reason_.empty(); }
  // Reports the first reason; later ones have no effect.
  void Fail(std::string reason) {
    if (failed()) return;
    SLUICE_DCHECK(!reason.empty(), "a failure has a reason: a shard without one continues");
    reason_ = std::move(reason);
    Report();
  }
  // Reports it, on a new connection too. Requires failed().
  void Report() const {
    v1::MemberMessage message;
    message.mutable_failure()->set_reason(reason_);
    out_.Report(std::move(message));
  }

 private:
  Outbox& out_;
  std::string reason_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_BASE_JOB_FAILURE_H_
