// Hostile peers: a frame that contradicts the shard's state closes its stream and changes nothing;
// a process that the coordinator has not admitted gets no stream; the memory that peers can occupy
// is bounded.
#include <gmock/gmock.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/ps/core/bounds.h"
#include "services/ps/core/frame_checks.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using Values = std::vector<float>;

constexpr auto kRange = ShardHarness::Microbatches;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

struct Hostile {
  const char* name;
  std::function<void(v1::Header&)> spoil;
  const char* says;
  absl::StatusCode code = kInvalid;
};

// Members 7 (microbatches [0, 2)) and 8 ([2, 4)) of a job of 100 steps of 4 samples, each a
// microbatch.
class HostileTest : public ::testing::Test {
 protected:
  HostileTest() { shard.job.mutable_training()->set_microbatch_size(1); }

  void Begin() {
    shard.Begin({7, 8});
    one = shard.Open(7);
    two = shard.Open(8);
  }
  void Step(uint64_t step, float value) {
    for (uint32_t p : {0, 1}) {
      const Values values(p == 0 ? 4 : 2, value);
      shard.Push(one, step, p, values, kRange(0, 2), 2);
      shard.Push(two, step, p, values, kRange(2, 4), 2);
    }
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
      EXPECT_THAT(std::string(shard.StatusOf(stream).message()), HasSubstr(hostile.says));
      EXPECT_EQ(State(), before);
      EXPECT_THAT(shard.TakeMessages(), IsEmpty()) << "no message to the coordinator";
    }
  }
  void Pass(absl::Duration time) {
    shard.now += time;
    shard.core().OnTick(shard.now);
  }
  BoundUse Use(Bound bound) { return shard.core().Status().bounds[static_cast<size_t>(bound)]; }

  ShardHarness shard;
  StreamId one = 0;
  StreamId two = 0;
};

// ---------------------------------------------------------------- synchronous training

// Regression: an empty push of a step far ahead ended a job as trained.
TEST_F(HostileTest, PushWithoutBlocksCommitsOnlyClosedSteps) {
  Begin();
  Step(0, 1);
  Step(1, 1);
  v1::Header push = NewHeader();
  push.mutable_push();

  const std::vector<Hostile> table = {
      {"one ahead", [](auto& h) { h.mutable_push()->set_step(3); }, "step 3 is pushed"},
      {"far ahead", [](auto& h) { h.mutable_push()->set_step(1000000); }, "is at version 2"},
      {"the largest step", [](auto& h) { h.mutable_push()->set_step(kHuge); }, "is at version"},
  };
  ExpectRefused(table, 7, push);
  EXPECT_EQ(shard.core().Status().committed, 1);

  push.mutable_push()->set_step(2);
  shard.Send(one = shard.Open(7), push);
  EXPECT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
  EXPECT_EQ(shard.core().Status().committed, 1) << "the other member has not pushed step 2";

  shard.Send(two, push);
  EXPECT_EQ(shard.core().Status().committed, 2);
}

// Another shard may not have closed step 1. Then the next view begins with step 1, and this shard
// must roll back.
TEST_F(HostileTest, OneMemberCannotPreventRollback) {
  shard.owner = {0, 1};
  Begin();
  for (uint64_t step : {0, 1}) {
    shard.Push(one, step, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
    shard.Push(two, step, 0, {1, 1, 1, 1}, kRange(2, 4), 2);
  }
  ASSERT_EQ(shard.Version(0), 2);
  v1::Header push = NewHeader();
  push.mutable_push()->set_step(2);
  shard.Send(one, push);
  shard.ChangeView(2, 1, {8});
  EXPECT_THAT(shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure),
              IsEmpty());
  EXPECT_EQ(shard.Version(0), 1);
}

// The shard would have to keep each leaf without a sibling: one copy of the model for every second
// microbatch.
TEST_F(HostileTest, AcceptsOnlyWholeNodesOfTheTree) {
  shard.job.mutable_training()->set_bit_exact(true);
  Begin();
  const std::vector<Hostile> table = {
      {"the left half", [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(0, 1); },
       "[0, 1) are half of node [0, 2)"},
      {"the right half", [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(1, 2); },
       "[1, 2) are half of node [0, 2)"},
  };
  v1::Header push = shard.MakePush(0, 0, kRange(0, 2), 2);
  ExpectRefused(table, 7, push, CordOf({1, 1, 1, 1}));
  shard.Send(one = shard.Open(7), push, CordOf({1, 1, 1, 1}));
  EXPECT_TRUE(shard.StatusOf(one).ok()) << shard.StatusOf(one);
}

TEST_F(HostileTest, PushCommitsNothingWhileAnotherPartitionIsBehind) {
  Begin();
  shard.Push(one, 0, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  shard.Push(two, 0, 0, {1, 1, 1, 1}, kRange(2, 4), 2);
  ASSERT_EQ(shard.Version(0), 1);
  shard.Push(one, 1, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  EXPECT_EQ(shard.StatusOf(one).code(), kInvalid);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("is at version 0"));
  EXPECT_EQ(shard.core().Status().committed, 0);
}

TEST_F(HostileTest, RefusesPushAfterTheLastStep) {
  shard.job.mutable_training()->set_steps(2);
  Begin();
  Step(0, 1);
  Step(1, 1);
  shard.Push(one, 2, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), HasSubstr("in a job of 2 steps"));
  EXPECT_EQ(shard.Version(0), 2);
}

TEST_F(HostileTest, RefusesPushesThatContradictTheAssignment) {
  Begin();
  const std::vector<Hostile> table = {
      {"more samples than assigned", [](auto& h) { h.mutable_push()->set_samples(3); },
       "is complete with 3 samples"},
      {"the largest number of samples", [](auto& h) { h.mutable_push()->set_samples(kHuge); },
       "samples"},
      {"no samples", [](auto& h) { h.mutable_push()->set_samples(0); }, "the sender has 2 in 2"},
      {"other microbatches", [](auto& h) { h.mutable_push()->set_microbatch_count(1); },
       "in 1 microbatches"},
      {"a partition twice", [](auto& h) { h.mutable_push()->add_complete(0); }, "named twice"},
      {"a clock", [](auto& h) { h.mutable_push()->set_clock(1); }, "clock 1"},
      {"an ordinal", [](auto& h) { h.mutable_push()->set_ordinal(1); }, "synchronous"},
      {"an Apply", [](auto& h) { h.mutable_push()->mutable_apply(); }, "synchronous"},
      {"a range that ends before it begins",
       [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(2, 1); }, "not assigned"},
      {"a huge range",
       [](auto& h) { *h.mutable_push()->mutable_microbatches() = kRange(0, kHuge); },
       "not assigned"},
      {"a frame of asynchronous training", [](auto& h) { h.mutable_lease_request(); },
       "not for a shard"},
      {"a frame that only shards send", [](auto& h) { h.mutable_data(); }, "not for a shard"},
  };
  ExpectRefused(table, 7, shard.MakePush(0, 0, kRange(0, 2), 2), CordOf({1, 1, 1, 1}));
}

TEST_F(HostileTest, RefusesPullsThatContradictTheVersions) {
  Begin();
  v1::Header pull = NewHeader();
  pull.mutable_pull()->set_version(1);
  const std::vector<Hostile> table = {
      {"two ahead", [](auto& h) { h.mutable_pull()->set_version(2); }, "version 2"},
      {"the largest version", [](auto& h) { h.mutable_pull()->set_version(kHuge); },
       "is requested"},
      {"a partition twice",
       [](auto& h) {
         for (uint32_t p : {0, 1, 0}) h.mutable_pull()->add_partitions(p);
       },
       "named twice"},
      {"a partition thousands of times",
       [](auto& h) {
         for (int i = 0; i < 10000; ++i) h.mutable_pull()->add_partitions(i % 2);
       },
       "named twice"},
      {"an unknown partition", [](auto& h) { h.mutable_pull()->add_partitions(2); }, "partition 2"},
      {"a clock", [](auto& h) { h.mutable_pull()->set_clock(1); }, "clock 1"},
      {"counted workers", [](auto& h) { h.mutable_pull()->add_counted(7); }, "synchronous"},
      {"rows of a snapshot",
       [](auto& h) {
         h.mutable_pull()->set_snapshot_id(1);
         h.mutable_pull()->add_rows();
       },
       "snapshots are whole"},
      {"more rows than the payload",
       [](auto& h) { h.mutable_pull()->add_rows()->set_count(kHuge); }, "rows of"},
  };
  ExpectRefused(table, 7, pull);
}

TEST_F(HostileTest, AcceptsNormsOnlyFromTheOwnerOfThePartition) {
  shard.owner = {0, 1};
  shard.job.mutable_optimizer()->set_clip_norm(1);
  Begin();
  v1::Header norms = NewHeader();
  norms.mutable_norms()->add_partitions()->set_partition(1);
  const auto norm = [](v1::Header& h) { return h.mutable_norms()->mutable_partitions(0); };
  const std::vector<Hostile> table = {
      {"the receiver's partition", [&](auto& h) { norm(h)->set_partition(0); }, "partition 0"},
      {"an unknown partition", [&](auto& h) { norm(h)->set_partition(77); }, "partition 77"},
      {"twice", [](auto& h) { *h.mutable_norms()->add_partitions() = h.norms().partitions(0); },
       "two norms"},
      {"negative", [&](auto& h) { norm(h)->set_square_sum(-1); }, "sum of squares of -1"},
      {"not a number", [&](auto& h) { norm(h)->set_square_sum(std::nan("")); }, "nan"},
      {"infinite", [&](auto& h) { norm(h)->set_square_sum(INFINITY); }, "inf"},
      {"a step ahead", [](auto& h) { h.mutable_norms()->set_step(1); }, "norms of step 1"},
      {"a push", [](auto& h) { h.mutable_push(); }, "is not for a shard"},
      {"a pull", [](auto& h) { h.mutable_pull()->set_snapshot_id(1); }, "is not for a shard"},
  };
  ExpectRefused(table, kOtherShardIncarnation, norms, absl::Cord(), v1::SHARD);
}

TEST_F(HostileTest, AcceptsParticipantsOnlyFromTheOwnerOfPartition0) {
  v1::TrainingSpec& training = *shard.job.mutable_training();
  training.mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
  training.mutable_stragglers()->set_backup(1);
  Begin();
  v1::Header set = NewHeader();
  set.mutable_step_participants()->add_members(7);
  ExpectRefused({{"from another shard", [](auto&) {}, "does not own partition 0", kDenied}},
                kOtherShardIncarnation, set, absl::Cord(), v1::SHARD);
}

// Regression: norms in the shard's own name would close a step without all contributions.
TEST_F(HostileTest, RefusesStreamThatNamesThisShardAsItsSender) {
  Begin();
  const StreamId stream = shard.Open(kShardIncarnation, v1::SHARD);
  EXPECT_EQ(shard.StatusOf(stream).code(), kDenied);
  EXPECT_THAT(std::string(shard.StatusOf(stream).message()), HasSubstr("is this shard itself"));
}

// ---------------------------------------------------------------- asynchronous training

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

// ---------------------------------------------------------------- version 0

TEST_F(HostileTest, AcceptsVersion0FromOneWorkerOnly) {
  shard.Connect();
  shard.Prepare(1);
  v1::Header header;
  *header.mutable_init_push()->mutable_init_id() = ShardHarness::FirstInitId(1);
  header.mutable_init_push()->add_blocks()->set_payload_bytes(16);
  shard.Send(shard.Open(7), header, CordOf({1, 1, 1, 1}));
  const StreamId other = shard.Open(8);
  shard.Send(other, header, CordOf({9, 9, 9, 9}));
  EXPECT_EQ(shard.StatusOf(other).code(), kInvalid);
  EXPECT_THAT(std::string(shard.StatusOf(other).message()), HasSubstr("by a second worker"));
}

// ---------------------------------------------------------------- messages of the coordinator

TEST_F(HostileTest, InstallThatContradictsTheJobFailsTheJob) {
  struct Wrong {
    const char* name;
    std::function<void(v1::Install&)> spoil;
    const char* says;
  };
  const std::vector<Wrong> table = {
      {"a first step after the job's last",
       [](auto& i) { i.mutable_view()->set_first_step(1000000); },
       "begins at 1000000 of 100 steps"},
      {"another mode", [](auto& i) { i.mutable_view()->set_mode(v1::ASYNCHRONOUS); }, "mode"},
      {"a follower that is the owner",
       [](auto& i) {
         i.mutable_view()->add_follower(1);
         i.mutable_view()->add_follower(0);
       },
       "its follower of partition 0 is the owner"},
      {"a target that is no shard",
       [](auto& i) {
         i.mutable_view()->add_target(0);
         i.mutable_view()->add_target(3);
       },
       "its target of partition 1 is shard 2 of 2"},
      {"a whole copy that it gives to no shard", [](auto& i) { i.add_whole_targets(0); },
       "it says that the target of partition 0 holds a whole copy, and names none"},
      {"a shard twice", [](auto& i) { *i.mutable_view()->add_shards() = i.view().shards(0); },
       "a shard twice"},
      {"owners of fewer partitions",
       [](auto& i) { i.mutable_view()->mutable_owner()->RemoveLast(); }, "the layout has 2"},
      {"an unknown owner", [](auto& i) { i.mutable_view()->set_owner(0, 5); }, "to shard 5 of 2"},
      {"a member twice", [](auto& i) { *i.mutable_view()->add_workers() = i.view().workers(0); },
       "a member twice"},
      {"microbatches twice",
       [](auto& i) {
         *i.mutable_view()->mutable_workers(0)->mutable_microbatches(0) = kRange(0, 3);
       },
       "twice"},
      {"unknown microbatches",
       [](auto& i) {
         *i.mutable_view()->mutable_workers(1)->mutable_microbatches(0) = kRange(2, 5);
       },
       "[2, 5) of 4"},
      {"a committed version that is not closed", [](auto& i) { i.set_committed(1); },
       "version 1 is committed"},
  };
  for (const Wrong& wrong : table) {
    SCOPED_TRACE(wrong.name);
    ShardHarness world;
    world.job.mutable_training()->set_microbatch_size(1);
    world.Begin({7, 8});
    world.Pause(2);
    world.TakeMessages();
    v1::CoordinatorMessage message;
    *message.mutable_install() = world.MakeInstall(world.MakeView(2, 0, {7, 8}));
    wrong.spoil(*message.mutable_install());
    world.Tell(message);
    const auto failures =
        world.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
    ASSERT_THAT(failures, SizeIs(1));
    EXPECT_THAT(failures[0].reason(), HasSubstr(wrong.says));
    EXPECT_EQ(world.core().Status().view.number(), 1);
  }
}

// Regression: a push to such a partition was counted for a member that the partition did not know.
TEST_F(HostileTest, PartitionThatAViewAssignsToAnotherShardIsDropped) {
  Begin();
  shard.owner = {0, 1};
  shard.ChangeView(2, 0, {7, 8});
  EXPECT_EQ(shard.core().Content(1), nullptr);
  shard.Push(one, 0, 1, {1, 1}, kRange(0, 2), 2);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()),
              HasSubstr("partition 1 is not owned by this shard"));
  EXPECT_EQ(shard.Version(0), 0);
}

TEST_F(HostileTest, CommitOfUnclosedVersionFailsTheJob) {
  Begin();
  v1::CoordinatorMessage message;
  *message.mutable_committed()->mutable_view() = shard.core().Status().view;
  message.mutable_committed()->set_version(5);
  shard.Tell(message);
  const auto failures =
      shard.TakeMessages(&v1::MemberMessage::has_failure, &v1::MemberMessage::failure);
  ASSERT_THAT(failures, SizeIs(1));
  EXPECT_THAT(failures[0].reason(), HasSubstr("version 5 is committed; this shard has closed 0"));
  EXPECT_EQ(shard.core().Status().committed, 0);
}

TEST_F(HostileTest, SnapshotAfterTheLastStepFailsImmediately) {
  Begin();
  v1::CoordinatorMessage message;
  message.mutable_open_snapshot()->set_snapshot_id(1);
  message.mutable_open_snapshot()->set_step(101);
  message.mutable_open_snapshot()->mutable_name()->set_attempt(1);
  message.mutable_open_snapshot()->mutable_name()->set_step(101);
  shard.Tell(message);
  const auto failed = shard.TakeMessages(&v1::MemberMessage::has_snapshot_failed,
                                         &v1::MemberMessage::snapshot_failed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_THAT(failed[0].reason(), HasSubstr("of step 101 of 100"));
  EXPECT_EQ(failed[0].name().step(), 101) << "the report names the checkpoint";
}

// ---------------------------------------------------------------- admission of streams

TEST_F(HostileTest, RefusesUnadmittedProcessAfterTimeout) {
  Begin();
  shard.admits = false;
  const StreamId stranger = shard.Open(666);
  shard.Send(stranger, shard.MakePush(0, 0, kRange(0, 2), 2), CordOf({9, 9, 9, 9}));
  EXPECT_TRUE(shard.StatusOf(stranger).ok()) << "the process may still be admitted";
  EXPECT_THAT(shard.TakeFrames(stranger), IsEmpty()) << "no HelloReply";
  Pass(absl::Seconds(4.9));
  EXPECT_TRUE(shard.StatusOf(stranger).ok());
  Pass(absl::Seconds(0.1));
  EXPECT_EQ(shard.StatusOf(stranger).code(), kDenied);
  EXPECT_THAT(std::string(shard.StatusOf(stranger).message()), HasSubstr("admitted"));
  EXPECT_EQ(shard.core().Status().waiting_frames, 0);
}

TEST_F(HostileTest, AnswersEarlyHelloWhenItsProcessIsAdmitted) {
  Begin();
  shard.admits = false;
  const StreamId early = shard.Open(9);
  shard.Pull(early, 0);
  EXPECT_THAT(shard.TakeFrames(early), IsEmpty());
  shard.Admit(9);
  const std::vector<v1::Header> frames = shard.TakeFrames(early);
  ASSERT_THAT(frames, SizeIs(2));
  EXPECT_TRUE(frames[0].has_hello_reply());
  EXPECT_TRUE(frames[1].has_refused())
      << "the frame after the Hello is handled: the sender is no member";
  Pass(absl::Seconds(10));
  EXPECT_TRUE(shard.StatusOf(early).ok());
}

// Regression: a worker with its own certificate trained under the identity of another worker.
TEST_F(HostileTest, RefusesProcessThatUsesIdentityOfAnotherProcess) {
  shard.admits = false;
  shard.Admit(999);
  shard.Admit(7, v1::WORKER, 0);
  shard.Admit(8, v1::WORKER, 1);
  shard.Begin({7, 8});
  one = shard.OpenSilent();
  shard.Send(one, shard.MakeHello(7, v1::WORKER, 0));
  ASSERT_TRUE(shard.TakeFrames(one).at(0).has_hello_reply());

  const struct {
    v1::Role role;
    uint32_t index;
    uint64_t incarnation;
  } liars[] = {{v1::WORKER, 1, 7},   // the other worker's certificate
               {v1::WORKER, 0, 8},   // an admitted incarnation of another index
               {v1::READER, 0, 7},   // a reader's certificate
               {v1::WORKER, 0, 77},  // an incarnation of no process
               {v1::READER, 0, 5000}};

  for (const auto& liar : liars) {
    SCOPED_TRACE(absl::StrCat(liar.role, " ", liar.index, " ", liar.incarnation));
    const StreamId stream = shard.OpenSilent();
    shard.Send(stream, shard.MakeHello(liar.incarnation, liar.role, liar.index));
    EXPECT_THAT(shard.TakeFrames(stream), IsEmpty());
    EXPECT_TRUE(shard.StatusOf(one).ok()) << "the member's stream stays";
    Pass(absl::Seconds(5));
    EXPECT_EQ(shard.StatusOf(stream).code(), kDenied);
  }

  const StreamId shard_liar = shard.OpenSilent();
  shard.Send(shard_liar, shard.MakeHello(7, v1::SHARD));
  EXPECT_EQ(shard.StatusOf(shard_liar).code(), kDenied) << "it is not a shard of the view";
}

TEST_F(HostileTest, ReaderCannotCloseStreamOfWorker) {
  Begin();
  const StreamId reader = shard.Open(7, v1::READER);
  EXPECT_TRUE(shard.StatusOf(reader).ok());
  EXPECT_TRUE(shard.StatusOf(one).ok());
  const StreamId again = shard.Open(7, v1::READER);
  EXPECT_EQ(shard.StatusOf(reader).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(shard.StatusOf(again).ok());
  EXPECT_TRUE(shard.StatusOf(one).ok());
  Step(0, 1);
  EXPECT_EQ(shard.Version(0), 1);
}

TEST_F(HostileTest, OpenStreamsRemainWhenAdmittedProcessesChange) {
  Begin();
  v1::CoordinatorMessage admitted;
  admitted.mutable_admitted();
  shard.Tell(admitted);
  Step(0, 1);
  EXPECT_EQ(shard.Version(0), 1);
  shard.admits = false;
  const StreamId again = shard.Open(7);
  EXPECT_THAT(shard.TakeFrames(again), IsEmpty());
  EXPECT_TRUE(shard.StatusOf(one).ok());
}

// ---------------------------------------------------------------- bounds

TEST_F(HostileTest, ClosesStreamWithoutHelloAfterTimeout) {
  Begin();
  const StreamId silent = shard.OpenSilent();
  EXPECT_EQ(shard.core().NextDeadline(), shard.now + absl::Seconds(1)) << "the heartbeat";
  Pass(absl::Seconds(4.9));
  EXPECT_TRUE(shard.StatusOf(silent).ok());
  EXPECT_EQ(shard.core().NextDeadline(), shard.now + absl::Milliseconds(100));
  Pass(absl::Milliseconds(100));
  EXPECT_EQ(shard.StatusOf(silent).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(shard.StatusOf(silent).message()), StartsWith("hello_timeout"));
}

// Regression: 4,096 streams without a Hello shut out a new worker.
TEST_F(HostileTest, SilentStreamsDoNotShutOutMembers) {
  shard.options.max_silent_streams = 3;
  shard.options.max_streams = 8;
  Begin();
  std::vector<StreamId> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(shard.OpenSilent());
  EXPECT_EQ(shard.core().Status().streams, 6);
  EXPECT_EQ(shard.StatusOf(silent[0]).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(silent[0]).message()), StartsWith("max_silent_streams"));
  EXPECT_TRUE(shard.StatusOf(silent.back()).ok());
  EXPECT_EQ(Use(Bound::kSilentStreams).reached, 17);
  const StreamId again = shard.Open(7);
  shard.Push(again, 0, 0, {1, 1, 1, 1}, kRange(0, 2), 2);
  EXPECT_TRUE(shard.StatusOf(again).ok());
}

TEST_F(HostileTest, ReadersHaveTheirOwnLimit) {
  shard.options.max_reader_streams = 2;
  Begin();
  shard.Open(50, v1::READER);
  shard.Open(51, v1::READER);
  const StreamId third = shard.Open(52, v1::READER);
  EXPECT_EQ(shard.StatusOf(third).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(third).message()), StartsWith("max_reader_streams"));
  EXPECT_TRUE(shard.StatusOf(shard.Open(51, v1::READER)).ok())
      << "the new stream replaces the old one";
  EXPECT_TRUE(shard.StatusOf(shard.Open(9)).ok());
}

TEST_F(HostileTest, BoundsWaitingHellos) {
  shard.options.max_unadmitted_streams = 2;
  Begin();
  shard.admits = false;
  shard.Open(60);
  shard.Open(61);
  const StreamId third = shard.Open(62);
  EXPECT_EQ(shard.StatusOf(third).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(third).message()), StartsWith("max_unadmitted_streams"));
  EXPECT_TRUE(shard.StatusOf(shard.Open(8)).ok()) << "an admitted process does not wait";
}

// Regression: such a frame waited for ever, and every later frame of its sender behind it.
TEST_F(HostileTest, RefusesFramesOfViewsThatTheCoordinatorHasNotAnnounced) {
  Begin();
  v1::Header push = shard.MakePush(0, 0, kRange(0, 2), 2);
  push.mutable_push()->clear_blocks();
  const std::vector<Hostile> table = {
      {"the next", [](auto& h) { h.mutable_view()->set_number(2); },
       "view 2 of attempt 1 is ahead"},
      {"far ahead", [](auto& h) { h.mutable_view()->set_number(kHuge); }, "is ahead"},
      {"of a later attempt", [](auto& h) { h.mutable_view()->set_attempt(2); }, "of attempt 2 is"},
      {"of a later term", [](auto& h) { h.mutable_view()->mutable_term()->set_counter(9); },
       "is ahead"}};
  ExpectRefused(table, 7, push);
  shard.Pause(2);
  shard.TakeMessages();
  push.mutable_view()->set_number(3);
  ExpectRefused({{"after the next", [](auto&) {}, "view 3 of attempt 1 is ahead"}}, 7, push);
}

TEST_F(HostileTest, BoundsHeaderBytesOfWaitingFrames) {
  shard.options.max_waiting_header_bytes = 100000;
  Begin();
  v1::Header early = shard.MakePush(0, 0, kRange(0, 2), 2);
  *early.mutable_view() = shard.HeaderOf(2).view();
  early.mutable_push()->clear_blocks();
  shard.Pause(2);
  for (int i = 0; i < 1000; ++i) early.mutable_push()->add_blocks();  // 2 bytes each on the wire
  shard.Send(one, early);
  EXPECT_TRUE(shard.StatusOf(one).ok());
  EXPECT_GT(Use(Bound::kWaitingHeaderBytes).used, 30000);
  for (int i = 0; i < 5; ++i) shard.Send(one, early);
  EXPECT_EQ(shard.StatusOf(one).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), StartsWith("max_waiting_header_bytes"));
  EXPECT_EQ(shard.core().Status().waiting_frames, 0);
}

TEST_F(HostileTest, WaitingFramesOfNonMembersShareOneBound) {
  shard.options.max_waiting_bytes = 10000;
  Begin();
  v1::Header early = shard.MakePush(0, 0, kRange(0, 2), 2);
  *early.mutable_view() = shard.HeaderOf(2).view();
  shard.Pause(2);

  std::vector<StreamId> closed;
  for (uint64_t stranger = 100; stranger < 140; ++stranger) {
    const StreamId stream = shard.Open(stranger);
    shard.Send(stream, early, CordOf({1, 1, 1, 1}));
    if (!shard.StatusOf(stream).ok()) closed.push_back(stream);
  }

  ASSERT_THAT(closed, ::testing::Not(IsEmpty()));
  EXPECT_THAT(std::string(shard.StatusOf(closed[0]).message()), StartsWith("max_waiting_bytes"));
  EXPECT_LE(Use(Bound::kWaitingBytes).used, 10000);

  shard.Send(one, early, CordOf({1, 1, 1, 1}));
  EXPECT_TRUE(shard.StatusOf(one).ok()) << "members have their own bound";
}

TEST_F(HostileTest, BoundsParkedPullsByNumberAndBytes) {
  shard.options.max_parked_pulls = 4;
  shard.options.max_parked_bytes = 4096;
  Begin();
  for (uint64_t request = 0; request < 3; ++request) shard.Pull(one, 1, request);
  EXPECT_EQ(shard.StatusOf(one).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(one).message()), StartsWith("max_parked_pulls"));
  v1::Header rows = NewHeader();
  rows.mutable_pull()->set_version(1);
  rows.mutable_pull()->add_rows()->set_count(1000);
  shard.Send(two, rows, absl::Cord(std::string(8000, '\0')));
  EXPECT_EQ(shard.StatusOf(two).code(), kExhausted);
  EXPECT_THAT(std::string(shard.StatusOf(two).message()), StartsWith("max_parked_bytes"));
}

// Sets each field that is a message, an element of each list of messages too; calls `visit` for
// every message, the outermost one too.
void FillMessages(google::protobuf::Message* message, int depth,
                  const std::function<void(google::protobuf::Message*)>& visit) {
  visit(message);
  const auto* const type = message->GetDescriptor();
  const auto* const reflection = message->GetReflection();
  for (int i = 0; depth > 0 && i < type->field_count(); ++i) {
    const auto* const field = type->field(i);
    const bool is_body = field->containing_oneof() != nullptr &&
                         reflection->HasOneof(*message, field->containing_oneof()) &&
                         !reflection->HasField(*message, field);
    if (field->cpp_type() != field->CPPTYPE_MESSAGE || is_body) continue;
    if (!field->is_repeated()) {
      FillMessages(reflection->MutableMessage(message, field), depth - 1, visit);
    } else if (reflection->FieldSize(*message, field) == 0) {
      FillMessages(reflection->AddMessage(message, field), depth - 1, visit);
    } else {
      FillMessages(reflection->MutableRepeatedMessage(message, field, 0), depth - 1, visit);
    }
  }
}

// Regression: the unknown fields of a header took memory that no bound counted.
TEST(BoundsTest, MemoryOfUnknownFieldsIsCountedInEveryPartOfAHeader) {
  std::string unknown;
  for (int i = 0; i < 1000; ++i) unknown += absl::StrCat("\xc1\x3e", "8 bytes.");  // of field 1000
  const auto* const body = v1::Header::descriptor()->FindOneofByName("body");
  for (int i = 0; i < body->field_count(); ++i) {
    SCOPED_TRACE(body->field(i)->name());
    const auto fill = [&](const std::function<void(google::protobuf::Message*)>& visit) {
      v1::Header header;
      header.GetReflection()->MutableMessage(&header, body->field(i));
      FillMessages(&header, 4, visit);
      return HeaderMemory(header);
    };
    int messages = 0;
    fill([&messages](auto*) { ++messages; });
    for (int chosen = 0; chosen < messages; ++chosen) {
      std::string name;
      int at = 0;
      const size_t memory = fill([&](google::protobuf::Message* message) {
        if (at++ != chosen) return;
        name = message->GetTypeName();
        EXPECT_TRUE(message->MergeFromString(unknown));
      });
      EXPECT_GE(memory, unknown.size()) << "in " << name;
    }
  }
}

TEST(BoundsTest, EveryBoundHasNameAndLimit) {
  ShardHarness shard;
  shard.Begin({7});
  const ShardStatus status = shard.core().Status();
  for (size_t bound = 0; bound < kBounds; ++bound) {
    EXPECT_NE(kBoundNames[bound], "");
    if (static_cast<Bound>(bound) == Bound::kReceivedBytes)
      continue;  // the shard process sets this limit
    EXPECT_GT(status.bounds[bound].limit, 0u) << kBoundNames[bound];
  }
}

}  // namespace
}  // namespace sluice::ps
