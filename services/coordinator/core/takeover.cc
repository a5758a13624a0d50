#include "services/coordinator/core/takeover.h"

#include <string>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/coordinator/core/initialization.h"
#include "services/coordinator/core/member_checks.h"
#include "services/coordinator/core/training_mode.h"
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
    if (known == 0 || shard->leaving || attempt.value_or(known) != known) return std::nullopt;
    attempt = known;
  }
  return attempt;
}

void Takeover::Begin() {
  SLUICE_DCHECK(attempt_.facts.shards.empty(), "the attempt before is forgotten");
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (shard->id.index() < facts_.wanted_shards) {
      attempt_.facts.shards.push_back(shard->incarnation());
    }
  }
  training_.Begin();
}

std::optional<uint64_t> Takeover::Lost() const {
  for (const uint64_t shard : attempt_.facts.shards) {
    if (facts_.members.Find(shard) == nullptr) return shard;
  }
  return std::nullopt;
}

// ---- the attempt

absl::Status Takeover::Complete(absl::Time now) {
  const PauseReplies& replies = training_.change().replies();
  const v1::PauseReply* newest = NewestReply(replies);
  if (newest == nullptr) return absl::FailedPreconditionError("no shard has a view");
  const v1::View view = newest->newest();
  RETURN_IF_ERROR(Continue(view));
  for (const uint64_t shard : attempt_.facts.shards) RETURN_IF_ERROR(CheckReply(shard, view));
  training_.TakeOver(view, now);
  return absl::OkStatus();
}

// Sets the facts that the attempt began with, as far as the view has them.
absl::Status Takeover::Continue(const v1::View& view) {
  if (view.mode() != attempt_.mode) {
    return absl::FailedPreconditionError("it trains in another mode than the job wants");
  }
  ASSIGN_OR_RETURN(attempt_.layout, LayoutOfModel(facts_));
  const v1::TensorTable& table = attempt_.model->table();
  attempt_.layout_hash = LayoutHash(table, attempt_.layout);
  if (view.layout_hash() != attempt_.layout_hash) {
    return absl::FailedPreconditionError(
        "the shards hold another model than the worker that came first");
  }

  const LayoutIndex index(table, attempt_.layout);
  AttemptFacts& facts = attempt_.facts;
  if (view.owner_size() != static_cast<int>(index.partitions())) {
    return absl::FailedPreconditionError(absl::StrCat("the shards' view has ", view.owner_size(),
                                                      " partitions, not ", index.partitions()));
  }
  for (const uint32_t owner : view.owner()) {
    if (owner < static_cast<uint32_t>(view.shards_size())) continue;
    return absl::FailedPreconditionError("the shards' view names an owner that is no shard");
  }

  std::vector<uint64_t> shards;
  for (const v1::View::Shard& shard : view.shards()) {
    shards.push_back(shard.process().incarnation());
    if (!absl::c_linear_search(facts.shards, shards.back())) {
      return absl::FailedPreconditionError(
          absl::StrCat(ProcessName(shard.process()), " of the attempt is gone"));
    }
  }
  if (shards.size() != facts.shards.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the attempt has ", shards.size(), " shards, and the job wants ", facts.shards.size()));
  }

  facts.shards = std::move(shards);
  attempt_.shards.assign(view.shards().begin(), view.shards().end());
  facts.owner.assign(view.owner().begin(), view.owner().end());
  for (uint32_t p = 0; p < index.partitions(); ++p) facts.empty.push_back(index.IsEmpty(p));
  facts.init_id = view.init_id();
  facts.term = attempt_.term;
  facts.base_version = view.first_step();
  if (view.has_base()) attempt_.base = view.base();
  // Every shard has applied what a checkpoint of the attempt contains.
  if (!facts_.mode().synchronous() && facts_.storage.has_newest) {
    facts.base_ledger = LedgerOf(facts_.storage.newest);
  }
  return absl::OkStatus();
}

absl::Status Takeover::CheckReply(uint64_t shard, const v1::View& newest) const {
  const v1::PauseReply& reply = training_.change().replies().at(shard);
  if (reply.view().attempt() != attempt_.number) {
    return absl::FailedPreconditionError("a shard is in another attempt");
  }
  if (Same(reply.view(), newest.id())) return absl::OkStatus();
  // The leases with which the newest view began were known to the earlier coordinator alone.
  if (!facts_.mode().synchronous() && shard == attempt_.arbiter()) {
    return absl::FailedPreconditionError("the shard with the leases lacks the newest view");
  }
  return absl::OkStatus();
}

std::vector<v1::ProcessId> Takeover::LeftOut() const {
  std::vector<v1::ProcessId> left_out;
  const v1::View& view = training_.view();
  for (const v1::View::Member& member : view.workers()) {
    if (facts_.members.Find(member.process().incarnation()) == nullptr) {
      left_out.push_back(member.process());
    }
  }
  for (const Process* worker : facts_.members.Living(v1::WORKER)) {
    if (worker->newest_view.attempt() == attempt_.number &&
        !IsMember(view, worker->incarnation())) {
      left_out.push_back(worker->id);
    }
  }
  return left_out;
}

}  // namespace sluice::coordinator
