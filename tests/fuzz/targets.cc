#include <utility>

#include "tests/fuzz/fuzz_target.h"

namespace sluice::fuzz {

std::vector<FuzzTarget> AllTargets() {
  std::vector<FuzzTarget> all;
  for (auto* table : {WireTargets, StorageTargets, DataTargets, JobTargets, KubeTargets,
                      CoordinatorTargets, ShardTargets, CopiesTargets}) {
    for (FuzzTarget& target : table()) all.push_back(std::move(target));
  }
  return all;
}

}  // namespace sluice::fuzz
