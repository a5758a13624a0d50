// Whether this coordinator may itself be cut off from the processes of its job, or of one role.
//
// Intuition. A process that sends nothing has died, is frozen or is cut off. If all processes send
// nothing, the likeliest reason is the coordinator's own network. Their state is whole then, and
// they continue to train, so nothing may be concluded from their silence. Only the parent can tell
// the two apart: it reports deaths. If it calls regularly, and no process sends anything for much
// longer than the heartbeat timeout, they are frozen.
//
// Pure. Times must not go backwards.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_OWN_LINK_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_OWN_LINK_H_

#include "absl/time/time.h"

namespace sluice::coordinator {

class OwnLink {
 public:
  // How often a process sends a heartbeat, and the time after which a silent one is expelled.
  OwnLink(absl::Duration heartbeat, absl::Duration heartbeat_timeout);

  // A message on a control stream. If the coordinator may have been cut off until now: the time
  // since the message before, which counts against no process. Otherwise zero.
  absl::Duration OnMessage(absl::Time now);
  // A call of the parent.
  void OnCall(absl::Time now);
  // Whether any process has a stream.
  void SetConnected(bool connected) { connected_ = connected; }

  // When a process that is late at `limit` may be expelled: at `limit`, if the coordinator has
  // received a message shortly before; InfiniteFuture: not before it receives one.
  absl::Time JudgedAt(absl::Time limit) const;

 private:
  // When all processes that are late count as frozen.
  absl::Time AllFrozenAt() const;

  const absl::Duration heartbeat_timeout_;
  // Without any message for this long, the coordinator may be cut off.
  const absl::Duration doubt_after_;
  bool connected_ = false;
  absl::Time message_ = absl::InfinitePast();  // the newest one
  // Calls without a long gap between them.
  absl::Time first_call_ = absl::InfinitePast();
  absl::Time last_call_ = absl::InfinitePast();
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_DECISIONS_OWN_LINK_H_
