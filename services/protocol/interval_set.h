// A set of unsigned integers, stored as disjoint half-open ranges: the samples of a job that were
// applied (the data ledger).

#ifndef SLUICE_SERVICES_PROTOCOL_INTERVAL_SET_H_
#define SLUICE_SERVICES_PROTOCOL_INTERVAL_SET_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/common.pb.h"

namespace sluice {

struct Interval {
  uint64_t begin = 0;  // half-open: [begin, end)
  uint64_t end = 0;

  uint64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  friend bool operator==(const Interval& a, const Interval& b) {
    return a.begin == b.begin && a.end == b.end;
  }
};

// Unchecked: a range that ends before it begins becomes an empty interval, whose size() is
// meaningless.
inline Interval FromProto(const v1::Range& range) { return {range.begin(), range.end()}; }
v1::Range ToProto(const Interval& interval);

// Memory and the time of a call depend on the number of ranges, not on that of integers. One thread
// at a time.
class IntervalSet {
 public:
  // INVALID_ARGUMENT if the ranges are not ascending, disjoint and non-empty.
  static absl::StatusOr<IntervalSet> FromProtos(
      const google::protobuf::RepeatedPtrField<v1::Range>& ranges);
  // Replaces the content of `ranges` by the set's ranges, ascending.
  void ToProtos(google::protobuf::RepeatedPtrField<v1::Range>* ranges) const;

  // Adjacent and overlapping ranges are merged.
  void Add(const Interval& interval);
  void Add(const IntervalSet& other);
  void Remove(const Interval& interval);

  bool Contains(uint64_t value) const;
  bool ContainsAll(const Interval& interval) const;
  bool Intersects(const Interval& interval) const;

  // At most the first `limit` values of the lowest gap at or above `from` and below `end`, as one
  // contiguous range. Empty: there is no gap.
  Interval FirstGap(uint64_t from, uint64_t end, uint64_t limit) const;

  // Number of integers in the set.
  uint64_t Count() const { return count_; }
  bool empty() const { return ranges_.empty(); }
  // All ranges, ascending and disjoint.
  std::vector<Interval> Intervals() const;

  friend bool operator==(const IntervalSet& a, const IntervalSet& b) {
    return a.ranges_ == b.ranges_;
  }

 private:
  std::map<uint64_t, uint64_t> ranges_;  // begin -> end; disjoint, not adjacent
  uint64_t count_ = 0;
};

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_INTERVAL_SET_H_
