#include "services/coordinator/core/views/moves.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/text/utf8.h"
#include "services/coordinator/core/decisions/member_checks.h"
#include "services/coordinator/core/decisions/placement.h"
#include "services/coordinator/core/lifecycle/initialization.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

// The incarnation at a position of View.follower or View.target; 0: none.
uint64_t HolderAt(const v1::View& view, const google::protobuf::RepeatedField<uint32_t>& positions,
                  uint32_t partition) {
  if (positions.empty()) return 0;
  SLUICE_DCHECK(positions.size() == view.owner_size(), "a view's lists are by partition");
  const uint32_t position_plus_one = positions.Get(static_cast<int>(partition));
  if (position_plus_one == 0) return 0;
  return view.shards(static_cast<int>(position_plus_one) - 1).process().incarnation();
}

// Writes the plan, without the shards that leave and that it does not name.
void Write(const Placement& plan, const std::vector<const Process*>& shards,
           const std::vector<bool>& leaving, v1::View* view) {
  std::vector<bool> kept(shards.size());
  for (size_t s = 0; s < shards.size(); ++s) kept[s] = !leaving[s];
  for (const auto* positions : {&plan.owner, &plan.follower, &plan.target}) {
    for (const uint32_t s : *positions) {
      if (s != Placement::kNone) kept[s] = true;
    }
  }
  std::vector<uint32_t> position(shards.size());
  for (size_t s = 0; s < shards.size(); ++s) {
    if (!kept[s]) continue;
    position[s] = static_cast<uint32_t>(view->shards_size());
    v1::View::Shard& entry = *view->add_shards();
    *entry.mutable_process() = shards[s]->id;
    entry.set_address(shards[s]->address);
  }

  for (const uint32_t s : plan.owner) view->add_owner(position[s]);
  const auto write = [&](const std::vector<uint32_t>& holders, auto* field) {
    const bool any = absl::c_any_of(holders, [](uint32_t s) { return s != Placement::kNone; });
    if (!any) return;
    for (const uint32_t s : holders) field->Add(s == Placement::kNone ? 0 : position[s] + 1);
  };
  write(plan.follower, view->mutable_follower());
  write(plan.target, view->mutable_target());
}

uint64_t OwnerIn(const v1::View& view, uint32_t partition) {
  return view.shards(static_cast<int>(view.owner(static_cast<int>(partition))))
      .process()
      .incarnation();
}

}  // namespace

uint64_t Moves::copies() const {
  return std::max<uint64_t>(facts_.job().parameter_server().copies(), 1);
}

// ---- new shards

// A shard of an earlier view of the attempt must come back as a new process.
bool Moves::MayJoin(const Process& shard) const {
  return facts_.MovesPartitions() && facts_.Stays(shard) && shard.answered &&
         !facts_.attempt.HasShard(shard.incarnation()) &&
         shard.newest_view.attempt() != facts_.attempt.id.number;
}

void Moves::Advance(absl::Time now) {
  SLUICE_DCHECK(facts_.phase == Phase::kRunning && facts_.training.has_view(),
                "shards join while the job trains");
  for (auto entry = new_.begin(); entry != new_.end();) {
    const Process* shard = facts_.members.Find(entry->first);
    entry = shard == nullptr || !MayJoin(*shard) ? new_.erase(entry) : std::next(entry);
  }
  for (const Process* shard : facts_.members.LivingAndConnected(v1::SHARD)) {
    if (MayJoin(*shard) && new_[shard->incarnation()].prepared != shard->stream) Prepare(*shard);
  }
  if (std::exchange(noted_, facts_.training.copy_changes()) != facts_.training.copy_changes()) {
    NoteCopies(now);
  }
}

void Moves::NoteCopies(absl::Time now) {
  const v1::View& view = facts_.training.view();
  SLUICE_DCHECK(view.owner_size() == static_cast<int>(facts_.attempt.facts().empty.size()),
                "the view and the attempt have the same partitions");
  bool complete = !view.follower().empty();
  for (uint32_t p = 0; complete && p < facts_.attempt.facts().empty.size(); ++p) {
    complete = facts_.attempt.facts().empty[p] ||
               facts_.training.HoldsCopy(HolderAt(view, view.follower(), p), p);
  }
  if (complete && !complete_) output_.Info("all partitions have a second copy", now);
  complete_ = complete;
}

void Moves::Prepare(const Process& shard) {
  SLUICE_DCHECK(!facts_.attempt.HasShard(shard.incarnation()), "a shard of the view has a state");
  new_[shard.incarnation()].prepared = shard.stream;
  v1::CoordinatorMessage message;
  v1::PrepareState& prepare = *message.mutable_prepare_state();
  prepare = PrepareStateOf(facts_);
  v1::View::Shard& entry = *prepare.add_shards();
  *entry.mutable_process() = shard.id;
  entry.set_address(shard.address);
  output_.Send(shard, std::move(message));
}

std::string Moves::OnStateReady(const Process& shard, const v1::StateReady& ready) {
  const auto found = new_.find(shard.incarnation());
  if (found == new_.end() || !Same(ready.init_id(), facts_.attempt.facts().init_id)) return "";
  if (!ready.error().empty()) return CleanUtf8(ready.error(), kMaxReasonBytes);
  found->second.ready = true;
  return "";
}

// ---- view changes

std::vector<uint64_t> Moves::Asked() const {
  std::vector<uint64_t> asked;
  for (const uint64_t shard : facts_.attempt.facts().shards) {
    if (facts_.members.Find(shard) != nullptr) asked.push_back(shard);
  }
  for (const uint64_t shard : facts_.training.change().losers()) {
    if (facts_.members.Find(shard) != nullptr && !facts_.attempt.HasShard(shard)) {
      asked.push_back(shard);
    }
  }
  for (const auto& [shard, state] : new_) {
    const Process* process = facts_.members.Find(shard);
    if (state.ready && process != nullptr && MayJoin(*process)) asked.push_back(shard);
  }
  return asked;
}

bool Moves::HasDeadShard() const {
  const auto dead = [&](uint64_t shard) { return facts_.members.Find(shard) == nullptr; };
  return absl::c_any_of(facts_.attempt.facts().shards, dead) ||
         absl::c_any_of(facts_.training.change().losers(), dead);
}

bool Moves::CanContinue() const {
  const v1::View& view = facts_.training.view();
  if (!facts_.MovesPartitions() || !view.has_id()) return false;
  const auto lives = [&](uint64_t shard) {
    return shard != 0 && facts_.members.Find(shard) != nullptr;
  };
  for (uint32_t p = 0; p < facts_.attempt.facts().empty.size(); ++p) {
    if (facts_.attempt.facts().empty[p] || lives(OwnerIn(view, p)) ||
        lives(HolderAt(view, view.follower(), p)) || lives(HolderAt(view, view.target(), p))) {
      continue;
    }
    return false;
  }
  return true;
}

Moves::Inputs Moves::CurrentInputs(bool may_move) const {
  uint64_t leaving = 0;
  for (const uint64_t shard : facts_.attempt.facts().shards) {
    const Process* process = facts_.members.Find(shard);
    if (process != nullptr && process->leaving) ++leaving;
  }
  uint64_t ready = 0;
  for (const auto& [shard, state] : new_) ready += state.ready ? 1 : 0;
  return {facts_.training.view().id().number(),
          facts_.training.copy_changes(),
          facts_.members.changes(),
          facts_.wanted_shards,
          facts_.load.changes(),
          leaving,
          ready,
          may_move};
}

// The decision that would follow from the shards' newest reports.
Decision Moves::FromReports() const {
  const v1::View& view = facts_.training.view();
  Decision decision;
  decision.previous = view;
  decision.holders.resize(facts_.attempt.facts().empty.size());
  for (uint32_t p = 0; p < decision.holders.size(); ++p) {
    if (facts_.attempt.facts().empty[p]) continue;
    decision.holders[p].push_back(OwnerIn(view, p));
    for (const uint64_t holder :
         {HolderAt(view, view.follower(), p), HolderAt(view, view.target(), p)}) {
      if (facts_.training.HoldsCopy(holder, p)) decision.holders[p].push_back(holder);
    }
  }
  return decision;
}

bool Moves::Due(bool may_move, absl::Time now) {
  SLUICE_DCHECK(facts_.training.has_view() && facts_.training.idle(),
                "the plan is compared with a view that all shards have");
  if (!facts_.MovesPartitions() || facts_.attempt.goal != Goal::kNone || HasDeadShard()) {
    due_at_ = absl::InfiniteFuture();
    return false;
  }
  if (Inputs inputs = CurrentInputs(may_move); inputs != inputs_) {
    if (std::get<0>(inputs) != std::get<0>(inputs_)) due_at_ = absl::InfiniteFuture();
    inputs_ = inputs;
    const v1::View& view = facts_.training.view();
    v1::Install install;
    Fill(FromReports(), Asked(), may_move, &install);
    const auto same = [](const auto& a, const auto& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end());
    };
    const auto same_shard = [](const v1::View::Shard& a, const v1::View::Shard& b) {
      return a.process().incarnation() == b.process().incarnation();
    };
    differs_ =
        !std::equal(view.shards().begin(), view.shards().end(), install.view().shards().begin(),
                    install.view().shards().end(), same_shard) ||
        !same(view.owner(), install.view().owner()) ||
        !same(view.follower(), install.view().follower()) ||
        !same(view.target(), install.view().target());
  }
  if (!differs_) {
    due_at_ = absl::InfiniteFuture();
    return false;
  }
  due_at_ = std::min(due_at_, now + facts_.timers.join);
  return due_at_ <= now;
}

void Moves::Fill(const Decision& decision, const std::vector<uint64_t>& replied, bool may_move,
                 v1::Install* install) const {
  const Attempt& attempt = facts_.attempt;
  v1::View& next = *install->mutable_view();
  SLUICE_DCHECK(next.shards().empty() && next.owner().empty(), "a view gets its shards once");
  if (!facts_.MovesPartitions()) {
    *next.mutable_shards() = {attempt.shards().begin(), attempt.shards().end()};
    *next.mutable_owner() = {attempt.facts().owner.begin(), attempt.facts().owner.end()};
    return;
  }

  // The shards that can be in the view, in the order of their indexes.
  std::vector<const Process*> shards;
  for (const uint64_t shard : replied) {
    shards.push_back(facts_.members.Find(shard));
    SLUICE_DCHECK(shards.back() != nullptr, "a shard of the next view is alive");
  }
  std::sort(shards.begin(), shards.end(), [](const Process* a, const Process* b) {
    return std::make_pair(a->id.index(), a->incarnation()) <
           std::make_pair(b->id.index(), b->incarnation());
  });
  std::map<uint64_t, uint32_t> position;
  PlacementInput input;
  for (const Process* shard : shards) {
    position[shard->incarnation()] = static_cast<uint32_t>(position.size());
    input.leaving.push_back(!facts_.Stays(*shard));
    input.cost.push_back(facts_.load.CostOf(shard->incarnation()));
  }

  const size_t partitions = attempt.facts().empty.size();
  SLUICE_DCHECK(decision.holders.size() == partitions, "holders are by partition");
  const auto at = [&](uint64_t shard) {
    const auto found = position.find(shard);
    return found == position.end() ? Placement::kNone : found->second;
  };
  for (uint32_t p = 0; p < partitions; ++p) {
    input.bytes.push_back(attempt.facts().empty[p] ? 0 : std::max<uint64_t>(attempt.bytes()[p], 1));
    const std::vector<uint64_t>& holders = decision.holders[p];
    uint64_t owner = attempt.facts().shards[attempt.facts().owner[p]];
    uint64_t follower = 0;
    uint64_t target = 0;
    if (decision.previous.has_value()) {
      const v1::View& before = *decision.previous;
      owner = holders.empty() ? OwnerIn(before, p) : holders[0];
      follower = HolderAt(before, before.follower(), p);
      target = HolderAt(before, before.target(), p);
    }
    input.current.owner.push_back(at(owner));
    SLUICE_DCHECK(attempt.facts().empty[p] || at(owner) != Placement::kNone,
                  "the owner of a partition with blocks has replied");
    input.current.follower.push_back(follower == owner ? Placement::kNone : at(follower));
    const bool other = target != owner && target != follower;
    input.current.target.push_back(other ? at(target) : Placement::kNone);
    input.follower_whole.push_back(absl::c_linear_search(holders, follower));
    input.target_whole.push_back(absl::c_linear_search(holders, target));
  }
  input.copies = static_cast<uint32_t>(copies());
  input.may_move = may_move;
  Write(PlanPlacement(input), shards, input.leaving, &next);

  for (uint32_t p = 0; p < partitions; ++p) {
    const auto whole = [&](uint64_t holder) {
      return holder != 0 && absl::c_linear_search(decision.holders[p], holder);
    };
    if (whole(HolderAt(next, next.follower(), p))) install->add_whole_followers(p);
    if (whole(HolderAt(next, next.target(), p))) install->add_whole_targets(p);
  }
}

std::set<uint64_t> Moves::Losers(const v1::Install& install) const {
  const v1::View& view = install.view();
  std::set<std::pair<uint64_t, uint32_t>> kept;  // shard, partition
  for (uint32_t p = 0; p < facts_.attempt.facts().empty.size(); ++p) {
    kept.insert({OwnerIn(view, p), p});
  }
  for (const uint32_t p : install.whole_followers()) {
    kept.insert({HolderAt(view, view.follower(), p), p});
  }
  for (const uint32_t p : install.whole_targets()) {
    kept.insert({HolderAt(view, view.target(), p), p});
  }

  std::set<uint64_t> losers;
  for (const auto& [shard, reply] : facts_.training.change().replies()) {
    for (const auto& state : reply.partitions()) {
      const uint32_t p = state.partition();
      const bool with_blocks =
          p < facts_.attempt.facts().empty.size() && !facts_.attempt.facts().empty[p];
      if (with_blocks && kept.count({shard, p}) == 0) losers.insert(shard);
    }
  }
  return losers;
}

std::map<uint64_t, uint64_t> Moves::Holdings() const {
  std::map<uint64_t, uint64_t> bytes;
  const v1::View& view = facts_.training.view();
  if (!facts_.MovesPartitions() || !view.target().empty()) return bytes;
  for (const uint64_t shard : facts_.attempt.facts().shards) bytes[shard] = 0;
  for (uint32_t p = 0; p < facts_.attempt.facts().empty.size(); ++p) {
    if (facts_.attempt.facts().empty[p]) continue;
    bytes[OwnerIn(view, p)] += facts_.attempt.bytes()[p];
    const uint64_t follower = HolderAt(view, view.follower(), p);
    if (follower == 0) continue;
    if (!facts_.training.HoldsCopy(follower, p)) return {};
    bytes[follower] += facts_.attempt.bytes()[p];
  }
  return bytes;
}

std::vector<uint64_t> Moves::Released() const {
  std::vector<uint64_t> released;
  if (!facts_.MovesPartitions()) return released;
  for (const Process* shard : facts_.members.Living(v1::SHARD)) {
    if (!facts_.Stays(*shard) && !facts_.attempt.HasShard(shard->incarnation())) {
      released.push_back(shard->incarnation());
    }
  }
  return released;
}

absl::Time Moves::NextDeadline() const {
  const bool waits = facts_.phase == Phase::kRunning && facts_.training.idle();
  return waits && facts_.newest_event < due_at_ ? due_at_ : absl::InfiniteFuture();
}

// ---- state

void Moves::CopyTo(v1::JobProgress* progress) const {
  const v1::View& view = facts_.training.view();
  uint64_t named = 0;
  uint64_t whole = 0;
  for (const auto* positions : {&view.follower(), &view.target()}) {
    for (int p = 0; p < positions->size(); ++p) {
      const uint64_t holder = HolderAt(view, *positions, static_cast<uint32_t>(p));
      if (holder == 0) continue;
      ++named;
      whole += facts_.training.HoldsCopy(holder, static_cast<uint32_t>(p)) ? 1 : 0;
    }
  }
  progress->set_copies(named);
  progress->set_missing_copies(named - whole);
}

}  // namespace sluice::coordinator
