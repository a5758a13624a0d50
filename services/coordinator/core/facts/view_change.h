// One change of the view at a time: Pause, replies, Install, Installed.
//
// Intuition: every Pause has a new number, and a reply counts only for its own Pause (R1), so a
// change can always be restarted: a Now simply overrides a pending Pause (R5). Once the Install is
// sent, the next change may begin; shards get both in order on their streams.
//
// An Install may take a partition, or a whole copy, from a shard. Such a loser gets it first, and
// the others when all losers have it. Otherwise a loser, alone with another coordinator, could
// continue with a state that the others have left behind.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_VIEW_CHANGE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_VIEW_CHANGE_H_

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/decisions/view_decision.h"

namespace sluice::coordinator {

class ViewChange {
 public:
  // `rules` must outlive it.
  explicit ViewChange(const CoordinatorRules* rules) : rules_(rules) {}

  // Returns the Pause to send to these shards (incarnations). Replies to earlier ones no longer
  // count.
  const v1::Pause& Begin(v1::Pause pause, std::vector<uint64_t> shards, absl::Time now);
  // False: the reply is not to the current Pause.
  bool OnReply(uint64_t shard, const v1::PauseReply& reply);

  // A Pause was sent, and replies are missing or no decision was made yet.
  bool pausing() const { return pausing_; }
  bool AllReplied() const { return pausing_ && replies_.size() == shards_.size(); }
  // The shards that were sent the newest Pause.
  const std::vector<uint64_t>& asked() const { return shards_; }
  bool Asks(uint64_t shard) const;
  // Requires a pending Pause. The shard's reply no longer counts, and none is awaited.
  void Drop(uint64_t shard);
  const v1::Pause& pause() const { return pause_; }
  const PauseReplies& replies() const { return replies_; }

  // Records the decision, which is to be sent to all shards of the view: first to the losers, then
  // to the others. A loser need not be in the view.
  void Decide(v1::Install install, std::set<uint64_t> losers, absl::Time now);
  // The losers that have not sent Installed. A later Pause does not change that.
  const std::set<uint64_t>& losers() const { return losers_; }
  // True once: all losers have sent Installed, and the others are to be sent the Install.
  bool ShouldInstallOthers(absl::Time now);
  // Whether the newest Install is to be sent to the shard now, if it has not sent Installed.
  bool MaySendTo(uint64_t shard) const {
    return !HasInstalled(shard) && (!others_wait_ || losers_.count(shard) > 0);
  }
  // Forgets the Pause: no decision can be made.
  void GiveUp() {
    SLUICE_DCHECK(AllReplied(), "the replies have shown that no decision can be made");
    pausing_ = false;
  }
  // False: not the newest view, or not a shard of it.
  bool OnInstalled(uint64_t shard, const v1::ViewId& view);
  bool installing() const { return !uninstalled_.empty(); }
  bool HasInstalled(uint64_t shard) const { return uninstalled_.count(shard) == 0; }
  // The newest decision; meaningful once there is one in this attempt.
  const v1::Install& install() const {
    SLUICE_DCHECK(has_install(), "there is a decision");
    return installs_.rbegin()->second;
  }
  bool has_install() const { return !installs_.empty(); }
  // Installs of this attempt by view number, as far back as a shard may need them.
  const std::map<uint64_t, v1::Install>& installs() const { return installs_; }

  // Shards that have owed an answer (a reply to a Pause(Now), or Installed) for `timeout` or
  // longer.
  std::vector<uint64_t> Overdue(absl::Time now, absl::Duration timeout) const;
  absl::Time NextDeadline(absl::Duration timeout) const;
  // The time for which the coordinator itself was frozen does not count against any answer.
  void ExtendDeadlines(absl::Duration late);

 private:
  const CoordinatorRules* rules_;
  std::vector<uint64_t> shards_;  // asked
  bool pausing_ = false;
  v1::Pause pause_;
  absl::Time paused_at_;
  PauseReplies replies_;
  std::map<uint64_t, v1::Install> installs_;
  std::set<uint64_t> uninstalled_;  // shards that have not sent Installed of the newest view
  std::set<uint64_t> losers_;       // ... and that lose something by it
  bool others_wait_ = false;        // for the losers
  absl::Time installed_at_;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_VIEW_CHANGE_H_
