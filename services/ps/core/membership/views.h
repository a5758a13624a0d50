// A shard's part in a view change: the Pause in progress and the promise that its reply is (R2),
// and the Install that may follow.
#ifndef SLUICE_SERVICES_PS_CORE_MEMBERSHIP_VIEWS_H_
#define SLUICE_SERVICES_PS_CORE_MEMBERSHIP_VIEWS_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/ps/core/base/outbox.h"
#include "services/ps/core/membership/initialization.h"
#include "services/ps/core/state/shard_state.h"

namespace sluice::ps {

class Views {
 public:
  // Adds to a PauseReply what only asynchronous training has.
  using FillReply = std::function<void(v1::PauseReply*)>;

  // All must outlive it.
  Views(const ShardState* state, Outbox* out, const Initialization* initialization,
        FillReply fill_reply)
      : state_(*state),
        out_(*out),
        initialization_(*initialization),
        fill_reply_(std::move(fill_reply)) {}

  const ViewState& current() const { return current_; }

  // Messages of the newest coordinator.
  void OnPause(const v1::Pause& pause);
  // Replies to a Pause that waits for a step, if the shard has stopped after it (R5): every
  // partition is one past the step, or none can continue because of a barrier, which the
  // coordinator moves only after the view change.
  void CheckAfterStep();
  // Sends the reply to the Pause in progress, if there was one, on a new connection.
  void Report();
  bool MayInstall(const v1::Install& install) const;
  // The view that follows the Pause, which ends.
  void Install(InstalledView view);

  // Reports the installed view, which there must be.
  void ReportInstalled();

  // INVALID_ARGUMENT if the shard has not received the Pause of this view, which is later than the
  // installed one: the coordinator makes a view only when each of its shards has replied to the
  // Pause of its id.
  absl::Status CheckAnnounced(const v1::ViewId& later) const;

 private:
  using Pausing = ViewState::Pausing;

  void ReplyToPause();
  v1::PauseReply MakePauseReply() const;

  const ShardState& state_;
  Outbox& out_;
  const Initialization& initialization_;
  const FillReply fill_reply_;
  ViewState current_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_MEMBERSHIP_VIEWS_H_
