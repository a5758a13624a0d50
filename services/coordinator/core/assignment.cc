#include "services/coordinator/core/assignment.h"

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

double Imbalance(const std::vector<Interval>& ranges, const std::vector<double>& speeds,
                 bool aligned) {
  if (ranges.empty() || ranges.size() != speeds.size()) return 1;
  uint64_t total = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (!(speeds[i] > 0) || !std::isfinite(speeds[i])) return 1;
    total += ranges[i].size();
  }
  const double best = StepTime(Apportion(total, speeds, aligned), speeds);
  return best > 0 ? StepTime(ranges, speeds) / best : 1;
}

}  // namespace sluice::coordinator
