// Elects one of several replicas as leader, with a Lease (coordination.k8s.io/v1).
#ifndef SLUICE_OPERATOR_RUNTIME_LEADER_ELECTION_H_
#define SLUICE_OPERATOR_RUNTIME_LEADER_ELECTION_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/client.h"
#include "operator/kube/write_gate.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"

namespace sluice::runtime {

// The idea is that of client-go: a candidate takes the Lease when its record has not changed for
// `lease_duration` of the candidate's own clock; clocks are never compared, only their rates need
// to agree. The leader renews every `retry_period`, and considers itself leader for at most
// `renew_deadline` after it *began* its last successful renewal. That is before the renewal took
// effect, which is before any candidate saw it. So the leader stops `lease_duration` −
// `renew_deadline` before another replica can follow it, however long it was frozen, as long as it
// reads its clock before each write (Check).
//
// This does not prevent a write that was sent right after Check from taking effect late. Therefore
// each write carries its own precondition.
class LeaderElector final : public kube::WriteGate {
 public:
  struct Options {
    kube::ObjectKey lease;
    // Identifies this run of the process; never used again (the pod's name and a random part).
    std::string identity;
    absl::Duration lease_duration = absl::Seconds(15);
    absl::Duration renew_deadline = absl::Seconds(10);
    absl::Duration retry_period = absl::Seconds(2);
  };

  // InvalidArgument unless lease_duration > renew_deadline > retry_period > 0.
  static absl::Status Validate(const Options& options);

  // Both arguments outlive this. The client has no gate, makes one try per call, and its timeout is
  // well below `renew_deadline`. The clock continues while the process is stopped.
  LeaderElector(kube::Client* client, const Clock* clock, Options options);

  // One attempt to take or renew the Lease. Blocks for at most three calls. One thread. OK: this
  // process is the leader. Otherwise returns the obstacle; this process may still be the leader
  // (IsLeader) until its time has run out.
  absl::Status Step();

  // Any thread; reads the clock.
  bool IsLeader() const;
  // OK, or FailedPrecondition: this process is not the leader, or no longer certain to be.
  absl::Status Check() override;
  // The holder of the Lease when this process last read or wrote it; for messages.
  std::string Holder() const;

  // Stops writing (Check fails from now on), and lets other replicas take the Lease at once. Same
  // thread as Step.
  absl::Status Release();

  // Steps until this process leads, calls `on_started`, renews until `cancellation` or until
  // leadership is lost, calls `on_stopped`, and releases the Lease. `on_started` must not block.
  // After `cancellation` the Lease is still held during `on_stopped`, until its renew deadline, so
  // that last writes are possible. Returns Cancelled, or Aborted if leadership was lost: the
  // process should then exit. Blocks; waits in real time.
  absl::Status Run(kube::Cancellation* cancellation, const std::function<void()>& on_started,
                   const std::function<void()>& on_stopped);

 private:
  // Takes the Lease if it is free, expired or this process's own.
  absl::Status Acquire(absl::Time start);
  // Writes the Lease and, if that succeeds, leads until `start` + renew_deadline. A conflict: the
  // Lease was written in the meantime.
  absl::Status Write(kube::Json lease, absl::Time start);
  // Notes the Lease as read or written. Its holder's time begins again when the record has changed.
  void Observe(const kube::Json& lease, absl::Time now);
  // The Lease's spec with this process as its holder.
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
