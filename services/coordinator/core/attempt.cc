#include "services/coordinator/core/attempt.h"

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "services/common/check.h"

namespace sluice::coordinator {

void Attempt::SetPartitions(const LayoutIndex& index) {
  SLUICE_DCHECK(facts.owner.size() == index.partitions(), "each partition has an owner");
  facts.empty.clear();
  bytes.clear();
  for (uint32_t p = 0; p < index.partitions(); ++p) {
    facts.empty.push_back(index.IsEmpty(p));
    bytes.push_back(index.PartitionBytes(p));
  }
}

void Attempt::OnView(const v1::View& view) {
  shards.assign(view.shards().begin(), view.shards().end());
  facts.owner.assign(view.owner().begin(), view.owner().end());
  facts.shards.clear();
  for (const v1::View::Shard& shard : shards) {
    facts.shards.push_back(shard.process().incarnation());
  }
  SLUICE_DCHECK(absl::c_all_of(facts.owner, [&](uint32_t p) { return p < facts.shards.size(); }),
                "an owner is the position of a shard");
}

bool Attempt::OwnersChange(const v1::View& view) const {
  SLUICE_DCHECK(view.owner_size() == static_cast<int>(facts.owner.size()),
                "the number of partitions does not change within an attempt");
  for (size_t p = 0; p < facts.owner.size(); ++p) {
    const uint32_t next = view.owner(static_cast<int>(p));
    if (!facts.empty[p] && view.shards(static_cast<int>(next)).process().incarnation() !=
                               facts.shards[facts.owner[p]]) {
      return true;
    }
  }
  return false;
}

bool Attempt::HasShard(uint64_t shard) const { return absl::c_linear_search(facts.shards, shard); }

std::vector<uint32_t> Attempt::PartitionsWithBlocks(uint64_t shard) const {
  SLUICE_DCHECK(facts.owner.size() == facts.empty.size(), "both lists are by partition");
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

uint64_t Attempt::LastStep() const {
  SLUICE_DCHECK(length.has_value(), "the job's length is known");
  return std::max(length->total_steps(), facts.base_version);
}

uint64_t Attempt::LastSample() const {
  const auto& applied = facts.base_ledger.applied();
  return std::max(length->total_samples(), applied.empty() ? 0 : applied.rbegin()->end());
}

}  // namespace sluice::coordinator
