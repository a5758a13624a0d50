#include "services/coordinator/core/facts/shard_load.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "services/common/check.h"

namespace sluice::coordinator {
namespace {

constexpr double kHot = 2;  // times the median load
// A fraction of its time: a shard that is less busy delays no step.
constexpr double kLeastBusy = 0.1;
// A load that the shard's bytes explain is not changed by moving bytes.
constexpr double kLeastCost = 1.5 * ShardLoad::kNormalCost;

// The lower one of two: with two shards, one of them may be hot.
double Median(const std::map<uint64_t, double>& values) {
  std::vector<double> sorted;
  for (const auto& [shard, value] : values) sorted.push_back(value);
  if (sorted.empty()) return 0;
  const size_t middle = (sorted.size() - 1) / 2;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(middle), sorted.end());
  return sorted[middle];
}

template <typename Value>
void KeepOnly(const std::map<uint64_t, uint64_t>& shards, std::map<uint64_t, Value>* values) {
  for (auto entry = values->begin(); entry != values->end();) {
    entry = shards.count(entry->first) == 0 ? values->erase(entry) : std::next(entry);
  }
}

}  // namespace

bool ShardLoad::Due(absl::Time now) const {
  return marks_.empty() || now - marks_.back().at >= kInterval;
}

// The seconds for which each shard with bytes was busy.
ShardLoad::ByShard ShardLoad::Between(const Mark& from, const Mark& to) const {
  ByShard load;
  for (const auto& [shard, bytes] : bytes_) {
    const auto before = from.busy.find(shard);
    const auto after = to.busy.find(shard);
    const bool known = before != from.busy.end() && after != to.busy.end();
    if (bytes > 0) load[shard] = known ? std::max(0.0, after->second - before->second) : 0;
  }
  return load;
}

// In each interval of the window.
bool ShardLoad::Hot(uint64_t shard) const {
  for (size_t i = 1; i < marks_.size(); ++i) {
    const ByShard load = Between(marks_[i - 1], marks_[i]);
    SLUICE_DCHECK(load.count(shard) > 0, "a shard with bytes has a load");
    const double mine = load.at(shard);
    if (mine <= kHot * Median(load) ||
        mine < kLeastBusy * absl::ToDoubleSeconds(marks_[i].at - marks_[i - 1].at)) {
      return false;
    }
  }
  return true;
}

std::vector<ShardLoad::Change> ShardLoad::Measure(const std::map<uint64_t, uint64_t>& bytes,
                                                  absl::Time now) {
  SLUICE_DCHECK(marks_.empty() || marks_.back().at <= now, "times do not go backwards");
  if (bytes != bytes_ || bytes.empty()) marks_.clear();
  bytes_ = bytes;
  if (!bytes.empty()) {
    KeepOnly(bytes, &busy_);
    KeepOnly(bytes, &cost_);
  }
  marks_.push_back({now, busy_});
  if (marks_.size() > 1) {
    const ByShard load = Between(marks_[marks_.size() - 2], marks_.back());
    const double median = Median(load);
    highest_ = 0;
    for (const auto& [shard, mine] : load) {
      if (median > 0) highest_ = std::max(highest_, mine / median);
    }
  }

  std::vector<Change> changes;
  if (now - marks_.front().at < kWindow) return changes;
  const ByShard load = Between(marks_.front(), marks_.back());
  ByShard per_byte;
  for (const auto& [shard, mine] : load) {
    per_byte[shard] = mine / static_cast<double>(bytes_.at(shard));
  }
  const double median = Median(load);
  const double usual = Median(per_byte);
  for (const auto& [shard, held] : bytes_) {
    if (usual <= 0 || now < quiet_until_) break;
    if (held == 0) {
      // Nothing can be measured there, so it is given something again.
      if (CostOf(shard) == kNormalCost) continue;
      Set(shard, kNormalCost);
      changes.push_back({shard, 0, kNormalCost});
      continue;
    }
    const double mine = load.at(shard);
    const double measured = kNormalCost * per_byte.at(shard) / usual;
    double cost = CostOf(shard);
    if (measured < cost / 2) {
      cost = measured < kLeastCost ? kNormalCost : measured;
    } else if (measured >= kLeastCost && Hot(shard)) {
      cost = std::max(cost, std::min<double>(measured, kMaxCost));
    }
    if (static_cast<uint32_t>(cost) == CostOf(shard)) continue;
    Set(shard, static_cast<uint32_t>(cost));
    changes.push_back({shard, mine / median, CostOf(shard)});
  }
  if (!changes.empty()) {
    quiet_until_ = now + quiet_;
    quiet_ = std::min(2 * quiet_, kLastQuiet);
  }
  while (marks_.size() > 1 && now - marks_[1].at >= kWindow) marks_.pop_front();
  return changes;
}

uint32_t ShardLoad::CostOf(uint64_t shard) const {
  const auto found = cost_.find(shard);
  return found == cost_.end() ? kNormalCost : found->second;
}

void ShardLoad::Set(uint64_t shard, uint32_t cost) {
  SLUICE_DCHECK(kNormalCost <= cost && cost <= kMaxCost,
                "a cost is between the usual and the most");
  SLUICE_DCHECK(cost != CostOf(shard), "each change of a cost is counted");
  if (cost == kNormalCost) {
    cost_.erase(shard);
  } else {
    cost_[shard] = cost;
  }
  ++changes_;
}

}  // namespace sluice::coordinator
