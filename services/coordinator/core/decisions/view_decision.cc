#include "services/coordinator/core/decisions/view_decision.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/protocol/ids.h"
#include "services/protocol/interval_set.h"

namespace sluice::coordinator {

const v1::PauseReply* NewestReply(const PauseReplies& replies) {
  const v1::PauseReply* newest = nullptr;
  for (const auto& [incarnation, reply] : replies) {
    if (!reply.has_view()) continue;
    if (newest == nullptr || Compare(reply.view(), newest->view()) > 0) newest = &reply;
  }
  return newest;
}

namespace {

Decision Fail(Decision::Result result, std::string reason) {
  Decision decision;
  decision.result = result;
  decision.reason = std::move(reason);
  return decision;
}

std::string ShardName(size_t position) { return absl::StrCat("ps-", position); }

std::string ShardName(const v1::View& view, uint64_t shard) {
  for (const v1::View::Shard& entry : view.shards()) {
    if (entry.process().incarnation() == shard) return ShardName(entry.process().index());
  }
  return "a shard outside the view";
}

// The checks of both modes. nullopt: all replies are of this attempt and this coordinator.
// `required`: the shards that must have replied with a state of this attempt.
std::optional<Decision> CheckReplies(const AttemptFacts& attempt, const PauseReplies& replies,
                                     const std::vector<uint64_t>& required,
                                     const std::map<uint64_t, v1::Install>& installs) {
  // Once the attempt has a view, its first state is not requested again: training has begun.
  const v1::PauseReply* newest = NewestReply(replies);
  const bool has_view = !installs.empty() || (newest != nullptr && newest->view().attempt() ==
                                                                       attempt.init_id.attempt());
  const Decision::Result lacking = has_view ? Decision::Result::kLost : Decision::Result::kNotReady;

  for (const auto& [incarnation, reply] : replies) {
    if (!reply.has_view()) continue;
    const v1::ViewId& view = reply.view();
    if (view.attempt() > attempt.init_id.attempt() ||
        (view.attempt() == attempt.init_id.attempt() && Compare(view.term(), attempt.term) > 0)) {
      return Fail(Decision::Result::kSuperseded,
                  absl::StrCat("a shard has view ", ShortName(view), " of a newer coordinator"));
    }
    if (view.attempt() < attempt.init_id.attempt()) {
      return Fail(lacking, absl::StrCat("a shard is still in attempt ", view.attempt()));
    }
  }

  for (size_t i = 0; i < required.size(); ++i) {
    const auto found = replies.find(required[i]);
    if (found == replies.end()) {
      return Fail(Decision::Result::kLost, absl::StrCat(ShardName(i), " did not reply"));
    }
    const v1::PauseReply& reply = found->second;
    if (!reply.has_view() && !Same(reply.ready_init_id(), attempt.init_id)) {
      return Fail(lacking, absl::StrCat(ShardName(i), " does not hold the state of init request ",
                                        ShortName(attempt.init_id)));
    }
  }
  return std::nullopt;
}

// The newest view's partitions, according to the replies to a Pause.
class Holdings {
 public:
  // `install`: of the view; null: an earlier coordinator made it.
  Holdings(const AttemptFacts& attempt, const PauseReplies& replies, const v1::View& view,
           const v1::Install* install)
      : attempt_(attempt), replies_(replies), view_(view), install_(install) {
    SLUICE_DCHECK(install == nullptr || Same(install->view().id(), view.id()),
                  "copies are whole by the Install of the view");
    for (const auto& [shard, reply] : replies) {
      for (const auto& state : reply.partitions()) states_[{shard, state.partition()}] = &state;
    }
  }

  // The shards that the view names for the partition, its owner first, if they have replied.
  std::vector<uint64_t> Named(uint32_t p) const {
    std::vector<uint64_t> named;
    const auto add = [&](uint32_t position) {
      const uint64_t shard = view_.shards(static_cast<int>(position)).process().incarnation();
      if (replies_.count(shard) > 0) named.push_back(shard);
    };
    add(view_.owner(static_cast<int>(p)));
    if (Follower(p) > 0) add(Follower(p) - 1);
    if (Target(p) > 0) add(Target(p) - 1);
    return named;
  }

  // The version of the partition that the shard has, as its owner or as a whole copy. nullopt: it
  // does not hold the partition.
  std::optional<uint64_t> Version(uint64_t shard, uint32_t p) const {
    const auto state = states_.find({shard, p});
    if (state == states_.end()) return std::nullopt;
    const v1::PauseReply& reply = replies_.at(shard);
    const bool owns = Is(view_.owner(static_cast<int>(p)) + 1, shard);
    if (reply.has_view() && Same(reply.view(), view_.id())) {
      if (state->second->copy() == owns) return std::nullopt;
      return state->second->version();
    }

    // (R3) A shard that lacks the newest view is at that view's first step, with what that view
    // gives it, if it can return there.
    if (!reply.has_view()) {
      const bool ready = Same(reply.ready_init_id(), attempt_.init_id);
      return owns && ready ? std::optional<uint64_t>(view_.first_step()) : std::nullopt;
    }
    const uint64_t version = state->second->version();
    const bool has_step =
        version >= view_.first_step() && CanReturnTo(view_.first_step(), shard, p);
    if (!has_step || !(owns || BeganWhole(shard, p))) return std::nullopt;
    return view_.first_step();
  }

  // Asynchronous: whether the shard holds the partition, as its owner or with a whole copy, and has
  // applied or staged every update that any shard of the view has applied.
  bool Holds(uint64_t shard, uint32_t p) const {
    const v1::PauseReply& reply = replies_.at(shard);
    const bool owns = Is(view_.owner(static_cast<int>(p)) + 1, shard);
    if (!reply.has_view()) return owns && Same(reply.ready_init_id(), attempt_.init_id);
    const auto state = states_.find({shard, p});
    if (state == states_.end()) return false;
    if (Same(reply.view(), view_.id())) return state->second->copy() != owns;
    // (R3) No update was applied in a view that one of its shards lacks.
    return owns || BeganWhole(shard, p);
  }

  // Whether the shard's partition is not above this version, or can return to it with its undo.
  bool CanReturnTo(uint64_t version, uint64_t shard, uint32_t p) const {
    SLUICE_DCHECK(states_.count({shard, p}) > 0, "a holder has reported its partition");
    const v1::PauseReply::PartitionState& state = *states_.at({shard, p});
    return state.version() <= version || (state.version() == version + 1 && state.has_undo());
  }
  std::string WhyLost(uint32_t p) const {
    const v1::ProcessId& owner =
        view_.shards(static_cast<int>(view_.owner(static_cast<int>(p)))).process();
    if (replies_.count(owner.incarnation()) > 0) {
      return absl::StrCat(ShardName(owner.index()), " does not hold partition ", p);
    }
    return absl::StrCat(ShardName(owner.index()), " is gone, and partition ", p,
                        " has no whole copy");
  }
  uint64_t Reported(uint64_t shard, uint32_t p) const { return states_.at({shard, p})->version(); }

 private:
  bool Is(uint32_t position_plus_one, uint64_t shard) const {
    return position_plus_one > 0 &&
           view_.shards(static_cast<int>(position_plus_one) - 1).process().incarnation() == shard;
  }
  // Whether the newest view began with a whole copy on a shard that lacks it. The view's Install
  // says so. If an earlier coordinator made the view from the one that the shard has, it named each
  // copy whole that the shard could keep.
  bool BeganWhole(uint64_t shard, uint32_t p) const {
    const bool follows = Is(Follower(p), shard);
    const bool receives = Is(Target(p), shard);
    if (install_ == nullptr) {
      return (follows || receives) && Same(replies_.at(shard).view(), view_.previous());
    }
    return (follows && absl::c_linear_search(install_->whole_followers(), p)) ||
           (receives && absl::c_linear_search(install_->whole_targets(), p));
  }
  uint32_t Follower(uint32_t p) const {
    return view_.follower().empty() ? 0 : view_.follower(static_cast<int>(p));
  }
  uint32_t Target(uint32_t p) const {
    return view_.target().empty() ? 0 : view_.target(static_cast<int>(p));
  }

  const AttemptFacts& attempt_;
  const PauseReplies& replies_;
  const v1::View& view_;
  const v1::Install* const install_;
  std::map<std::pair<uint64_t, uint32_t>, const v1::PauseReply::PartitionState*> states_;
};

std::vector<v1::ClockRecord> WinningClocks(const PauseReplies& replies) {
  std::map<uint64_t, v1::ClockRecord> highest;
  for (const auto& [incarnation, reply] : replies) {
    for (const auto* records : {&reply.clocks(), &reply.copied()}) {
      for (const v1::ClockRecord& record : *records) {
        const auto [entry, inserted] = highest.try_emplace(record.worker(), record);
        if (!inserted && record.clock() > entry->second.clock()) entry->second = record;
      }
    }
  }
  std::vector<v1::ClockRecord> clocks;
  for (auto& [worker, record] : highest) clocks.push_back(std::move(record));
  return clocks;
}

// Updates that a shard will have applied after the install; its reply lacks the ones that it has
// only staged. `base`: the samples in the checkpoint that the attempt began with. Its files hold
// their records, and a shard without partitions loads none. An error text if the shard owns
// partitions and lacks an update.
std::optional<std::string> CheckStaged(const std::string& name, const v1::PauseReply& reply,
                                       bool owns, const std::vector<v1::ClockRecord>& winners,
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
      if (owns) {
        return absl::StrCat(name, " neither applied nor staged update ", winner.clock(),
                            " of a worker, which another shard applied");
      }
    }
    ++*updates;
  }
  return std::nullopt;
}

// The leases according to the shard that knows most of them: the arbiter; without it a shard with
// a whole copy of partition 0, which has every lease that was given (R8). If none of them is in the
// newest view, no lease was given in it, and any shard of it knows those that it began with.
std::vector<v1::LeaseRecord> RecordedLeases(const PauseReplies& replies,
                                            const std::vector<uint64_t>& arbiters,
                                            const v1::View& view) {
  const v1::PauseReply* best = nullptr;
  for (const auto& [shard, reply] : replies) {
    if (reply.has_view() && Same(reply.view(), view.id())) best = &reply;
  }
  for (auto shard = arbiters.rbegin(); shard != arbiters.rend(); ++shard) {
    SLUICE_DCHECK(replies.count(*shard) > 0, "a holder of partition 0 has replied");
    const v1::PauseReply& reply = replies.at(*shard);
    if (reply.has_view() && Same(reply.view(), view.id())) best = &reply;
  }
  if (best == nullptr) return {};
  return {best->leases().begin(), best->leases().end()};
}

// The part of a lease that was not applied.
std::vector<Interval> Rest(const Interval& lease, const IntervalSet& applied) {
  std::vector<Interval> rest;
  for (uint64_t from = lease.begin; from < lease.end;) {
    const Interval gap = applied.FirstGap(from, lease.end, lease.size());
    if (gap.empty()) break;
    SLUICE_DCHECK(from <= gap.begin && gap.end <= lease.end, "the rest is a part of the lease");
    rest.push_back(gap);
    from = gap.end;
  }
  return rest;
}

}  // namespace

Decision DecideSynchronous(const AttemptFacts& attempt, const PauseReplies& replies,
                           const std::map<uint64_t, v1::Install>& installs,
                           const CoordinatorRules& rules) {
  const v1::PauseReply* newest = NewestReply(replies);
  const std::vector<uint64_t> required =
      newest == nullptr ? attempt.shards : std::vector<uint64_t>();
  if (std::optional<Decision> failed = CheckReplies(attempt, replies, required, installs);
      failed.has_value()) {
    return *std::move(failed);
  }

  SLUICE_DCHECK(attempt.owner.size() == attempt.empty.size(), "both lists are by partition");
  Decision decision;
  decision.holders.resize(attempt.empty.size());
  if (newest == nullptr) {
    decision.first_step = attempt.base_version;
    for (uint32_t p = 0; p < attempt.owner.size(); ++p) {
      if (!attempt.empty[p]) decision.holders[p] = {attempt.shards[attempt.owner[p]]};
    }
    return decision;
  }

  const auto made = installs.find(newest->view().number());
  const bool ours = made != installs.end() && Same(made->second.view().id(), newest->view());
  const v1::View& view = decision.previous.emplace(ours ? made->second.view() : newest->newest());
  const Holdings holdings(attempt, replies, view, ours ? &made->second : nullptr);

  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  uint64_t highest = 0;
  for (uint32_t p = 0; p < attempt.empty.size(); ++p) {
    if (attempt.empty[p]) continue;
    for (const uint64_t shard : holdings.Named(p)) {
      if (!decision.holders[p].empty()) break;
      const std::optional<uint64_t> version = holdings.Version(shard, p);
      if (!version.has_value()) continue;
      decision.holders[p].push_back(shard);
      lowest = std::min(lowest, *version);
      highest = std::max(highest, *version);
    }
    if (decision.holders[p].empty()) return Fail(Decision::Result::kLost, holdings.WhyLost(p));
  }

  // If all partitions are empty, there is no lowest version.
  if (lowest > highest) lowest = highest = view.first_step();
  const uint64_t step = rules.RollBackToLowest() ? lowest : highest;
  decision.first_step = step;
  for (uint32_t p = 0; p < attempt.empty.size(); ++p) {
    if (attempt.empty[p]) continue;
    std::vector<uint64_t>& holders = decision.holders[p];
    if (!holdings.CanReturnTo(step, holders[0], p)) {
      return Fail(Decision::Result::kLost,
                  absl::StrCat(ShardName(view, holders[0]), " cannot return partition ", p,
                               " from version ", holdings.Reported(holders[0], p), " to ", step));
    }
    for (const uint64_t shard : holdings.Named(p)) {
      if (shard == holders[0]) continue;
      // (R10) A copy that is not whole, or does not have the first step, is not kept.
      const std::optional<uint64_t> version = holdings.Version(shard, p);
      const bool has_step =
          version.has_value() && *version >= step && holdings.CanReturnTo(step, shard, p);
      if (has_step || !rules.KeepOnlyWholeCopies()) holders.push_back(shard);
    }
  }
  return decision;
}

namespace {

// Sets the clocks that win, and the ledger. An error text if an owner lacks an update.
std::optional<std::string> DecideUpdates(const AttemptFacts& attempt, const PauseReplies& replies,
                                         Decision* decision) {
  SLUICE_DCHECK(decision->previous.has_value(), "updates were applied in a view");
  decision->clocks = WinningClocks(replies);
  absl::flat_hash_set<uint64_t> owners;
  for (const std::vector<uint64_t>& holders : decision->holders) {
    if (!holders.empty()) owners.insert(holders[0]);
  }
  IntervalSet base;
  for (const v1::Range& range : attempt.base_ledger.applied()) base.Add(FromProto(range));
  IntervalSet applied;
  uint64_t updates = 0;
  for (const v1::View::Shard& shard : decision->previous->shards()) {
    const auto reply = replies.find(shard.process().incarnation());
    // A shard without a view has what the attempt began with, or nothing.
    if (reply == replies.end() || !reply->second.has_view()) continue;
    uint64_t own = 0;
    if (std::optional<std::string> missing =
            CheckStaged(ShardName(shard.process().index()), reply->second,
                        owners.contains(reply->first), decision->clocks, base, &own);
        missing.has_value()) {
      return missing;
    }
    updates = std::max(updates, own);
    for (const v1::Range& range : reply->second.ledger().applied()) applied.Add(FromProto(range));
    for (const v1::ClockRecord& record : reply->second.copied()) {
      applied.Add(FromProto(record.samples()));
    }
  }
  applied.ToProtos(decision->ledger.mutable_applied());
  decision->ledger.set_updates(updates);
  decision->first_step = updates;
  return std::nullopt;
}

}  // namespace

Decision DecideAsynchronous(const AttemptFacts& attempt, const PauseReplies& replies,
                            const absl::flat_hash_set<uint64_t>& members,
                            const std::map<uint64_t, v1::Install>& installs,
                            const CoordinatorRules& rules) {
  const v1::PauseReply* newest = NewestReply(replies);
  const std::vector<uint64_t> required =
      newest == nullptr ? attempt.shards : std::vector<uint64_t>();
  if (std::optional<Decision> failed = CheckReplies(attempt, replies, required, installs);
      failed.has_value()) {
    return *std::move(failed);
  }
  SLUICE_DCHECK(attempt.owner.size() == attempt.empty.size(), "both lists are by partition");
  Decision decision;
  decision.holders.resize(attempt.empty.size());
  if (newest == nullptr) {
    decision.ledger = attempt.base_ledger;
    decision.first_step = attempt.base_version;
    for (uint32_t p = 0; p < attempt.owner.size(); ++p) {
      if (!attempt.empty[p]) decision.holders[p] = {attempt.shards[attempt.owner[p]]};
    }
    return decision;
  }

  const auto made = installs.find(newest->view().number());
  const bool ours = made != installs.end() && Same(made->second.view().id(), newest->view());
  const v1::View& view = decision.previous.emplace(ours ? made->second.view() : newest->newest());
  const Holdings holdings(attempt, replies, view, ours ? &made->second : nullptr);
  for (uint32_t p = 0; p < attempt.empty.size(); ++p) {
    if (attempt.empty[p]) continue;
    for (const uint64_t shard : holdings.Named(p)) {
      if (holdings.Holds(shard, p)) decision.holders[p].push_back(shard);
    }
    if (decision.holders[p].empty()) return Fail(Decision::Result::kLost, holdings.WhyLost(p));
  }
  if (std::optional<std::string> missing = DecideUpdates(attempt, replies, &decision);
      missing.has_value()) {
    return Fail(Decision::Result::kLost, *std::move(missing));
  }

  IntervalSet applied;
  for (const v1::Range& range : decision.ledger.applied()) applied.Add(FromProto(range));
  const std::vector<uint64_t> arbiters = attempt.empty[0] ? holdings.Named(0) : decision.holders[0];
  for (const v1::LeaseRecord& record : RecordedLeases(replies, arbiters, view)) {
    if (!members.contains(record.worker())) continue;
    const Interval lease = FromProto(record.samples());
    for (const Interval& rest :
         rules.KeepLeases() ? Rest(lease, applied) : std::vector<Interval>{lease}) {
      SLUICE_DCHECK(!applied.Intersects(rest), "R8: a sample that was applied is leased no more");
      v1::LeaseRecord& kept = decision.leases.emplace_back(record);
      *kept.mutable_samples() = ToProto(rest);
    }
  }
  return decision;
}

}  // namespace sluice::coordinator
