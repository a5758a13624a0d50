#ifndef SLUICE_SERVICES_PS_CORE_TESTING_TWO_MEMBERS_TEST_H_
#define SLUICE_SERVICES_PS_CORE_TESTING_TWO_MEMBERS_TEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {

// Two members, 7 and 8, of view 1; 7 has microbatches [0, 2), 8 has [2, 4).
class TwoMembersTest : public ::testing::Test {
 protected:
  void Begin() {
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
  }
  // One member's push of a partition, with `value` for every element.
  void PushOne(uint64_t step, uint32_t p, float value = 1) {
    shard.Push(one, step, p, ValuesOf(p, value), ShardHarness::Microbatches(0, 2), samples);
  }
  void PushTwo(uint64_t step, uint32_t p, float value = 1) {
    shard.Push(two, step, p, ValuesOf(p, value), ShardHarness::Microbatches(2, 4), samples);
  }
  // Both members push a partition of a step. If each push is of one sample, the optimizer Add then
  // adds `value` to every element.
  void Close(uint64_t step, uint32_t p, float value = 1) {
    PushOne(step, p, value);
    PushTwo(step, p, value);
  }
  // The same of both partitions.
  void Step(uint64_t step, float value = 1) {
    Close(step, 0, value);
    Close(step, 1, value);
  }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
  uint64_t samples = 1;  // of each push

 private:
  static std::vector<float> ValuesOf(uint32_t p, float value) {
    return std::vector<float>(p == 0 ? 4 : 2, value);
  }
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TESTING_TWO_MEMBERS_TEST_H_
