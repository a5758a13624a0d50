#ifndef SLUICE_SERVICES_PS_CORE_TESTING_HOSTILE_TEST_H_
#define SLUICE_SERVICES_PS_CORE_TESTING_HOSTILE_TEST_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/two_members_test.h"

namespace sluice::ps {

// A frame that a shard must refuse.
struct Hostile {
  const char* name;
  std::function<void(v1::Header&)> spoil;
  const char* says;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

// Members 7 (microbatches [0, 2)) and 8 ([2, 4)) of a job of 100 steps of 4 samples, each a
// microbatch.
class HostileTest : public TwoMembersTest {
 protected:
  static constexpr auto kRange = ShardHarness::Microbatches;
  static constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  static constexpr auto kDenied = absl::StatusCode::kPermissionDenied;

  HostileTest() {
    shard.job.mutable_training()->set_microbatch_size(1);
    samples = 2;
  }

  v1::Header NewHeader() {
    v1::Header header;
    *header.mutable_view() = shard.core().Status().view;
    return header;
  }
  // The state that a frame could change.
  std::string State() {
    const ShardStatus status = shard.core().Status();
    std::string state = absl::StrCat(
        status.lowest, " ", status.highest, " ", status.committed, " ", status.updates_applied, " ",
        status.staged_updates, " ", status.parked_pulls, " ", status.waiting_frames, " ",
        status.repeated_blocks, " ", status.steps_skipped, " ", status.frozen);
    for (uint32_t partition : {0, 1}) {
      if (shard.owner[partition] != 0) continue;
      for (float value : shard.Values(partition)) absl::StrAppend(&state, " ", value);
    }
    return state;
  }
  // Each frame comes on a new stream of `sender`.
  void ExpectRefused(const std::vector<Hostile>& table, uint64_t sender, const v1::Header& good,
                     const absl::Cord& payload = absl::Cord(), v1::Role role = v1::WORKER) {
    for (const Hostile& hostile : table) {
      SCOPED_TRACE(hostile.name);
      const StreamId stream = shard.Open(sender, role);
      const std::string before = State();
      v1::Header header = good;
      hostile.spoil(header);
      shard.Send(stream, header, payload);
      EXPECT_EQ(shard.StatusOf(stream).code(), hostile.code) << shard.StatusOf(stream);
      EXPECT_THAT(std::string(shard.StatusOf(stream).message()),
                  ::testing::HasSubstr(hostile.says));
      EXPECT_EQ(State(), before);
      EXPECT_THAT(shard.TakeMessages(), ::testing::IsEmpty()) << "no message to the coordinator";
    }
  }
  void Pass(absl::Duration time) {
    shard.now += time;
    shard.core().OnTick(shard.now);
  }
  BoundUse Use(Bound bound) { return shard.core().Status().bounds[static_cast<size_t>(bound)]; }
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TESTING_HOSTILE_TEST_H_
