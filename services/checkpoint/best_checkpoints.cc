#include "services/checkpoint/best_checkpoints.h"

#include <algorithm>
#include <cmath>

namespace sluice {

std::vector<v1::CheckpointRef> BestCheckpoints(std::vector<ValuedCheckpoint> checkpoints,
                                               bool maximize, uint64_t count) {
  checkpoints.erase(std::remove_if(checkpoints.begin(), checkpoints.end(),
                                   [](const auto& entry) { return !std::isfinite(entry.second); }),
                    checkpoints.end());

  std::sort(checkpoints.begin(), checkpoints.end(), [&](const auto& a, const auto& b) {
    if (a.second != b.second) return maximize ? a.second > b.second : a.second < b.second;
    return std::make_pair(a.first.attempt(), a.first.step()) <
           std::make_pair(b.first.attempt(), b.first.step());
  });

  std::vector<v1::CheckpointRef> best;
  for (const auto& [ref, value] : checkpoints) {
    if (best.size() < count) best.push_back(ref);
  }
  return best;
}

}  // namespace sluice
