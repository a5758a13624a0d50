#include "services/coordinator/core/attempt.h"

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"

namespace sluice::coordinator {

bool Attempt::HasShard(uint64_t shard) const { return absl::c_linear_search(facts.shards, shard); }

std::vector<uint32_t> Attempt::PartitionsWithBlocks(uint64_t shard) const {
  std::vector<uint32_t> partitions;
  for (uint32_t p = 0; p < facts.owner.size(); ++p) {
    if (facts.shards[facts.owner[p]] == shard && !facts.empty[p]) partitions.push_back(p);
  }
  return partitions;
}

bool Attempt::HasBlocks(uint64_t shard) const {
  for (size_t p = 0; p < facts.owner.size(); ++p) {
    if (facts.shards[facts.owner[p]] == shard && !facts.empty[p]) return true;
  }
  return false;
}

uint64_t Attempt::LastStep() const { return std::max(length->total_steps(), facts.base_version); }

uint64_t Attempt::LastSample() const {
  const auto& applied = facts.base_ledger.applied();
  return std::max(length->total_samples(), applied.empty() ? 0 : applied.rbegin()->end());
}

}  // namespace sluice::coordinator
