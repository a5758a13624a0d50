// Hostile workers in asynchronous training: a frame that contradicts the worker's lease, permit or
// clock closes its stream and changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/hostile_test.h"

namespace sluice::ps {
namespace {

using ::testing::SizeIs;
using Values = std::vector<float>;

// This shard is the arbiter. Worker 7 holds a lease of samples [0, 4) and a permit for its first
// update.
class HostileUpdateTest : public HostileTest {
 protected:
  void SetUp() override {
    shard.job.mutable_training()->set_mode(v1::BOUNDED_STALENESS);
    shard.job.mutable_training()->set_max_staleness(1);
  }

  void BeginUpdate() {
    Begin();
    v1::Header lease = NewHeader();
    lease.mutable_lease_request()->set_samples(4);
    shard.Send(one, lease);
    v1::Header permit = NewHeader();
    permit.mutable_permit_request()->set_clock(1);
    shard.Send(one, permit);
    ASSERT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
  }
  v1::Header MakePush(uint32_t partition) {
    v1::Header header = shard.MakePush(0, partition, kRange(0, 1), 4);
    header.mutable_push()->set_clock(1);
    header.mutable_push()->set_microbatch_count(4);
    return header;
  }
  void Stage() {
    shard.Send(one, MakePush(0), CordOf({1, 1, 1, 1}));
    shard.Send(one, MakePush(1), CordOf({1, 1}));
    ASSERT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
  }
  v1::Header MakeApply() {
    v1::Header header = NewHeader();
    header.mutable_apply()->set_clock(1);
    *header.mutable_apply()->mutable_samples() = kRange(0, 4);
    return header;
  }
};

// Regression: a pull with the largest clock blocked all other workers for ever.
TEST_F(HostileUpdateTest, RefusesClocksAheadOfTheWorker) {
  BeginUpdate();
  const auto clock = [](uint64_t value) {
    return std::vector<std::function<void(v1::Header&)>>{
        [value](v1::Header& h) { h.mutable_pull()->set_clock(value); },
        [value](v1::Header& h) { h.mutable_lease_request()->set_clock(value); },
        [value](v1::Header& h) { h.mutable_permit_request()->set_clock(value); },
        [value](v1::Header& h) { h.mutable_push()->set_clock(value); }};
  };

  for (const uint64_t value : {uint64_t{2}, uint64_t{400}, kHuge - 1, kHuge}) {
    SCOPED_TRACE(value);
    std::vector<Hostile> table;
    for (const auto& spoil : clock(value)) {
      table.push_back({"a frame", spoil, "is ahead of the worker, whose next update is 1 at most"});
    }
    ExpectRefused(table, 7, NewHeader());
  }

  // The other member continues.
  v1::Header pull = NewHeader();
  pull.mutable_pull();
  shard.Send(two, pull);
  EXPECT_THAT(shard.TakeFrames(two), SizeIs(3));
}

TEST_F(HostileUpdateTest, RefusesPushesThatContradictThePermit) {
  BeginUpdate();
  const std::vector<Hostile> table = {
      {"no clock", [](auto& h) { h.mutable_push()->set_clock(0); }, "without a clock"},
      {"a step", [](auto& h) { h.mutable_push()->set_step(1); }, "asynchronous"},
      {"pull_next", [](auto& h) { h.mutable_push()->set_pull_next(true); }, "asynchronous"},
      {"an ordinal", [](auto& h) { h.mutable_push()->set_ordinal(1); }, "not the permit's"},
      {"pieces", [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(1, 2); },
       "one piece"},
      {"more samples than the job", [](auto& h) { h.mutable_push()->set_samples(401); },
       "in a job of 400"},
      {"other microbatches", [](auto& h) { h.mutable_push()->set_microbatch_count(5); },
       "they are 4"},
      {"a partition twice", [](auto& h) { h.mutable_push()->add_complete(0); }, "named twice"},
  };
  ExpectRefused(table, 7, MakePush(0), CordOf({1, 1, 1, 1}));
  ExpectRefused({{"without a permit", [](auto&) {}, "has no permit"}}, 8, MakePush(0),
                CordOf({1, 1, 1, 1}));
}

// Regression: updates without samples, or of another worker's samples, were counted.
TEST_F(HostileUpdateTest, RefusesAppliesThatContradictLeaseOrPermit) {
  shard.job.mutable_optimizer()->set_clip_norm(1);
  BeginUpdate();
  Stage();
  v1::Header good = MakeApply();
  good.mutable_apply()->set_square_sum(100);
  const auto apply = [](v1::Header& h) { return h.mutable_apply(); };
  const std::vector<Hostile> table = {
      {"no samples", [&](auto& h) { apply(h)->clear_samples(); }, "covers samples [0, 0)"},
      {"samples that end before they begin",
       [&](auto& h) { *apply(h)->mutable_samples() = kRange(4, 0); }, "covers samples [4, 0)"},
      {"samples after the job's last",
       [&](auto& h) { *apply(h)->mutable_samples() = kRange(0, 401); }, "of 400"},
      {"samples of another worker", [&](auto& h) { *apply(h)->mutable_samples() = kRange(4, 8); },
       "not leased"},
      {"fewer samples than were pushed",
       [&](auto& h) { *apply(h)->mutable_samples() = kRange(0, 3); }, "its pushes are of 4"},
      {"an ordinal", [&](auto& h) { apply(h)->set_ordinal(kHuge); }, "not the permit's"},
      {"a staleness", [&](auto& h) { apply(h)->set_staleness(1); }, "not the permit's"},
      {"another update", [&](auto& h) { apply(h)->set_clock(2); }, "not staged whole"},
      {"a request for the next version", [&](auto& h) { apply(h)->set_pull_next(true); },
       "pull_next"},
      {"a negative norm", [&](auto& h) { apply(h)->set_square_sum(-1); }, "sum of squares"},
      {"a norm that is not a number", [&](auto& h) { apply(h)->set_square_sum(std::nan("")); },
       "sum of squares"},
      {"a norm below this shard's part", [&](auto& h) { apply(h)->set_square_sum(0); },
       "this shard alone has"},
  };
  ExpectRefused(table, 7, good);
  shard.Send(one = shard.Open(7), good);
  EXPECT_EQ(shard.core().Status().updates_applied, 1);
}

// Regression: each incarnation could add 60 KiB to every reply of every shard, until the replies
// were larger than a control message may be.
TEST_F(HostileUpdateTest, UnknownFieldsOfAnApplyAreNotReported) {
  BeginUpdate();
  Stage();
  v1::Header apply = MakeApply();
  std::string unknown;
  for (int i = 0; i < 1000; ++i) unknown += absl::StrCat("\xc1\x3e", "8 bytes.");  // of field 1000
  ASSERT_TRUE(apply.mutable_apply()->mutable_samples()->MergeFromString(unknown));
  ASSERT_GT(apply.ByteSizeLong(), 10000);
  shard.Send(one, apply);
  EXPECT_EQ(shard.core().Status().updates_applied, 1);
  shard.Pause(2);
  const std::vector<v1::PauseReply> replies = shard.TakePauseReplies();
  ASSERT_THAT(replies, SizeIs(1));
  ASSERT_THAT(replies[0].clocks(), SizeIs(1));
  EXPECT_LT(replies[0].ByteSizeLong(), 1000);
}

TEST_F(HostileUpdateTest, RefusesApplyThatCallsNonFiniteUpdateFinite) {
  shard.job.mutable_training()->set_non_finite(v1::TrainingSpec::SKIP);
  BeginUpdate();
  shard.Send(one, MakePush(0), CordOf({1, INFINITY, 1, 1}));
  shard.Send(one, MakePush(1), CordOf({1, 1}));
  v1::Header apply = MakeApply();
  apply.mutable_apply()->set_square_sum(1);
  ExpectRefused({{"finite", [](auto&) {}, "is not finite on this shard"}}, 7, apply);
}

TEST_F(HostileUpdateTest, RefusesPermitRequestWithoutLeaseOrOfFutureVersion) {
  BeginUpdate();
  v1::Header permit = NewHeader();
  permit.mutable_permit_request()->set_clock(1);
  ExpectRefused({{"without a lease", [](auto&) {}, "without a lease"}}, 8, permit);
  ExpectRefused(
      {{"of a later version", [](auto& h) { h.mutable_permit_request()->set_base_version(1); },
        "0 updates are applied"}},
      7, permit);
}

TEST_F(HostileUpdateTest, ArbiterRefusesPullsThatNameCountedWorkers) {
  BeginUpdate();
  v1::Header pull = NewHeader();
  pull.mutable_pull();
  ExpectRefused(
      {{"at the arbiter", [](auto& h) { h.mutable_pull()->add_counted(8); }, "does not need them"}},
      7, pull);
}

TEST_F(HostileUpdateTest, OtherShardsRefusePullsWithInvalidClocks) {
  shard.owner = {1, 0};
  Begin();
  v1::Header pull = NewHeader();
  pull.mutable_pull();
  const std::vector<Hostile> table = {
      {"more workers than members",
       [](auto& h) {
         for (uint64_t worker = 1; worker < 4; ++worker) h.mutable_pull()->add_counted(worker);
       },
       "the view has 2 members"},
      {"a worker twice",
       [](auto& h) {
         h.mutable_pull()->add_counted(8);
         h.mutable_pull()->add_counted(8);
       },
       "twice"},
      {"more clocks than workers", [](auto& h) { h.mutable_pull()->add_counted_from(1); },
       "1 clocks"},
      {"an impossible clock",
       [](auto& h) {
         h.mutable_pull()->add_counted(8);
         h.mutable_pull()->add_counted_from(kHuge);
       },
       "from clock"},
      {"an impossible clock of the sender", [](auto& h) { h.mutable_pull()->set_clock(401); },
       "whose next update is 400 at most"},
      {"a lease", [](auto& h) { h.mutable_lease_request(); }, "owner of partition 0"},
  };
  ExpectRefused(table, 7, pull);
}

TEST_F(HostileUpdateTest, ShardWithoutPermitsRefusesOrdinalFarAhead) {
  shard.owner = {1, 0};
  Begin();
  v1::Header push = MakePush(1);
  ExpectRefused({{"an ordinal", [](auto& h) { h.mutable_push()->set_ordinal(3); },
                  "2 members have one in flight"}},
                7, push, CordOf({1, 1}));
  shard.Send(one = shard.Open(7), push, CordOf({1, 1}));
  v1::Header apply = MakeApply();
  ExpectRefused(
      {{"a staleness", [](auto& h) { h.mutable_apply()->set_staleness(1); }, "not the permit's"}},
      7, apply);
}

// A worker that survives a restoration may have a higher clock than the checkpoint records.
TEST_F(HostileUpdateTest, BoundsFirstClockInLaterAttemptByTheJobsLength) {
  shard.Connect();
  shard.Prepare(1, /*attempt=*/2);
  const StreamId init = shard.Open(999);
  for (uint32_t partition : {0, 1}) {
    v1::Header header;
    *header.mutable_init_push()->mutable_init_id() = ShardHarness::FirstInitId(2);
    header.mutable_init_push()->set_partition(partition);
    header.mutable_init_push()->add_blocks()->set_block(partition);
    header.mutable_init_push()->mutable_blocks(0)->set_payload_bytes(partition == 0 ? 16 : 8);
    shard.Send(init, header, CordOf(Values(partition == 0 ? 4 : 2, 0)));
  }

  shard.Pause(1, /*term=*/1, /*attempt=*/2);
  shard.Install(shard.MakeView(1, 0, {7, 8}, /*attempt=*/2));
  shard.TakeMessages();
  one = shard.Open(7);

  v1::Header lease = NewHeader();
  ExpectRefused({{"a clock that two attempts cannot reach",
                  [](auto& h) { h.mutable_lease_request()->set_clock(801); }, "800 at most"}},
                7, lease);

  lease.mutable_lease_request()->set_clock(100);
  shard.Send(one = shard.Open(7), lease);
  EXPECT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
  ExpectRefused({{"a clock that skips an update",
                  [](auto& h) { h.mutable_lease_request()->set_clock(102); }, "101 at most"}},
                7, lease);
}

}  // namespace
}  // namespace sluice::ps
