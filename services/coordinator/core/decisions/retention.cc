#include "services/coordinator/core/decisions/retention.h"

#include <algorithm>
#include <tuple>

namespace sluice::coordinator {
namespace {

std::tuple<uint64_t, uint64_t> Order(const v1::CheckpointRef& ref) {
  return {ref.attempt(), ref.step()};
}

}  // namespace

std::vector<v1::CheckpointRef> Superseded(std::vector<v1::CheckpointRef> checkpoints,
                                          const v1::CheckpointRef& current, uint64_t keep) {
  if (keep == 0) return {};
  checkpoints.erase(
      std::remove_if(checkpoints.begin(), checkpoints.end(),
                     [&](const v1::CheckpointRef& ref) { return Order(ref) >= Order(current); }),
      checkpoints.end());
  std::sort(
      checkpoints.begin(), checkpoints.end(),
      [](const v1::CheckpointRef& a, const v1::CheckpointRef& b) { return Order(a) > Order(b); });
  checkpoints.erase(checkpoints.begin(),
                    checkpoints.begin() + static_cast<std::ptrdiff_t>(
                                              std::min<uint64_t>(keep - 1, checkpoints.size())));
  return checkpoints;
}

}  // namespace sluice::coordinator
