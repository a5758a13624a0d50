// Reads the members of a view, for tests.
#ifndef SLUICE_SERVICES_COORDINATOR_CORE_TESTING_VIEW_MEMBERS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_TESTING_VIEW_MEMBERS_H_

#include <cstdint>
#include <vector>

#include "proto/common.pb.h"

namespace sluice::coordinator {

inline std::vector<uint32_t> MemberIndices(const v1::View& view) {
  std::vector<uint32_t> indices;
  for (const auto& member : view.workers()) indices.push_back(member.process().index());
  return indices;
}

// How many microbatches of a step the worker with this index computes.
inline uint64_t MicrobatchesOf(const v1::View& view, uint32_t index) {
  uint64_t count = 0;
  for (const auto& member : view.workers()) {
    if (member.process().index() != index) continue;
    for (const v1::Range& range : member.microbatches()) count += range.end() - range.begin();
  }
  return count;
}

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_TESTING_VIEW_MEMBERS_H_
