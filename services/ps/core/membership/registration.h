// The shard's registration with the coordinator: the newest connection and its wire version,
// heartbeats, and leaving.
#ifndef SLUICE_SERVICES_PS_CORE_MEMBERSHIP_REGISTRATION_H_
#define SLUICE_SERVICES_PS_CORE_MEMBERSHIP_REGISTRATION_H_

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/member_registration.h"
#include "services/protocol/timeouts.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

class Registration final : public MemberRegistration {
 public:
  // Both must outlive it.
  Registration(const ShardState* state, Outbox* out)
      : MemberRegistration(state->options().identity), state_(*state), out_(*out) {}

  // A connection to a coordinator: registers on it. `obeyed`: as Authority::Obeyed.
  void OnConnected(const v1::ViewId& obeyed);
  void OnDisconnected();
  // Takes the job's interval of heartbeats.
  void OnRegistered(const v1::JobSpec& job);

  // Asks the coordinator for permission to leave. Without a connection, a shard that has a view
  // waits for a coordinator that takes the attempt over, and any other shard exits at once. Further
  // calls have no effect.
  void Leave(std::string reason, absl::Duration grace);

  // Exits if the grace period of Leave is over, or no coordinator has come.
  void ExitIfDue();
  bool HeartbeatIsDue() const { return connected() && state_.now() >= next_heartbeat(); }
  void SendHeartbeat() { MemberRegistration::SendHeartbeat(state_.now() + heartbeat_); }
  // When ExitIfDue or SendHeartbeat is due next.
  absl::Time NextDeadline() const;

 private:
  // A shard that leaves waits this long for the successor of a coordinator.
  static constexpr absl::Duration kCoordinatorReturns = absl::Seconds(15);

  void Send(v1::MemberMessage message) override { out_.Report(std::move(message)); }
  void AwaitCoordinator();
  absl::Time LeaveDeadline() const { return std::min(leave_until(), alone_until_); }

  const ShardState& state_;
  Outbox& out_;
  absl::Duration heartbeat_ = absl::Seconds(kDefaultHeartbeat);
  // A shard that leaves without a coordinator waits until then.
  absl::Time alone_until_ = absl::InfiniteFuture();
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_MEMBERSHIP_REGISTRATION_H_
