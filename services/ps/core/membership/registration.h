// The shard's registration with the coordinator: the newest connection and its wire version,
// heartbeats, and leaving.
#ifndef SLUICE_SERVICES_PS_CORE_MEMBERSHIP_REGISTRATION_H_
#define SLUICE_SERVICES_PS_CORE_MEMBERSHIP_REGISTRATION_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "services/protocol/timeouts.h"
#include "services/protocol/wire_version.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

class Registration {
 public:
  // Both must outlive it.
  Registration(const ShardState* state, Outbox* out) : state_(*state), out_(*out) {}

  // A connection to a coordinator: registers on it. `obeyed`: as Authority::Obeyed.
  void OnConnected(const v1::ViewId& obeyed);
  void OnDisconnected();
  // The first frame of a stream to another shard.
  v1::Header MakeHello(const v1::ProcessId& shard) const;
  bool connected() const { return connected_; }

  // Takes the job's interval of heartbeats.
  void OnRegistered(const v1::JobSpec& job);
  // Exits, unless it can register again with an older wire version.
  void OnRefusal(const v1::Refusal& refusal);
  // The job has ended, or the shard may leave: exits.
  void OnFinish(const v1::Finish& finish);

  // Asks the coordinator for permission to leave. Without a connection, a shard that has a view
  // waits for a coordinator that takes the attempt over, and any other shard exits at once. Further
  // calls have no effect.
  void Leave(std::string reason, absl::Duration grace);

  // Exits if the grace period of Leave is over, or no coordinator has come.
  void ExitIfDue();
  bool HeartbeatIsDue() const;
  void SendHeartbeat();
  // When ExitIfDue or SendHeartbeat is due next.
  absl::Time NextDeadline() const;

 private:
  // A shard that leaves waits this long for the successor of a coordinator.
  static constexpr absl::Duration kCoordinatorReturns = absl::Seconds(15);

  void SendLeave();
  void AwaitCoordinator();
  absl::Time LeaveDeadline() const { return std::min(leave_until_, alone_until_); }

  const ShardState& state_;
  Outbox& out_;
  bool connected_ = false;
  uint32_t wire_version_ = SpokenWireVersions().newest;  // with which it registers
  absl::Duration heartbeat_ = absl::Seconds(kDefaultHeartbeat);
  absl::Time next_heartbeat_ = absl::InfiniteFuture();
  uint64_t heartbeats_ = 0;
  std::optional<std::string> leave_reason_;
  absl::Time leave_until_ = absl::InfiniteFuture();  // the grace period
  absl::Time alone_until_ = absl::InfiniteFuture();  // ... of a shard without a coordinator
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_MEMBERSHIP_REGISTRATION_H_
