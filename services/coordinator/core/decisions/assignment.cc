#include "services/coordinator/core/decisions/assignment.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "services/common/check.h"

namespace sluice::coordinator {
namespace {

std::vector<double> Shares(const std::vector<double>& weights) {
  double sum = 0;
  size_t known = 0;
  for (double weight : weights) {
    if (weight > 0 && std::isfinite(weight)) {
      sum += weight;
      ++known;
    }
  }
  const double mean = known == 0 ? 1 : sum / static_cast<double>(known);
  std::vector<double> shares;
  double total = 0;
  for (double weight : weights) {
    shares.push_back(weight > 0 && std::isfinite(weight) ? weight : mean);
    total += shares.back();
  }
  for (double& share : shares) share /= total;
  return shares;
}

// The largest power of two that is at most an eighth of the mean range.
uint64_t Alignment(uint64_t total, size_t ranges) {
  uint64_t alignment = 1;
  while (alignment * 2 * 8 * ranges <= total) alignment *= 2;
  return alignment;
}

double StepTime(const std::vector<Interval>& ranges, const std::vector<double>& speeds) {
  double longest = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    longest = std::max(longest, static_cast<double>(ranges[i].size()) / speeds[i]);
  }
  return longest;
}

}  // namespace

std::vector<Interval> Apportion(uint64_t total, const std::vector<double>& weights, bool aligned) {
  const size_t count = weights.size();
  if (count == 0) return {};

  const std::vector<double> shares = Shares(weights);
  const uint64_t unit = aligned ? Alignment(total, count) : 1;

  std::vector<Interval> ranges;
  uint64_t begin = 0;
  double cumulated = 0;
  for (size_t i = 0; i < count; ++i) {
    cumulated += shares[i];
    uint64_t end = static_cast<uint64_t>(std::llround(cumulated * static_cast<double>(total) /
                                                      static_cast<double>(unit))) *
                   unit;
    // At least one for this range and for each that follows.
    const uint64_t following = count - 1 - i;
    end = std::max(end, begin + 1);
    end = std::min(end, total > following ? total - following : 0);
    end = std::max(end, begin);
    if (i + 1 == count) end = total;
    SLUICE_DCHECK(begin <= end && end <= total, "ranges are parts of the whole, in order");
    SLUICE_DCHECK(total < count || begin < end, "no range is empty if there is enough for all");
    ranges.push_back({begin, end});
    begin = end;
  }
  SLUICE_DCHECK(begin == total, "the ranges are the whole");
  return ranges;
}

namespace {

// Whether a member that has these microbatches can compute them in every step.
bool IsComputable(const Division& division, const Interval& range) {
  return std::all_of(division.steps.begin(), division.steps.end(), [&](uint64_t step) {
    const auto samples_before = [&](uint64_t microbatch) {
      return microbatch >= step / division.microbatch_size + 1
                 ? step
                 : std::min(step, microbatch * division.microbatch_size);
    };
    const uint64_t samples = samples_before(range.end) - samples_before(range.begin);
    return samples == 0 || samples >= division.smallest;
  });
}

}  // namespace

std::vector<Interval> Divide(const Division& division, const std::vector<double>& weights) {
  const uint64_t total = division.microbatches;
  std::vector<Interval> ranges = Apportion(total, weights, division.aligned);
  if (division.smallest <= 1 || division.aligned) return ranges;
  uint64_t begin = 0;
  for (Interval& range : ranges) {
    uint64_t end = std::max(begin, range.end);
    // The range that remains for later members must be computable too.
    while (end < total &&
           !(IsComputable(division, {begin, end}) && IsComputable(division, {end, total}))) {
      ++end;
    }
    range = {begin, end};
    begin = end;
  }
  return ranges;
}

uint64_t MostRanges(const Division& division) {
  if (division.smallest <= 1 || division.aligned) return division.microbatches;
  const uint64_t needed =
      (division.smallest + division.microbatch_size - 1) / division.microbatch_size;
  return std::max<uint64_t>(1, division.microbatches / needed);
}

double Imbalance(const std::vector<Interval>& ranges, const std::vector<double>& speeds,
                 const Division& division) {
  if (ranges.empty() || ranges.size() != speeds.size()) return 1;
  for (double speed : speeds) {
    if (!(speed > 0) || !std::isfinite(speed)) return 1;
  }
  const double best = StepTime(Divide(division, speeds), speeds);
  return best > 0 ? StepTime(ranges, speeds) / best : 1;
}

}  // namespace sluice::coordinator
