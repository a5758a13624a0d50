#include "services/ps/core/state/hashes.h"

#include "services/ps/core/state/partition_file.h"

namespace sluice::ps {

void StateHashes::OnVersion(const Partition& partition, uint64_t interval) {
  const uint64_t version = partition.version();
  if (interval == 0 || version % interval != 0) return;

  std::deque<StepHash>& hashes = hashes_[partition.id()];
  while (!hashes.empty() && hashes.back().step >= version) hashes.pop_back();
  hashes.push_back({version, StateHash(*partition.Pin(version))});
  if (hashes.size() > kMaxStepHashes) hashes.pop_front();
}

void StateHashes::FillIn(PartitionContent* content) const {
  const auto found = hashes_.find(content->partition);
  if (found == hashes_.end()) return;
  for (const StepHash& entry : found->second) {
    if (entry.step <= content->version) content->step_hashes.push_back(entry);
  }
}

}  // namespace sluice::ps
