// What a shard needs to change the view: whose messages count (R1), the Pause in progress and the
// promise that its reply is (R2), and which Install may follow.
#ifndef SLUICE_SERVICES_PS_CORE_VIEWS_H_
#define SLUICE_SERVICES_PS_CORE_VIEWS_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/ps/core/initialization.h"
#include "services/ps/core/shard_state.h"

namespace sluice::ps {

class Views {
 public:
  // Adds to a PauseReply what only asynchronous training has.
  using FillReply = std::function<void(v1::PauseReply*)>;

  // `state` and `initialization` must outlive it.
  Views(ShardState* state, const Initialization* initialization, FillReply fill_reply)
      : state_(*state), initialization_(*initialization), fill_reply_(std::move(fill_reply)) {}

  // Whether a coordinator's message is accepted: a coordinator of an older attempt or term is
  // dropped (R1).
  bool IsCurrent(uint64_t attempt, const v1::Term& term);
  // The same, and the shard adopts an attempt and term that are not older.
  bool Accept(uint64_t attempt, const v1::Term& term);
  // The highest attempt and term that were adopted, with number 0; attempt 0: none.
  v1::ViewId Obeyed() const;

  void OnPause(const v1::Pause& pause);
  // Replies to a Pause that waits for a step, if the shard has stopped after it (R5): every
  // partition is one past the step, or none can continue because of a barrier, which the
  // coordinator moves only after the view change.
  void CheckAfterStep();
  // Sends the reply to the Pause in progress, if there was one, on a new connection.
  void Report();
  // Whether the shard has replied to a Pause, and changes nothing until the Install (R2).
  bool promised() const { return pausing_ == Pausing::kReplied; }

  bool MayInstall(const v1::Install& install) const;
  // A view was installed, or its attempt is over.
  void EndPause() { pausing_ = Pausing::kNo; }

  // Reports the installed view, which there must be.
  void ReportInstalled();

  // INVALID_ARGUMENT if the shard has not received the Pause of this view, which is later than the
  // installed one: the coordinator makes a view only when each of its shards has replied to the
  // Pause of its id.
  absl::Status CheckAnnounced(const v1::ViewId& later) const;

 private:
  // The Pause in progress, if any.
  enum class Pausing {
    kNo,
    kWaiting,  // AfterStep: the step is not reached yet
    kReplied,  // R2: a promise
  };
  // (attempt, term) of a coordinator's message, in the order in which they are compared (R1).
  struct Authority {
    uint64_t attempt = 0;
    v1::Term term;
  };

  bool IsOlder(uint64_t attempt, const v1::Term& term) const;
  void ReplyToPause();
  v1::PauseReply MakePauseReply() const;

  ShardState& state_;
  const Initialization& initialization_;
  const FillReply fill_reply_;

  Authority authority_;
  Pausing pausing_ = Pausing::kNo;
  v1::Pause pause_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_VIEWS_H_
