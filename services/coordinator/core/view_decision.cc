#include "services/coordinator/core/view_decision.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"

namespace sluice::coordinator {
namespace {

Decision Fail(Decision::Outcome outcome, std::string reason) {
  Decision decision;
  decision.outcome = outcome;
  decision.reason = std::move(reason);
  return decision;
}

std::string ShardName(size_t position) { return absl::StrCat("ps-", position); }

// The checks of both modes. nullopt: all replies are of this attempt and this coordinator.
std::optional<Decision> CheckReplies(const AttemptFacts& attempt, const PauseReplies& replies) {
  bool first = true;
  for (const auto& [incarnation, reply] : replies) {
    if (reply.has_view()) first = false;
  }

  for (size_t i = 0; i < attempt.shards.size(); ++i) {
    const auto found = replies.find(attempt.shards[i]);
    if (found == replies.end()) {
      return Fail(Decision::Outcome::kLost, absl::StrCat(ShardName(i), " did not reply"));
    }

    const v1::PauseReply& reply = found->second;
    if (reply.has_view()) {
      const v1::ViewId& view = reply.view();
      if (view.attempt() > attempt.init_id.attempt() ||
          (view.attempt() == attempt.init_id.attempt() && Compare(view.term(), attempt.term) > 0)) {
        return Fail(
            Decision::Outcome::kSuperseded,
            absl::StrCat(ShardName(i), " has view ", ShortName(view), " of a newer coordinator"));
      }
      if (view.attempt() < attempt.init_id.attempt()) {
        return Fail(Decision::Outcome::kNotReady,
                    absl::StrCat(ShardName(i), " is still in attempt ", view.attempt()));
      }
    } else if (!Same(reply.ready_init_id(), attempt.init_id)) {
      return Fail(first ? Decision::Outcome::kNotReady : Decision::Outcome::kLost,
                  absl::StrCat(ShardName(i), " does not hold the state of init request ",
                               ShortName(attempt.init_id)));
    }
  }
  return std::nullopt;
}

// Checks that every partition can reach the version: a partition one version ahead uses its undo.
std::optional<std::string> CheckRollBack(const AttemptFacts& attempt, const PauseReplies& replies,
                                         uint64_t version) {
  for (size_t i = 0; i < attempt.shards.size(); ++i) {
    for (const auto& state : replies.at(attempt.shards[i]).partitions()) {
      const uint32_t p = state.partition();
      if (p >= attempt.owner.size() || attempt.owner[p] != i || attempt.empty[p]) continue;
      if (state.version() <= version) continue;
      if (state.version() == version + 1 && state.has_undo()) continue;
      return absl::StrCat(ShardName(i), " cannot return partition ", p, " from version ",
                          state.version(), " to ", version);
    }
  }
  return std::nullopt;
}

std::vector<v1::ClockRecord> WinningClocks(const PauseReplies& replies) {
  std::map<uint64_t, v1::ClockRecord> highest;
  for (const auto& [incarnation, reply] : replies) {
    for (const v1::ClockRecord& record : reply.clocks()) {
      const auto [entry, inserted] = highest.try_emplace(record.worker(), record);
      if (!inserted && record.clock() > entry->second.clock()) entry->second = record;
    }
  }
  std::vector<v1::ClockRecord> clocks;
  for (auto& [worker, record] : highest) clocks.push_back(std::move(record));
  return clocks;
}

// Updates that a shard will have applied after the install; its reply lacks the ones that it has
// only staged. `base`: the samples in the checkpoint that the attempt began with. Its files hold
// their records, and a shard without partitions loads none.
std::optional<std::string> CheckStaged(size_t position, const v1::PauseReply& reply,
                                       const std::vector<v1::ClockRecord>& winners,
                                       const IntervalSet& base, uint64_t* updates) {
  absl::flat_hash_map<uint64_t, uint64_t> applied;
  for (const v1::ClockRecord& record : reply.clocks()) applied[record.worker()] = record.clock();
  *updates = reply.ledger().updates();

  for (const v1::ClockRecord& winner : winners) {
    const auto own = applied.find(winner.worker());
    if (own != applied.end() && own->second >= winner.clock()) continue;
    const bool staged =
        std::any_of(reply.staged().begin(), reply.staged().end(), [&](const v1::StagedUpdate& s) {
          return s.worker() == winner.worker() && s.clock() == winner.clock();
        });
    if (!staged) {
      // A clock without samples was not an update: a newcomer raised to its peers (R13).
      const Interval samples = FromProto(winner.samples());
      if (samples.empty() || base.FirstGap(samples.begin, samples.end, samples.size()).empty()) {
        continue;
      }
      return absl::StrCat(ShardName(position), " neither applied nor staged update ",
                          winner.clock(), " of a worker, which another shard applied");
    }
    ++*updates;
  }
  return std::nullopt;
}

// The part of a lease that was not applied; empty: all was applied.
Interval Rest(Interval lease, const IntervalSet& applied) {
  return applied.FirstGap(lease.begin, lease.end, lease.size());
}

}  // namespace

const v1::PauseReply* NewestReply(const PauseReplies& replies) {
  const v1::PauseReply* newest = nullptr;
  for (const auto& [incarnation, reply] : replies) {
    if (!reply.has_view()) continue;
    if (newest == nullptr || Compare(reply.view(), newest->view()) > 0) newest = &reply;
  }
  return newest;
}

Decision DecideSynchronous(const AttemptFacts& attempt, const PauseReplies& replies,
                           const CoordinatorRules& rules) {
  if (std::optional<Decision> failed = CheckReplies(attempt, replies); failed.has_value()) {
    return *std::move(failed);
  }

  const v1::PauseReply* newest = NewestReply(replies);
  Decision decision;
  if (newest == nullptr) {
    decision.first_step = attempt.base_version;
    return decision;
  }

  decision.previous = newest->view();
  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  uint64_t highest = 0;
  for (size_t i = 0; i < attempt.shards.size(); ++i) {
    const v1::PauseReply& reply = replies.at(attempt.shards[i]);
    std::map<uint32_t, uint64_t> versions;
    for (const auto& state : reply.partitions()) versions[state.partition()] = state.version();

    for (uint32_t p = 0; p < attempt.owner.size(); ++p) {
      if (attempt.owner[p] != i || attempt.empty[p]) continue;
      const auto version = versions.find(p);
      if (version == versions.end()) {
        return Fail(Decision::Outcome::kLost,
                    absl::StrCat(ShardName(i), " does not hold partition ", p));
      }
      // (R3) A shard that lacks the newest view is at that view's first step.
      const bool current = reply.has_view() && Same(reply.view(), newest->view());
      const uint64_t stands = current ? version->second : newest->newest().first_step();
      lowest = std::min(lowest, stands);
      highest = std::max(highest, stands);
    }
  }

  // If all partitions are empty, there is no lowest version.
  if (lowest > highest) lowest = highest = newest->newest().first_step();
  decision.first_step = rules.RollBackToLowest() ? lowest : highest;
  if (std::optional<std::string> stuck = CheckRollBack(attempt, replies, decision.first_step);
      stuck.has_value()) {
    return Fail(Decision::Outcome::kLost, *std::move(stuck));
  }
  return decision;
}

Decision DecideAsynchronous(const AttemptFacts& attempt, const PauseReplies& replies,
                            const absl::flat_hash_set<uint64_t>& members,
                            const std::map<uint64_t, v1::Install>& installs,
                            const CoordinatorRules& rules) {
  if (std::optional<Decision> failed = CheckReplies(attempt, replies); failed.has_value()) {
    return *std::move(failed);
  }
  Decision decision;
  const v1::PauseReply* newest = NewestReply(replies);
  if (newest == nullptr) {
    decision.ledger = attempt.base_ledger;
    decision.first_step = attempt.base_version;
    return decision;
  }
  decision.previous = newest->view();
  decision.clocks = WinningClocks(replies);

  IntervalSet base;
  for (const v1::Range& range : attempt.base_ledger.applied()) base.Add(FromProto(range));
  IntervalSet applied;
  uint64_t updates = 0;
  for (size_t i = 0; i < attempt.shards.size(); ++i) {
    const v1::PauseReply& reply = replies.at(attempt.shards[i]);
    uint64_t own = 0;
    if (std::optional<std::string> missing = CheckStaged(i, reply, decision.clocks, base, &own);
        missing.has_value()) {
      return Fail(Decision::Outcome::kLost, *std::move(missing));
    }
    updates = std::max(updates, own);
    for (const v1::Range& range : reply.ledger().applied()) applied.Add(FromProto(range));
  }
  applied.ToProtos(decision.ledger.mutable_applied());
  decision.ledger.set_updates(updates);
  decision.first_step = updates;

  // The arbiter's records, unless it never learned the newest view: then the records that this view
  // began with.
  const v1::PauseReply& arbiter = replies.at(attempt.shards[attempt.owner[0]]);
  std::vector<v1::LeaseRecord> recorded(arbiter.leases().begin(), arbiter.leases().end());
  if (!arbiter.has_view() || !Same(arbiter.view(), newest->view())) {
    recorded.clear();
    if (const auto install = installs.find(newest->view().number()); install != installs.end()) {
      recorded.assign(install->second.leases().begin(), install->second.leases().end());
    }
  }
  for (const v1::LeaseRecord& record : recorded) {
    if (!members.contains(record.worker())) continue;
    const Interval lease = FromProto(record.samples());
    const Interval rest = rules.KeepLeases() ? Rest(lease, applied) : lease;
    if (rest.empty()) continue;
    v1::LeaseRecord kept = record;
    *kept.mutable_samples() = ToProto(rest);
    decision.leases.push_back(std::move(kept));
  }
  return decision;
}

}  // namespace sluice::coordinator
