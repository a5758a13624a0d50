#ifndef SLUICE_SERVICES_PS_CORE_TESTING_SHARD_PAIR_TEST_H_
#define SLUICE_SERVICES_PS_CORE_TESTING_SHARD_PAIR_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "services/ps/core/testing/shard_pair.h"

namespace sluice::ps {

// A test in which no stream between the two shards may break.
class ShardPairTest : public ::testing::Test, public ShardPair {
 protected:
  void Pump() {
    ShardPair::Pump();
    EXPECT_TRUE(a.StatusOf(at_a).ok()) << a.StatusOf(at_a);
    EXPECT_TRUE(b.StatusOf(at_b).ok()) << b.StatusOf(at_b);
  }
  void ExpectEqualCopies() {
    for (uint32_t p : {0, 1}) EXPECT_TRUE(IsEqualCopy(p)) << p;
  }
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TESTING_SHARD_PAIR_TEST_H_
