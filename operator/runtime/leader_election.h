// Which of several replicas acts, by a Lease (coordination.k8s.io/v1).
#ifndef SLUICE_OPERATOR_RUNTIME_LEADER_ELECTION_H_
#define SLUICE_OPERATOR_RUNTIME_LEADER_ELECTION_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/client.h"
#include "operator/kube/write_gate.h"
#include "services/common/clock.h"
#include "services/common/mutex.h"

namespace sluice::runtime {

// The idea (that of client-go): a candidate takes the Lease when its record has not changed for
// `lease_duration` of the candidate's own clock; clocks are never compared, only their rates need
// to agree. The leader renews every `retry_period`, and holds itself to be the leader for no longer
// than `renew_deadline` after it *began* its last successful renewal. That lies before the
// renewal's effect, which lies before any candidate saw it: so the leader stops `lease_duration` −
// `renew_deadline` before anybody can follow it, however long it was frozen, as long as it reads
// its clock before each write (Check).
//
// What this does not promise: a write that was sent right after Check may take effect late. That is
// why each write carries a precondition of its own.
class LeaderElector final : public kube::WriteGate {
 public:
  struct Options {
    kube::ObjectKey lease;
    // Of this process's run; never used by another (the pod's name and a random part).
    std::string identity;
    absl::Duration lease_duration = absl::Seconds(15);
    absl::Duration renew_deadline = absl::Seconds(10);
    absl::Duration retry_period = absl::Seconds(2);
  };

  // InvalidArgument unless lease_duration > renew_deadline > retry_period > 0.
  static absl::Status Validate(const Options& options);

  // Both outlive this. The client has no gate, makes one try of a call, and its timeout is well
  // below `renew_deadline`. The clock goes on while the process is stopped.
  LeaderElector(kube::Client* client, const Clock* clock, Options options);

  // One try to take or renew the Lease. Blocks for at most three calls. One thread.
  // OK: this is the leader. Otherwise what stands against it; it may still be the leader (IsLeader)
  // until its time has run out.
  absl::Status Step();

  // Any thread; reads the clock.
  bool IsLeader() const;
  // OK or FailedPrecondition: not the leader, or no longer sure of it.
  absl::Status Check() override;
  // Who holds the Lease, as far as this knows; for messages.
  std::string Holder() const;

  // Writes no more (Check fails from now on), and lets others take the Lease at once. Same thread
  // as Step.
  absl::Status Release();

  // Steps until it leads, calls `on_started`, renews until `cancellation` or until it leads no
  // more, calls `on_stopped`, and releases the Lease. `on_started` must not block. After
  // `cancellation` the Lease is still held during `on_stopped`, until its renew deadline, so that
  // last writes are possible. Returns Cancelled, or Aborted when leadership was lost: the process
  // should then end. Blocks; waits by real time.
  absl::Status Run(kube::Cancellation* cancellation, const std::function<void()>& on_started,
                   const std::function<void()>& on_stopped);

 private:
  absl::Status Acquire(absl::Time start);
  absl::Status Write(kube::Json lease, absl::Time start);
  void Observe(const kube::Json& lease, absl::Time now);
  kube::Json Spec(const kube::Json& before, absl::Time now) const;

  kube::Client* const client_;
  const Clock* const clock_;
  const Options options_;
  kube::Json observed_;  // the Lease as it was last read or written; null: never
  absl::Time observed_at_ = absl::InfinitePast();

  mutable Mutex mutex_;
  absl::Time leads_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::string holder_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sluice::runtime

#endif  // SLUICE_OPERATOR_RUNTIME_LEADER_ELECTION_H_
