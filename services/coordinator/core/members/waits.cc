#include "services/coordinator/core/members/waits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {

void Waits::OnView(absl::Time now) {
  applied_at_ = now;
  owed_.clear();
}

// timeouts.gradients: by a shard for a synchronous step, by the arbiter for the holders of leases.
// Workers do not train while they evaluate.
std::vector<Waits::Expulsion> Waits::OnAwaited(const Process& shard,
                                               const v1::ShardProgress& progress, bool evaluating,
                                               absl::Time now) {
  SLUICE_DCHECK(facts_.training.has_view() && facts_.attempt.HasShard(shard.incarnation()),
                "the report is on the current view");
  const absl::Duration limit = absl::Seconds(facts_.job().timeouts().gradients());
  if (evaluating) evaluated_at_ = now;
  if (now < evaluated_at_ + limit) return {};

  std::vector<Expulsion> overdue;
  for (const uint64_t incarnation : progress.awaited()) {
    if (!facts_.training.IsMember(incarnation)) continue;
    overdue.push_back(
        {incarnation, facts_.mode().WhyOverdue(ProcessName(shard.id), progress.closed(), limit)});
  }
  return overdue;
}

// timeouts.weights. A shard that lacks the version and sends heartbeats waits for gradients itself.
// A single worker's report about a shard that sends heartbeats does not count: most members must
// wait for a version of it.
std::optional<Waits::Expulsion> Waits::OnOwing(const Process& worker,
                                               const v1::WorkerProgress& progress, absl::Time now) {
  const Training& training = facts_.training;
  const absl::Duration limit = absl::Seconds(facts_.job().timeouts().weights());
  if (limit <= absl::ZeroDuration() || !training.has_view() ||
      !Same(progress.view(), training.view().id()) || !training.IsMember(worker.incarnation()) ||
      progress.owed_version() > facts_.attempt.LastStep()) {
    return std::nullopt;
  }

  const std::string waits =
      absl::StrCat("owes ", ProcessName(worker.id), " version ", progress.owed_version(), " for ",
                   absl::FormatDuration(limit));
  for (const uint64_t incarnation : progress.owing()) {
    const Process* const shard = facts_.members.Find(incarnation);
    if (!facts_.attempt.HasShard(incarnation) || shard == nullptr) continue;

    const bool silent = now >= shard->last_message + limit;
    const bool has_it = training.shard(incarnation).closed >= progress.owed_version();
    std::map<uint64_t, absl::Time>& owed = owed_[incarnation];
    const auto [entry, first] = owed.try_emplace(worker.incarnation(), now);
    entry->second = now;
    const auto owed_now = std::count_if(owed.begin(), owed.end(), [&](const auto& to) {
      return to.second + 2 * limit > now && training.IsMember(to.first);
    });

    SLUICE_DCHECK(owed_.size() <= facts_.attempt.shards().size(),
                  "only shards of the view owe a version");
    if (silent || (has_it && 2 * owed_now > training.view().workers_size())) {
      return Expulsion{incarnation, waits};
    }

    if (!first) continue;
    output_.Warn(
        absl::StrCat(ProcessName(shard->id), " ", waits, ": ",
                     has_it ? "other members do not report it" : "it waits for gradients itself"),
        now);
  }
  return std::nullopt;
}

absl::Time Waits::LeasesOverdue(bool evaluating) const {
  const double limit = facts_.job().timeouts().gradients();
  if (facts_.mode().synchronous() || limit <= 0 || !facts_.training.has_view() || evaluating ||
      facts_.training.arbiter().leaseholders == 0) {
    return absl::InfiniteFuture();
  }
  return applied_at_ + absl::Seconds(limit);
}

absl::Time Waits::NextDeadline(bool evaluating) const {
  const bool counts = facts_.phase == Phase::kRunning && facts_.training.idle();
  return counts ? facts_.members.JudgedShardAt(LeasesOverdue(evaluating)) : absl::InfiniteFuture();
}

}  // namespace sluice::coordinator
