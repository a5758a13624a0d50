// The checks of asynchronous training and bounded staleness: updates and leases.
#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/simulation/checker/checker.h"

namespace sluice::simulation {
namespace {

// Chooses tags that add up to `rest`: at most one from each set, starting with the set at `place`.
bool Choose(const std::vector<std::vector<double>>& sets, size_t place, double rest,
            std::vector<double>* chosen) {
  if (rest == 0) return true;
  if (rest < 0 || place == sets.size()) return false;
  if (Choose(sets, place + 1, rest, chosen)) return true;
  for (double tag : sets[place]) {
    chosen->push_back(tag);
    if (Choose(sets, place + 1, rest - tag, chosen)) return true;
    chosen->pop_back();
  }
  return false;
}

}  // namespace

void Checker::OnUpdate(double tag, const PositionRange& positions) { updates_[tag] = {positions}; }

std::optional<Checker::Applied> Checker::Origin(const PartitionFacts& content) const {
  Applied applied;
  bool initial = true;
  for (size_t i = 0; i < content.blocks.size(); ++i) {
    const Elements3 expected = model_.Initial(TensorOf(content.partition, i));
    initial = initial && content.blocks[i][0] == expected[0] && content.blocks[i][1] == 0;
    applied.content.push_back(expected);
  }
  if (initial) return applied;
  auto it = history_.find({content.partition, content.blocks});
  if (it == history_.end()) return std::nullopt;
  return it->second;
}

bool Checker::Apply(double tag, Applied* applied) {
  const Update& update = updates_[tag];
  const Interval samples{update.positions.begin, update.positions.end};
  if (!applied->updates.insert(tag).second || applied->samples.Intersects(samples)) {
    Fail(absl::StrCat("samples [", samples.begin, ", ", samples.end, ") are applied twice"));
    return false;
  }
  applied->samples.Add(samples);
  return true;
}

bool Checker::Explain(const ShardNow& now, const PartitionFacts& content, Applied* applied) {
  size_t loud = 0;
  while (loud < content.blocks.size() && model_.IsSilent(TensorOf(content.partition, loud))) ++loud;
  if (loud == content.blocks.size()) return content.blocks == applied->content;

  double rest = content.blocks[loud][1] - applied->content[loud][1];
  std::vector<double> found;
  if (updates_.count(rest) != 0) {
    found = {rest};
  } else {
    // An Install may apply the last updates of several workers at once.
    std::vector<std::vector<double>> open;  // by worker
    for (const auto& [worker, samples] : now.last_samples) {
      if (applied->samples.Intersects({samples.begin, samples.end})) continue;
      std::vector<double>& tags = open.emplace_back();
      for (const auto& [tag, update] : updates_) {
        if (update.positions == samples) tags.push_back(tag);
      }
    }
    if (!Choose(open, 0, rest, &found)) return false;
  }

  for (double tag : found) {
    if (!Apply(tag, applied)) return true;  // reported
    for (size_t i = 0; i < content.blocks.size(); ++i) {
      const uint32_t tensor = TensorOf(content.partition, i);
      if (model_.IsSilent(tensor)) continue;
      applied->content[i][0] += model_.SumOf(updates_[tag].positions, tensor);
      applied->content[i][1] += tag;
    }
  }

  for (size_t i = 0; i < content.blocks.size(); ++i) {
    if (content.blocks[i][0] != applied->content[i][0] ||
        content.blocks[i][1] != applied->content[i][1]) {
      return false;
    }
  }
  return true;
}

void Checker::CheckUpdates(const ShardNow& now, const PartitionFacts& content) {
  const auto key = std::make_tuple(now.view.attempt(), now.incarnation, content.partition);
  auto it = applied_.find(key);
  if (it == applied_.end()) {
    std::optional<Applied> origin = Origin(content);
    if (!origin) {
      return Fail(
          absl::StrCat(Where(now, content),
                       ": begins with a content that is neither initial nor of a checkpoint"));
    }
    it = applied_.emplace(key, *std::move(origin)).first;
  }

  const bool same = std::equal(
      content.blocks.begin(), content.blocks.end(), it->second.content.begin(),
      [](const Elements3& a, const Elements3& b) { return a[0] == b[0] && a[1] == b[1]; });
  if (!same && !Explain(now, content, &it->second)) {
    return Fail(absl::StrCat(Where(now, content), ": the change is not a set of whole updates"));
  }
  if (!same) history_[{content.partition, content.blocks}] = it->second;
}

void Checker::BeginLeases(uint64_t attempt) {
  if (attempt == lease_attempt_) return;
  lease_attempt_ = attempt;
  leases_.clear();
  raised_.clear();
  recorded_.clear();
}

// A lease counts from its record on. If shards have copies of partition 0, the worker gets the
// lease only when they have recorded it too, and the other holders may continue meanwhile. So it is
// judged here, and not when the worker gets it.
void Checker::OnLeaseRecorded(const ShardNow& arbiter, uint64_t worker, const v1::Lease& lease) {
  if (job_.training().mode() != v1::BOUNDED_STALENESS) return;
  // A thawed arbiter may record leases in a view that has ended. It can give none of them.
  if (known_views_.empty() || known_views_.rbegin()->first != Order(arbiter.view)) return;
  BeginLeases(arbiter.view.attempt());

  // New copies, and new streams, repeat the record of a lease that the worker has.
  const Interval samples = FromProto(lease.samples());
  const auto given = leases_.find(worker);
  const Applied* const applied = AppliedOn(arbiter);
  if (applied != nullptr && applied->samples.ContainsAll(samples)) return;
  if (given != leases_.end() && given->second.begin <= samples.begin &&
      samples.end <= given->second.end) {
    return;
  }

  if (recorded_.count(worker) == 0) CheckRaised(arbiter, worker, lease.clock());
  recorded_[worker] = lease.clock();
}

void Checker::OnLease(const ShardNow& arbiter, uint64_t worker, const v1::Lease& lease) {
  BeginLeases(arbiter.view.attempt());
  const bool recorded = recorded_.erase(worker) > 0;
  if (lease.samples().begin() >= lease.samples().end()) return;
  if (job_.training().mode() == v1::BOUNDED_STALENESS && !recorded) {
    CheckRaised(arbiter, worker, lease.clock());
  }
  leases_[worker] = FromProto(lease.samples());
  raised_[worker] = std::max(raised_[worker], lease.clock());
}

void Checker::OnPullAnswered(const ShardNow& shard, bool arbiter, uint64_t worker, uint64_t clock) {
  if (job_.training().mode() != v1::BOUNDED_STALENESS) return;
  auto view = known_views_.find(Order(shard.view));
  if (shard.view.attempt() != lease_attempt_ || view == known_views_.end()) return;

  const auto answer = std::make_tuple(worker, Order(shard.view), clock);
  if (arbiter) {
    answers_[answer] = LeaseHolders(shard, view->second);
  } else if (answers_.count(answer) == 0) {
    return Fail(absl::StrCat("shard ", shard.incarnation % 1000, " answers clock ", clock,
                             " before the arbiter does (R13)"));
  }

  for (const v1::View::Member& member : view->second.workers()) {
    const uint64_t other = member.process().incarnation();
    if (other == worker || answers_[answer].count(other) == 0) continue;
    auto record = shard.clocks.find(other);
    const uint64_t reached =
        std::max(raised_[other], record == shard.clocks.end() ? 0 : record->second);
    if (clock > reached + job_.training().max_staleness()) {
      Fail(absl::StrCat("shard ", shard.incarnation % 1000, " answers clock ", clock,
                        " while a lease holder has reached only ", reached, " (R13)"));
    }
  }
}

void Checker::CheckRaised(const ShardNow& arbiter, uint64_t worker, uint64_t clock) {
  const auto view = known_views_.find(Order(arbiter.view));
  if (view == known_views_.end()) return;
  const std::set<uint64_t> holders = LeaseHolders(arbiter, view->second);
  if (holders.empty() || holders.count(worker) > 0) return;

  uint64_t lowest = std::numeric_limits<uint64_t>::max();
  for (uint64_t holder : holders) {
    const auto record = arbiter.clocks.find(holder);
    const uint64_t applied = record == arbiter.clocks.end() ? 0 : record->second;
    lowest = std::min(lowest, std::max(raised_[holder], applied));
  }
  for (const v1::View::Member& member : view->second.workers()) {
    const auto recorded = recorded_.find(member.process().incarnation());
    if (recorded != recorded_.end()) lowest = std::min(lowest, recorded->second);
  }
  if (clock < lowest) {
    Fail(absl::StrCat("a worker gets a lease at clock ", clock, ", below all lease holders (R13)"));
  }
}

const Checker::Applied* Checker::AppliedOn(const ShardNow& shard) {
  const auto loud = std::find_if(shard.partitions.begin(), shard.partitions.end(),
                                 [this](const PartitionFacts& p) { return !IsSilent(p); });
  if (loud == shard.partitions.end()) return nullptr;
  return &applied_[{shard.view.attempt(), shard.incarnation, loud->partition}];
}

std::set<uint64_t> Checker::LeaseHolders(const ShardNow& arbiter, const v1::View& view) {
  std::set<uint64_t> holders;
  const Applied* const applied = AppliedOn(arbiter);
  if (applied == nullptr) return holders;
  for (const v1::View::Member& member : view.workers()) {
    auto lease = leases_.find(member.process().incarnation());
    if (lease == leases_.end() || applied->samples.ContainsAll(lease->second)) continue;
    holders.insert(member.process().incarnation());
  }
  return holders;
}

}  // namespace sluice::simulation
