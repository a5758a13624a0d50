#include "services/coordinator/core/facts/view_change.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

const v1::Pause& ViewChange::Begin(v1::Pause pause, std::vector<uint64_t> shards, absl::Time now) {
  SLUICE_DCHECK(Compare(pause_.id(), pause.id()) < 0, "R1: every Pause has a new number");
  pause_ = std::move(pause);
  shards_ = std::move(shards);
  pausing_ = true;
  paused_at_ = now;
  replies_.clear();
  others_wait_ = false;  // they are paused instead
  return pause_;
}

bool ViewChange::Asks(uint64_t shard) const {
  return pausing_ && std::find(shards_.begin(), shards_.end(), shard) != shards_.end();
}

void ViewChange::Drop(uint64_t shard) {
  SLUICE_DCHECK(Asks(shard), "only a shard that was asked is dropped");
  shards_.erase(std::remove(shards_.begin(), shards_.end(), shard), shards_.end());
  replies_.erase(shard);
}

bool ViewChange::OnReply(uint64_t shard, const v1::PauseReply& reply) {
  if (!Asks(shard)) return false;
  if (rules_->MatchReplies() && !Same(reply.pause(), pause_.id())) return false;
  replies_[shard] = reply;
  SLUICE_DCHECK(replies_.size() <= shards_.size(), "only shards that were asked reply");
  return true;
}

void ViewChange::Decide(v1::Install install, std::set<uint64_t> losers, absl::Time now) {
  SLUICE_DCHECK(pausing_, "a decision follows the replies to a Pause");
  pausing_ = false;
  replies_.clear();
  losers_ = std::move(losers);
  others_wait_ = !losers_.empty();
  uninstalled_ = losers_;
  for (const v1::View::Shard& shard : install.view().shards()) {
    uninstalled_.insert(shard.process().incarnation());
  }
  const uint64_t number = install.view().id().number();
  SLUICE_DCHECK(installs_.empty() || installs_.rbegin()->first < number,
                "the newest Install has the highest number");
  installs_[number] = std::move(install);
  installed_at_ = now;
}

bool ViewChange::OnInstalled(uint64_t shard, const v1::ViewId& view) {
  if (installs_.empty() || !Same(view, install().view().id())) return false;
  if (uninstalled_.erase(shard) == 0) return false;
  losers_.erase(shard);
  SLUICE_DCHECK(losers_.size() <= uninstalled_.size(), "a loser has not sent Installed");
  // No shard can be in an older view any more.
  if (uninstalled_.empty()) installs_.erase(installs_.begin(), std::prev(installs_.end()));
  return true;
}

bool ViewChange::ShouldInstallOthers(absl::Time now) {
  if (!others_wait_ || !losers_.empty()) return false;
  SLUICE_DCHECK(!pausing_ && has_install(), "shards wait for the newest Install");
  others_wait_ = false;
  installed_at_ = now;
  return true;
}

std::vector<uint64_t> ViewChange::Overdue(absl::Time now, absl::Duration timeout) const {
  std::vector<uint64_t> overdue;
  if (pausing_) {
    if (!pause_.now() || paused_at_ + timeout > now) return overdue;
    for (uint64_t shard : shards_) {
      if (replies_.count(shard) == 0) overdue.push_back(shard);
    }
  } else if (installing() && installed_at_ + timeout <= now) {
    const std::set<uint64_t>& owing = others_wait_ ? losers_ : uninstalled_;
    overdue.assign(owing.begin(), owing.end());
  }
  return overdue;
}

void ViewChange::ExtendDeadlines(absl::Duration late) {
  paused_at_ += late;
  installed_at_ += late;
}

absl::Time ViewChange::NextDeadline(absl::Duration timeout) const {
  if (pausing_) {
    return pause_.now() && !AllReplied() ? paused_at_ + timeout : absl::InfiniteFuture();
  }
  return installing() ? installed_at_ + timeout : absl::InfiniteFuture();
}

}  // namespace sluice::coordinator
