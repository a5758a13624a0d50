#include "services/protocol/interval_set.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace sluice {

v1::Range ToProto(const Interval& interval) {
  v1::Range range;
  range.set_begin(interval.begin);
  range.set_end(interval.end);
  return range;
}

absl::StatusOr<IntervalSet> IntervalSet::FromProtos(
    const google::protobuf::RepeatedPtrField<v1::Range>& ranges) {
  IntervalSet set;
  uint64_t previous_end = 0;
  bool first = true;
  for (const v1::Range& range : ranges) {
    if (range.begin() >= range.end() || (!first && range.begin() < previous_end)) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranges must be ascending, disjoint and not empty: [", range.begin(), ", ",
                       range.end(), ") follows one that ends at ", previous_end));
    }
    set.Add(FromProto(range));
    previous_end = range.end();
    first = false;
  }
  return set;
}

void IntervalSet::ToProtos(google::protobuf::RepeatedPtrField<v1::Range>* ranges) const {
  ranges->Clear();
  for (const auto& [begin, end] : ranges_) *ranges->Add() = ToProto({begin, end});
}

void IntervalSet::Add(const Interval& interval) {
  if (interval.empty()) return;

  uint64_t begin = interval.begin;
  uint64_t end = interval.end;
  auto it = ranges_.upper_bound(begin);

  // Every range that touches the new one is merged into it.
  if (it != ranges_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ranges_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    count_ -= it->second - it->first;
    it = ranges_.erase(it);
  }

  ranges_.emplace(begin, end);
  count_ += end - begin;
}

void IntervalSet::Add(const IntervalSet& other) {
  for (const auto& [begin, end] : other.ranges_) Add({begin, end});
}

void IntervalSet::Remove(const Interval& interval) {
  if (interval.empty()) return;
  auto it = ranges_.upper_bound(interval.begin);
  if (it != ranges_.begin() && std::prev(it)->second > interval.begin) --it;

  while (it != ranges_.end() && it->first < interval.end) {
    const Interval old{it->first, it->second};
    count_ -= old.size();
    it = ranges_.erase(it);

    if (old.begin < interval.begin) {
      ranges_.emplace(old.begin, interval.begin);
      count_ += interval.begin - old.begin;
    }
    if (interval.end < old.end) {
      ranges_.emplace(interval.end, old.end);
      count_ += old.end - interval.end;
    }
  }
}

bool IntervalSet::Contains(uint64_t value) const {
  auto it = ranges_.upper_bound(value);
  return it != ranges_.begin() && std::prev(it)->second > value;
}

bool IntervalSet::ContainsAll(const Interval& interval) const {
  if (interval.empty()) return true;
  auto it = ranges_.upper_bound(interval.begin);
  return it != ranges_.begin() && std::prev(it)->second >= interval.end;
}

bool IntervalSet::Intersects(const Interval& interval) const {
  if (interval.empty()) return false;
  auto it = ranges_.lower_bound(interval.end);
  return it != ranges_.begin() && std::prev(it)->second > interval.begin;
}

Interval IntervalSet::FirstGap(uint64_t from, uint64_t end, uint64_t limit) const {
  uint64_t begin = from;
  auto it = ranges_.upper_bound(begin);
  if (it != ranges_.begin() && std::prev(it)->second > begin) begin = std::prev(it)->second;
  if (begin >= end || limit == 0) return {};
  uint64_t stop = end;
  if (it != ranges_.end()) stop = std::min(stop, it->first);
  return {begin, std::min(stop, limit > stop - begin ? stop : begin + limit)};
}

std::vector<Interval> IntervalSet::Intervals() const {
  std::vector<Interval> intervals;
  for (const auto& [begin, end] : ranges_) intervals.push_back({begin, end});
  return intervals;
}

}  // namespace sluice
