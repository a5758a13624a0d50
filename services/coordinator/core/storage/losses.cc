#include "services/coordinator/core/storage/losses.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/check.h"

namespace sluice::coordinator {
namespace {

std::set<uint64_t> ShardsOf(const v1::View& view) {
  std::set<uint64_t> shards;
  for (const v1::View::Shard& shard : view.shards()) shards.insert(shard.process().incarnation());
  return shards;
}

}  // namespace

void Losses::Continue(const v1::View& view, const v1::Claim& claim) {
  SLUICE_DCHECK(!pending_.has_value() && !unused_.has_value(),
                "an attempt is continued before a view of it is made");
  losses_.newest = std::max(view.loss_record(), claim.loss_record());
  if (claim.loss_record() > view.loss_record()) {
    unused_ = Shards(claim.kept().begin(), claim.kept().end());
  }
}

bool Losses::MayInstall(const v1::View& view, absl::Time now) {
  const Shards kept = ShardsOf(view);
  SLUICE_DCHECK(!kept.empty() && facts_.training.change().AllReplied(),
                "the view follows from the replies of all shards that are alive");
  const PauseReplies& replies = facts_.training.change().replies();
  const auto lost = [&](uint64_t shard) {
    return kept.count(shard) == 0 && replies.count(shard) == 0;
  };
  const bool loses = absl::c_any_of(facts_.attempt.facts().shards, lost) ||
                     absl::c_any_of(facts_.training.change().losers(), lost);
  if (!loses || unused_ == kept || !facts_.rules.RecordLosses()) return true;
  if (pending_.has_value() || now < retry_at_) return false;

  v1::Claim claim;
  claim.set_format_version(kClaimFormatVersion);
  claim.set_attempt(facts_.attempt.id.number);
  *claim.mutable_term() = facts_.attempt.id.term;
  claim.set_job(FullJobName(facts_.job()));
  claim.set_time(absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone()));
  claim.set_loss_record(losses_.newest + 1);
  // A request that failed may have made its record: it is repeated. If `kept` has changed since,
  // the next record follows.
  pending_ = failed_.value_or(kept);
  *claim.mutable_kept() = {pending_->begin(), pending_->end()};
  output_.Add(ClaimAttempt{std::move(claim)});
  return false;
}

std::string Losses::Name() const {
  return absl::StrCat("loss record ", losses_.newest + 1, " of attempt ", facts_.attempt.id.number);
}

Verdict Losses::OnResult(const absl::Status& status, absl::Time now) {
  SLUICE_DCHECK(pending_.has_value(), "a result is that of the record under way");
  if (status.ok()) {
    OnMade();
    return Verdict::Continue();
  }
  if (absl::IsAlreadyExists(status)) {
    return Verdict::Superseded(absl::StrCat("another coordinator has made ", Name()));
  }
  if (!failed_.has_value()) {
    output_.Warn(absl::StrCat(Name(), " cannot be made: ", status.message(),
                              "; training waits until it can"),
                 now);
  }
  failed_ = std::exchange(pending_, std::nullopt);
  retry_at_ = now + facts_.timers.storage_retry;
  return Verdict::Continue();
}

void Losses::OnMade() {
  SLUICE_DCHECK(pending_.has_value(), "the record under way was made");
  failed_.reset();
  ++losses_.newest;
  unused_ = std::exchange(pending_, std::nullopt);
}

bool Losses::IsSuperseded(const std::vector<v1::Claim>& claims) const {
  const uint64_t own = losses_.newest + (pending_.has_value() || failed_.has_value() ? 1 : 0);
  return facts_.rules.RecordLosses() && absl::c_any_of(claims, [&](const v1::Claim& claim) {
           return claim.attempt() == facts_.attempt.id.number && claim.loss_record() > own;
         });
}

absl::Time Losses::NextDeadline() const {
  const bool waits = facts_.training.change().AllReplied() && facts_.newest_event < retry_at_;
  return facts_.phase == Phase::kRunning && waits ? retry_at_ : absl::InfiniteFuture();
}

}  // namespace sluice::coordinator
