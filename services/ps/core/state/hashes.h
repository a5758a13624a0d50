#ifndef SLUICE_SERVICES_PS_CORE_STATE_HASHES_H_
#define SLUICE_SERVICES_PS_CORE_STATE_HASHES_H_

#include <cstdint>
#include <deque>
#include <map>

#include "services/protocol/step_hashes.h"
#include "services/ps/core/state/partition.h"

namespace sluice::ps {

// The state hashes of each partition after recent steps (checkpoint.hashIntervalSteps), which
// checkpoints store, so that `sluice verify` can name the step at which a replay first differs.
//
// Synchronous steps only. A step that a view change takes back closes again and replaces its hash,
// so the hashes up to any version are those of that version's history.
class StateHashes {
 public:
  // The partition has reached a version. Hashes its whole content if the version is a multiple of
  // `interval` (0: never).
  void OnVersion(const Partition& partition, uint64_t interval);
  // Adds the newest kMaxStepHashes hashes up to the content's version.
  void FillIn(PartitionContent* content) const;

 private:
  std::map<uint32_t, std::deque<StepHash>> hashes_;  // by partition; steps ascend
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_STATE_HASHES_H_
