#ifndef SLUICE_TESTS_FUZZ_SHARD_BOUNDS_H_
#define SLUICE_TESTS_FUZZ_SHARD_BOUNDS_H_

#include <cstddef>
#include <cstdio>
#include <string>

#include "services/common/check.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/shard_core.h"

namespace sluice::fuzz {

// Ends the process if the shard stores more than a bound of ShardOptions allows.
inline void CheckBoundsOf(const ps::ShardStatus& status) {
  for (size_t i = 0; i < ps::kBounds; ++i) {
    if (status.bounds[i].used <= status.bounds[i].limit) continue;
    std::fprintf(stderr, "%s: %llu of %llu\n", std::string(ps::kBoundNames[i]).c_str(),
                 static_cast<unsigned long long>(status.bounds[i].used),
                 static_cast<unsigned long long>(status.bounds[i].limit));
    SLUICE_CHECK(false, "no bound is exceeded");
  }
}

}  // namespace sluice::fuzz

#endif  // SLUICE_TESTS_FUZZ_SHARD_BOUNDS_H_
