#include "services/coordinator/core/lifecycle/takeover.h"

#include <algorithm>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/facts/training_mode.h"
#include "services/coordinator/core/lifecycle/initialization.h"
#include "services/protocol/ids.h"
#include "services/protocol/layout.h"

namespace sluice::coordinator {
namespace {

bool IsMember(const v1::View& view, uint64_t worker) {
  return absl::c_any_of(view.workers(), [&](const v1::View::Member& member) {
    return member.process().incarnation() == worker;
  });
}

}  // namespace

// ---- which shards

std::optional<uint64_t> Takeover::AttemptOfShards() const {
  std::optional<uint64_t> attempt;
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (shard->id.index() >= facts_.wanted_shards) continue;
    const uint64_t known = shard->newest_view.attempt();
    if (known == 0 && facts_.MovesPartitions()) continue;
    if (known == 0 || attempt.value_or(known) != known) return std::nullopt;
    attempt = known;
  }
  return attempt;
}

void Takeover::Begin(absl::Time now) {
  SLUICE_DCHECK(attempt_.facts().shards.empty() && attempt_.id.number != 0,
                "the attempt before was left, and the number of this one is set");
  began_ = now;
  Ask(now);
  training_.Begin();
}

void Takeover::Ask(absl::Time now) {
  asked_ = now;
  std::vector<v1::View::Shard> shards;
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (shard->newest_view.attempt() == attempt_.id.number) shards.push_back(shard->AsShard());
  }
  SLUICE_DCHECK(!shards.empty(), "a shard has a view of the attempt");
  attempt_.TakeOverFrom(std::move(shards));
}

Takeover::Missing Takeover::MissingShards(absl::Time now) const {
  SLUICE_DCHECK(training_.change().AllReplied(), "the newest view is known");
  const v1::PauseReply* newest = NewestReply(training_.change().replies());
  if (newest == nullptr || !facts_.MovesPartitions()) return Missing::kNone;
  bool may_come = false;
  for (const v1::View::Shard& shard : newest->newest().shards()) {
    const v1::ProcessId& id = shard.process();
    if (training_.change().Asks(id.incarnation())) continue;
    const Process* process = facts_.members.Find(id.incarnation());
    if (process != nullptr && process->newest_view.attempt() != attempt_.id.number) {
      continue;  // a new shard that never had a view has nothing; it joins again
    }
    if (process != nullptr && !process->suspect()) return Missing::kHaveCome;
    const bool replaced =
        absl::c_any_of(facts_.members.Living(v1::SHARD), [&](const Process* other) {
          return other->id.index() == id.index() && other->incarnation() != id.incarnation();
        });
    may_come = may_come || (!replaced && !facts_.members.IsExpelled(id.incarnation()));
  }
  if (!may_come || now >= LongWaitEnds()) return Missing::kNone;
  const bool awaited = now < ShortWaitEnds() || LacksPartition();
  return awaited ? Missing::kMayCome : Missing::kNone;
}

bool Takeover::LacksPartition() const {
  SLUICE_DCHECK(attempt_.model.ready.has_value(),
                "the number of partitions follows from the model");
  const absl::StatusOr<v1::Layout> layout = LayoutOfModel(facts_);
  if (!layout.ok()) return false;
  const LayoutIndex index(attempt_.model.ready->table(), *layout);
  absl::flat_hash_set<uint32_t> held;
  for (const auto& [shard, reply] : training_.change().replies()) {
    for (const auto& state : reply.partitions()) held.insert(state.partition());
  }
  for (uint32_t p = 0; p < index.partitions(); ++p) {
    if (!index.IsEmpty(p) && !held.contains(p)) return true;
  }
  return false;
}

absl::Time Takeover::ShortWaitEnds() const {
  return facts_.members.JudgedShardAt(asked_ + facts_.timers.suspect);
}

absl::Time Takeover::LongWaitEnds() const {
  return facts_.members.JudgedShardAt(
      began_ + std::max(facts_.timers.suspect, facts_.timers.heartbeat_timeout));
}

void Takeover::ExtendDeadlines(absl::Duration late) {
  began_ += late;
  asked_ += late;
}

absl::Time Takeover::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (facts_.phase != Phase::kTakingOver) return next;
  for (const absl::Time until : {ShortWaitEnds(), LongWaitEnds()}) {
    if (facts_.newest_event < until) next = std::min(next, until);
  }
  return next;
}

bool Takeover::Lost() const {
  return absl::c_any_of(attempt_.facts().shards,
                        [&](uint64_t shard) { return facts_.members.Find(shard) == nullptr; });
}

bool Takeover::Retry() {
  if (!facts_.MovesPartitions()) return false;
  attempt_.KeepShards([&](uint64_t shard) { return facts_.members.Find(shard) != nullptr; });
  return !attempt_.shards().empty();
}

// ---- the attempt

bool Takeover::MissesLossRecord(const v1::Claim& claim) const {
  const v1::PauseReply* newest = NewestReply(training_.change().replies());
  return newest != nullptr && newest->newest().loss_record() > claim.loss_record();
}

absl::StatusOr<v1::View> Takeover::NewestView(const v1::Claim& claim) const {
  SLUICE_DCHECK(training_.change().AllReplied() && attempt_.model.ready.has_value(),
                "the attempt's state and model are known");
  SLUICE_DCHECK(claim.attempt() == attempt_.id.number && !claim.end(),
                "R11: the attempt is claimed");
  const v1::PauseReply* newest = NewestReply(training_.change().replies());
  if (newest == nullptr) return absl::FailedPreconditionError("no shard has a view");
  const v1::View& view = newest->newest();
  if (view.loss_record() > claim.loss_record()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the storage lacks its loss record ", view.loss_record()));
  }
  if (view.loss_record() < claim.loss_record() && claim.kept().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("its loss record ", claim.loss_record(), " is damaged"));
  }
  for (const auto& [shard, reply] : training_.change().replies()) {
    if (reply.view().attempt() == attempt_.id.number) continue;
    return absl::FailedPreconditionError("a shard is in another attempt");
  }
  return view;
}

// Only shards of the newest view are kept, and only those that the newest loss record names, if
// that view was made before it.
std::vector<uint64_t> Takeover::Unkept(const v1::View& newest, const v1::Claim& claim) const {
  std::vector<uint64_t> unkept;
  for (const uint64_t shard : training_.change().asked()) {
    const bool named = absl::c_any_of(newest.shards(), [&](const v1::View::Shard& entry) {
      return entry.process().incarnation() == shard;
    });
    const bool kept =
        newest.loss_record() == claim.loss_record() || absl::c_linear_search(claim.kept(), shard);
    if (!named || !kept) unkept.push_back(shard);
  }
  return unkept;
}

absl::Status Takeover::Continue(const v1::View& newest, absl::Time now) {
  if (training_.change().replies().empty()) {
    return absl::FailedPreconditionError("none of its shards is kept");
  }
  RETURN_IF_ERROR(SetFacts(newest));
  training_.TakeOver(newest, now);
  return absl::OkStatus();
}

// Sets the facts that the attempt began with, as far as the view has them.
absl::Status Takeover::SetFacts(const v1::View& view) {
  if (view.mode() != attempt_.mode) {
    return absl::FailedPreconditionError("it trains in another mode than the job wants");
  }
  ASSIGN_OR_RETURN(attempt_.layout, LayoutOfModel(facts_));
  const v1::TensorTable& table = attempt_.model.ready->table();
  attempt_.layout_hash = LayoutHash(table, attempt_.layout);
  if (view.layout_hash() != attempt_.layout_hash) {
    return absl::FailedPreconditionError(
        "the shards hold another model than the worker that came first");
  }

  const LayoutIndex index(table, attempt_.layout);
  if (view.owner_size() != static_cast<int>(index.partitions())) {
    return absl::FailedPreconditionError(absl::StrCat("the shards' view has ", view.owner_size(),
                                                      " partitions, not ", index.partitions()));
  }
  if (absl::Status valid = CheckPositions(view); !valid.ok()) {
    return absl::FailedPreconditionError(valid.message());
  }

  for (const v1::View::Shard& shard : view.shards()) {
    if (facts_.MovesPartitions()) break;
    if (training_.change().Asks(shard.process().incarnation())) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(ProcessName(shard.process()), " of the attempt is gone"));
  }
  if (!facts_.MovesPartitions() &&
      static_cast<uint64_t>(view.shards_size()) != facts_.wanted_shards) {
    return absl::FailedPreconditionError(absl::StrCat("the attempt has ", view.shards_size(),
                                                      " shards, and the job wants ",
                                                      facts_.wanted_shards));
  }

  attempt_.ContinueFrom(view, index);
  // Every shard has applied what a checkpoint of the attempt contains.
  if (!facts_.mode().synchronous() && facts_.storage.has_newest) {
    attempt_.SetBase(view.first_step(), LedgerOf(facts_.storage.newest));
  }
  return absl::OkStatus();
}

v1::EvaluationDecisions Takeover::NewestDecisions() const {
  v1::EvaluationDecisions newest;
  for (const auto& [shard, reply] : training_.change().replies()) {
    if (reply.decisions().step() > newest.step()) newest = reply.decisions();
  }
  return newest;
}

std::vector<v1::ProcessId> Takeover::LeftOut() const {
  SLUICE_DCHECK(training_.view().has_id(), "the view with which the attempt continues is known");
  std::vector<v1::ProcessId> left_out;
  const v1::View& view = training_.view();
  for (const v1::View::Member& member : view.workers()) {
    if (facts_.members.Find(member.process().incarnation()) == nullptr) {
      left_out.push_back(member.process());
    }
  }
  for (const Process* shard : facts_.members.Living(v1::SHARD)) {
    if (shard->newest_view.attempt() == attempt_.id.number &&
        !training_.change().Asks(shard->incarnation())) {
      left_out.push_back(shard->id);
    }
  }
  for (const Process* worker : facts_.members.Living(v1::WORKER)) {
    if (worker->newest_view.attempt() == attempt_.id.number &&
        !IsMember(view, worker->incarnation())) {
      left_out.push_back(worker->id);
    }
  }
  return left_out;
}

}  // namespace sluice::coordinator
