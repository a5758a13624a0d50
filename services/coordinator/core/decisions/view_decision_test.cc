#include "services/coordinator/core/decisions/view_decision.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using Result = Decision::Result;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint64_t kA = 11;
constexpr uint64_t kB = 12;
constexpr uint64_t kC = 13;
constexpr uint64_t kWorker = 21;
const CoordinatorRules kRules;

v1::ViewId ViewNumber(uint64_t number, uint64_t attempt = 1) {
  v1::ViewId id;
  id.set_attempt(attempt);
  id.mutable_term()->set_counter(3);
  id.mutable_term()->set_coordinator(5);
  id.set_number(number);
  return id;
}

// Partitions 0 and 2 at shard A, 1 at B; partition 3 at B is empty.
AttemptFacts Facts() {
  AttemptFacts facts;
  facts.term = ViewNumber(0).term();
  facts.init_id.set_attempt(1);
  *facts.init_id.mutable_term() = facts.term;
  facts.init_id.set_number(1);
  facts.base_version = 40;
  facts.shards = {kA, kB};
  facts.owner = {0, 1, 0, 1};
  facts.empty = {false, false, false, true};
  return facts;
}

v1::View MakeView(uint64_t number, uint64_t first_step) {
  v1::View view;
  *view.mutable_id() = ViewNumber(number);
  view.set_first_step(first_step);
  for (const uint64_t shard : {kA, kB}) {
    v1::ProcessId& process = *view.add_shards()->mutable_process();
    process.set_index(static_cast<uint32_t>(shard - kA));
    process.set_incarnation(shard);
  }
  for (const uint32_t owner : Facts().owner) view.add_owner(owner);
  return view;
}

v1::PauseReply InView(uint64_t number, uint64_t first_step,
                      std::vector<std::pair<uint32_t, uint64_t>> versions) {
  v1::PauseReply reply;
  *reply.mutable_view() = ViewNumber(number);
  *reply.mutable_newest() = MakeView(number, first_step);
  for (const auto& [partition, version] : versions) {
    reply.add_partitions()->set_partition(partition);
    v1::PauseReply::PartitionState& state = *reply.mutable_partitions(reply.partitions_size() - 1);
    state.set_version(version);
    state.set_has_undo(version > first_step);
  }
  return reply;
}

v1::PauseReply Ready() {
  v1::PauseReply reply;
  *reply.mutable_ready_init_id() = Facts().init_id;
  return reply;
}

TEST(DecideSynchronous, LowestVersionOfAllPartitionsWins) {
  struct Case {
    uint64_t p0, p1, p2, expected;
  };
  for (const Case& c :
       {Case{7, 7, 7, 7}, Case{8, 7, 7, 7}, Case{8, 8, 7, 7}, Case{7, 8, 8, 7}, Case{8, 8, 8, 8}}) {
    const Decision decision = DecideSynchronous(
        Facts(), {{kA, InView(4, 5, {{0, c.p0}, {2, c.p2}})}, {kB, InView(4, 5, {{1, c.p1}})}}, {},
        kRules);
    EXPECT_EQ(decision.result, Result::kDecided);
    EXPECT_EQ(decision.first_step, c.expected);
    EXPECT_EQ(decision.previous->id().number(), 4);
  }
}

TEST(DecideSynchronous, ShardWithoutNewestViewCountsAtItsFirstStep) {
  // B has version 9 in view 4. View 5 began at 8, so B would have rolled back.
  const Decision decision = DecideSynchronous(
      Facts(), {{kA, InView(5, 8, {{0, 9}, {2, 9}})}, {kB, InView(4, 5, {{1, 9}})}}, {}, kRules);
  EXPECT_EQ(decision.first_step, 8);
  EXPECT_EQ(decision.previous->id().number(), 5);
}

TEST(DecideSynchronous, IsVersionOfInitRequestBeforeFirstView) {
  const Decision decision = DecideSynchronous(Facts(), {{kA, Ready()}, {kB, Ready()}}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kDecided);
  EXPECT_EQ(decision.first_step, 40);
  EXPECT_FALSE(decision.previous.has_value());
}

TEST(DecideSynchronous, ContinuesFromFirstViewThatOneShardMissed) {
  const Decision decision = DecideSynchronous(Facts(),
                                              {{kA, InView(2, 40, {{0, 40}, {2, 40}})},
                                               {kB,
                                                [] {
                                                  v1::PauseReply reply = Ready();
                                                  reply.add_partitions()->set_partition(1);
                                                  return reply;
                                                }()}},
                                              {}, kRules);
  EXPECT_EQ(decision.result, Result::kDecided);
  EXPECT_EQ(decision.first_step, 40);
}

TEST(DecideSynchronous, RequestsStateAgainIfShardDoesNotHoldIt) {
  v1::PauseReply other = Ready();
  other.mutable_ready_init_id()->set_number(9);
  const Decision decision = DecideSynchronous(Facts(), {{kA, Ready()}, {kB, other}}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kNotReady);
  EXPECT_THAT(decision.reason, HasSubstr("ps-1"));
}

TEST(DecideSynchronous, RequestsNoStateOnceTheAttemptHasAView) {
  std::map<uint64_t, v1::Install> installs;
  *installs[4].mutable_view() = MakeView(4, 40);
  v1::PauseReply other = Ready();
  other.mutable_ready_init_id()->set_number(9);
  EXPECT_EQ(DecideSynchronous(Facts(), {{kA, Ready()}, {kB, other}}, installs, kRules).result,
            Result::kLost);

  AttemptFacts facts = Facts();
  facts.init_id.set_attempt(2);
  const PauseReplies replies = {{kA, InView(4, 5, {{0, 7}, {2, 7}})}, {kB, Ready()}};
  EXPECT_EQ(DecideSynchronous(facts, replies, {}, kRules).result, Result::kNotReady);
  EXPECT_EQ(DecideSynchronous(facts, replies, installs, kRules).result, Result::kLost);
}

TEST(DecideSynchronous, MissingReplyOrPartitionIsALoss) {
  EXPECT_EQ(DecideSynchronous(Facts(), {{kA, InView(4, 5, {{0, 7}, {2, 7}})}}, {}, kRules).result,
            Result::kLost);
  const Decision decision = DecideSynchronous(
      Facts(), {{kA, InView(4, 5, {{0, 7}})}, {kB, InView(4, 5, {{1, 7}})}}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kLost);
  EXPECT_EQ(decision.reason, "ps-0 does not hold partition 2");
}

TEST(DecideSynchronous, VersionThatShardCannotReturnToIsALoss) {
  v1::PauseReply ahead = InView(4, 5, {{0, 8}, {2, 7}});
  const v1::PauseReply other = InView(4, 5, {{1, 7}});
  EXPECT_EQ(DecideSynchronous(Facts(), {{kA, ahead}, {kB, other}}, {}, kRules).result,
            Result::kDecided);
  ahead.mutable_partitions(0)->set_has_undo(false);
  Decision decision = DecideSynchronous(Facts(), {{kA, ahead}, {kB, other}}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kLost);
  EXPECT_EQ(decision.reason, "ps-0 cannot return partition 0 from version 8 to 7");
  ahead.mutable_partitions(0)->set_has_undo(true);
  ahead.mutable_partitions(0)->set_version(9);
  decision = DecideSynchronous(Facts(), {{kA, ahead}, {kB, other}}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kLost);
}

TEST(DecideSynchronous, ViewOfNewerCoordinatorSupersedesThisOne) {
  v1::PauseReply newer = InView(1, 7, {{1, 7}});
  newer.mutable_view()->mutable_term()->set_counter(4);
  EXPECT_EQ(
      DecideSynchronous(Facts(), {{kA, InView(4, 5, {{0, 7}, {2, 7}})}, {kB, newer}}, {}, kRules)
          .result,
      Result::kSuperseded);
  newer = InView(1, 7, {{1, 7}});
  newer.mutable_view()->set_attempt(2);
  EXPECT_EQ(
      DecideSynchronous(Facts(), {{kA, InView(4, 5, {{0, 7}, {2, 7}})}, {kB, newer}}, {}, kRules)
          .result,
      Result::kSuperseded);
}

// ---- copies: three shards; partition 0 at A, followed by B; 1 at B, followed by C, and with a
// target at A; 2 at C, followed by A

v1::View WithCopies(uint64_t number, uint64_t first_step) {
  v1::View view = MakeView(number, first_step);
  v1::ProcessId& process = *view.add_shards()->mutable_process();
  process.set_index(2);
  process.set_incarnation(kC);
  view.clear_owner();
  for (const uint32_t owner : {0, 1, 2, 0}) view.add_owner(owner);
  for (const uint32_t follower : {2, 3, 1, 0}) view.add_follower(follower);
  for (const uint32_t target : {0, 1, 0, 0}) view.add_target(target);
  return view;
}

AttemptFacts FactsWithCopies() {
  AttemptFacts facts = Facts();
  facts.shards = {kA, kB, kC};
  facts.owner = {0, 1, 2, 0};
  return facts;
}

struct Held {
  uint32_t partition;
  uint64_t version;
  bool copy = false;
  bool undo = true;
};

v1::PauseReply Holding(const v1::View& view, const std::vector<Held>& held) {
  v1::PauseReply reply;
  *reply.mutable_view() = view.id();
  *reply.mutable_newest() = view;
  for (const Held& of : held) {
    v1::PauseReply::PartitionState& state = *reply.add_partitions();
    state.set_partition(of.partition);
    state.set_version(of.version);
    state.set_has_undo(of.undo);
    state.set_copy(of.copy);
  }
  return reply;
}

TEST(DecideWithCopies, OwnersThenWholeCopiesHoldThePartitions) {
  const v1::View view = WithCopies(4, 5);
  const Decision decision = DecideSynchronous(FactsWithCopies(),
                                              {{kA, Holding(view, {{0, 7}, {1, 8, true}})},
                                               {kB, Holding(view, {{1, 7}, {0, 8, true}})},
                                               {kC, Holding(view, {{2, 8}, {1, 7, true}})}},
                                              {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  EXPECT_EQ(decision.first_step, 7);
  EXPECT_THAT(decision.holders,
              ElementsAre(ElementsAre(kA, kB), ElementsAre(kB, kC, kA), ElementsAre(kC), IsEmpty()))
      << "the copy of partition 2 at A is not whole";
}

TEST(DecideWithCopies, FollowerOwnsThePartitionsOfDeadShard) {
  const v1::View view = WithCopies(4, 5);
  const PauseReplies replies = {{kA, Holding(view, {{0, 8}, {1, 7, true}})},
                                {kC, Holding(view, {{2, 7}, {1, 8, true}})}};
  const Decision decision = DecideSynchronous(FactsWithCopies(), replies, {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  EXPECT_THAT(decision.holders[1], ElementsAre(kC, kA));
  EXPECT_THAT(decision.holders[0], ElementsAre(kA));
  EXPECT_EQ(decision.first_step, 7);
}

TEST(DecideWithCopies, TargetOwnsThePartitionIfTheFollowerIsNotWhole) {
  const v1::View view = WithCopies(4, 5);
  const Decision decision = DecideSynchronous(
      FactsWithCopies(),
      {{kA, Holding(view, {{0, 9}, {1, 8, true}})}, {kC, Holding(view, {{2, 9}})}}, {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  EXPECT_THAT(decision.holders[1], ElementsAre(kA));
  EXPECT_EQ(decision.first_step, 8) << "the lowest version of the owners to be";
}

TEST(DecideWithCopies, DeadShardWithoutWholeCopyIsALoss) {
  const v1::View view = WithCopies(4, 5);
  const Decision decision =
      DecideSynchronous(FactsWithCopies(),
                        {{kA, Holding(view, {{0, 7}})}, {kC, Holding(view, {{2, 7}})}}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kLost);
  EXPECT_EQ(decision.reason, "ps-1 is gone, and partition 1 has no whole copy");
}

TEST(DecideWithCopies, ShardThatClaimsAnOwnersPlaceIsNotACopy) {
  const v1::View view = WithCopies(4, 5);
  const Decision decision = DecideSynchronous(
      FactsWithCopies(),
      {{kA, Holding(view, {{0, 7}, {1, 7, /*copy=*/false}})}, {kC, Holding(view, {{2, 7}})}}, {},
      kRules);
  EXPECT_EQ(decision.result, Result::kLost);
}

// (R10)
TEST(DecideWithCopies, CopyWithoutTheFirstStepIsNotKept) {
  const v1::View view = WithCopies(4, 5);
  const auto holders = [&](const Held& copy, const CoordinatorRules& rules) {
    return DecideSynchronous(FactsWithCopies(),
                             {{kA, Holding(view, {{0, 7}})},
                              {kB, Holding(view, {{1, 7}, copy})},
                              {kC, Holding(view, {{2, 7}})}},
                             {}, rules)
        .holders[0];
  };
  EXPECT_THAT(holders({0, 8, true, true}, kRules), ElementsAre(kA, kB));
  EXPECT_THAT(holders({0, 8, true, false}, kRules), ElementsAre(kA)) << "it has no undo";
  EXPECT_THAT(holders({0, 9, true, true}, kRules), ElementsAre(kA)) << "too far ahead";
  EXPECT_THAT(holders({0, 6, true, true}, kRules), ElementsAre(kA)) << "behind";

  class WithoutTheRule : public CoordinatorRules {
    bool KeepOnlyWholeCopies() const override { return false; }
  };
  EXPECT_THAT(holders({0, 6, true, true}, WithoutTheRule()), ElementsAre(kA, kB));
}

// In view 5 partition 1 moved from B to C; B was to keep it as a target, whole.
v1::View Moved() {
  v1::View view = WithCopies(5, 8);
  view.set_owner(1, 2);
  view.set_follower(1, 1);
  view.set_target(1, 2);
  return view;
}

TEST(DecideWithCopies, OwnersAreThoseOfTheNewestViewForShardThatLacksIt) {
  const v1::View before = WithCopies(4, 5);
  const Decision decision = DecideSynchronous(FactsWithCopies(),
                                              {{kA, Holding(Moved(), {{0, 8}})},
                                               {kB, Holding(before, {{1, 9}, {0, 9, true}})},
                                               {kC, Holding(Moved(), {{2, 9}, {1, 9}})}},
                                              {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  EXPECT_EQ(decision.previous->id().number(), 5u);
  EXPECT_EQ(decision.first_step, 8);
  EXPECT_THAT(decision.holders[1], ElementsAre(kC)) << "it is not known what B kept";
}

TEST(DecideWithCopies, CopiesOfShardThatLacksTheNewestViewAreThoseOfItsInstall) {
  const v1::View before = WithCopies(4, 5);
  v1::Install install;
  *install.mutable_view() = Moved();
  install.add_whole_targets(1);
  // C, the owner, is gone. All of B's copies have the version at which view 5 began.
  const PauseReplies replies = {{kA, Holding(Moved(), {{0, 9}, {2, 9, true}})},
                                {kB, Holding(before, {{1, 9}, {0, 9, true}})}};
  Decision decision = DecideSynchronous(FactsWithCopies(), replies, {{5, install}}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  EXPECT_THAT(decision.holders[1], ElementsAre(kB));
  EXPECT_THAT(decision.holders[0], ElementsAre(kA)) << "its copy at B was not named whole";
  EXPECT_EQ(decision.first_step, 8);

  decision = DecideSynchronous(FactsWithCopies(), replies, {}, kRules);
  EXPECT_EQ(decision.result, Result::kLost)
      << "an earlier coordinator made the view, and the shard lacks more than one";
}

TEST(DecideWithCopies, EarlierCoordinatorNamedTheCopiesWholeThatCouldBeKept) {
  const v1::View before = WithCopies(4, 5);
  v1::View moved = Moved();
  *moved.mutable_previous() = before.id();
  const auto decide = [&](const Held& held) {
    return DecideSynchronous(
        FactsWithCopies(),
        {{kA, Holding(moved, {{0, 9}, {2, 9, true}})}, {kB, Holding(before, {held})}}, {}, kRules);
  };
  EXPECT_THAT(decide({1, 9}).holders[1], ElementsAre(kB));
  EXPECT_THAT(decide({1, 8, false, false}).holders[1], ElementsAre(kB));
  EXPECT_EQ(decide({1, 9, false, false}).result, Result::kLost) << "it has no undo";
  EXPECT_EQ(decide({1, 7}).result, Result::kLost) << "it was not named: it is behind";
  EXPECT_EQ(decide({1, 10}).result, Result::kLost);
}

TEST(DecideWithCopies, NewShardHasNothing) {
  const v1::View view = WithCopies(4, 5);
  constexpr uint64_t kNew = 14;
  const Decision decision = DecideSynchronous(FactsWithCopies(),
                                              {{kA, Holding(view, {{0, 7}, {2, 7, true}})},
                                               {kB, Holding(view, {{1, 7}})},
                                               {kC, Holding(view, {{2, 7}})},
                                               {kNew, Ready()}},
                                              {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  for (const auto& holders : decision.holders) EXPECT_THAT(holders, Not(Contains(kNew)));
}

// ---- asynchronous

void AddClock(v1::PauseReply* reply, uint64_t worker, uint64_t clock, uint64_t begin,
              uint64_t end) {
  v1::ClockRecord& record = *reply->add_clocks();
  record.set_worker(worker);
  record.set_clock(clock);
  record.mutable_samples()->set_begin(begin);
  record.mutable_samples()->set_end(end);
  record.set_square_sum(0.5);
}

void AddApplied(v1::PauseReply* reply, uint64_t end, uint64_t updates) {
  reply->mutable_ledger()->add_applied()->set_end(end);
  reply->mutable_ledger()->set_updates(updates);
}

void AddLease(v1::PauseReply* reply, uint64_t worker, uint64_t begin, uint64_t end) {
  v1::LeaseRecord& record = *reply->add_leases();
  record.set_worker(worker);
  record.mutable_samples()->set_begin(begin);
  record.mutable_samples()->set_end(end);
}

struct Pair {
  v1::PauseReply a = InView(4, 0, {{0, 0}, {2, 0}});
  v1::PauseReply b = InView(4, 0, {{1, 0}});
};

TEST(DecideAsynchronous, HighestClockWinsIfOthersHaveItStaged) {
  Pair replies;
  AddClock(&replies.a, kWorker, 2, 32, 64);
  AddApplied(&replies.a, 64, 2);
  AddClock(&replies.b, kWorker, 1, 0, 32);
  AddApplied(&replies.b, 32, 1);
  replies.b.add_staged()->set_worker(kWorker);
  replies.b.mutable_staged(0)->set_clock(2);
  const Decision decision =
      DecideAsynchronous(Facts(), {{kA, replies.a}, {kB, replies.b}}, {kWorker}, {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided);
  ASSERT_EQ(decision.clocks.size(), 1u);
  EXPECT_EQ(decision.clocks[0].clock(), 2);
  EXPECT_EQ(decision.clocks[0].square_sum(), 0.5) << "the whole record is passed on";
  EXPECT_EQ(decision.ledger.updates(), 2);
  EXPECT_EQ(decision.ledger.applied(0).end(), 64);
  EXPECT_EQ(decision.first_step, 2);
}

TEST(DecideAsynchronous, UpdatesAheadOnDifferentShardsBothWin) {
  Pair replies;
  AddClock(&replies.a, 21, 1, 0, 32);
  AddApplied(&replies.a, 32, 1);
  replies.a.add_staged()->set_worker(22);
  replies.a.mutable_staged(0)->set_clock(1);
  AddClock(&replies.b, 22, 1, 32, 64);
  replies.b.mutable_ledger()->add_applied()->set_begin(32);
  replies.b.mutable_ledger()->mutable_applied(0)->set_end(64);
  replies.b.mutable_ledger()->set_updates(1);
  replies.b.add_staged()->set_worker(21);
  replies.b.mutable_staged(0)->set_clock(1);
  const Decision decision =
      DecideAsynchronous(Facts(), {{kA, replies.a}, {kB, replies.b}}, {}, {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided);
  EXPECT_EQ(decision.clocks.size(), 2u);
  EXPECT_EQ(decision.ledger.updates(), 2);
  EXPECT_EQ(decision.ledger.applied(0).end(), 64);
}

TEST(DecideAsynchronous, UpdateThatShardNeverHeldIsALoss) {
  Pair replies;
  AddClock(&replies.a, kWorker, 1, 0, 32);
  AddApplied(&replies.a, 32, 1);
  const Decision decision =
      DecideAsynchronous(Facts(), {{kA, replies.a}, {kB, replies.b}}, {}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kLost);
  EXPECT_THAT(decision.reason, HasSubstr("ps-1 neither applied nor staged"));
}

TEST(DecideAsynchronous, ShardNeedsNoRecordOfUpdateInCheckpoint) {
  AttemptFacts facts = Facts();
  v1::Range& restored = *facts.base_ledger.add_applied();
  restored.set_begin(0);
  restored.set_end(32);
  facts.base_ledger.set_updates(1);
  Pair replies;
  AddClock(&replies.a, kWorker, 1, 0, 32);
  AddApplied(&replies.a, 32, 1);
  AddApplied(&replies.b, 32, 1);
  const Decision decision =
      DecideAsynchronous(facts, {{kA, replies.a}, {kB, replies.b}}, {}, {}, kRules);
  ASSERT_EQ(decision.result, Result::kDecided) << decision.reason;
  EXPECT_EQ(decision.ledger.updates(), 1);
}

TEST(DecideAsynchronous, MembersKeepUnappliedPartsOfTheirLeases) {
  Pair replies;
  AddApplied(&replies.a, 40, 1);
  AddApplied(&replies.b, 40, 1);
  AddLease(&replies.a, 21, 32, 64);
  AddLease(&replies.a, 22, 64, 96);
  AddLease(&replies.a, 23, 0, 32);  // all applied
  const Decision decision =
      DecideAsynchronous(Facts(), {{kA, replies.a}, {kB, replies.b}}, {21, 23}, {}, kRules);
  ASSERT_EQ(decision.leases.size(), 1u);
  EXPECT_EQ(decision.leases[0].worker(), 21);
  EXPECT_EQ(decision.leases[0].samples().begin(), 40);
  EXPECT_EQ(decision.leases[0].samples().end(), 64);
}

TEST(DecideAsynchronous, AnotherShardAnswersForArbiterThatMissedNewestView) {
  Pair replies;
  replies.b = InView(5, 0, {{1, 0}});
  AddLease(&replies.a, 21, 0, 32);  // of view 4
  AddLease(&replies.b, 22, 0, 16);
  const Decision decision =
      DecideAsynchronous(Facts(), {{kA, replies.a}, {kB, replies.b}}, {21, 22}, {}, kRules);
  ASSERT_EQ(decision.leases.size(), 1u);
  EXPECT_EQ(decision.leases[0].worker(), 22);
}

TEST(DecideAsynchronous, PartitionsOfDeadShardContinueAtTheirWholeCopies) {
  const v1::View view = WithCopies(4, 0);
  v1::PauseReply b = Holding(view, {{1, 0}, {0, 0, true}});
  AddClock(&b, kWorker, 1, 0, 32);
  AddApplied(&b, 32, 1);
  b.add_staged()->set_worker(kWorker);
  b.mutable_staged(0)->set_clock(2);
  AddLease(&b, kWorker, 0, 96);  // recorded for the arbiter, which is gone
  v1::PauseReply c = Holding(view, {{2, 0}});
  AddClock(&c, kWorker, 1, 0, 32);
  AddApplied(&c, 32, 1);
  c.add_staged()->set_worker(kWorker);
  c.mutable_staged(0)->set_clock(2);
  const auto decide = [&] {
    return DecideAsynchronous(FactsWithCopies(), {{kB, b}, {kC, c}}, {kWorker}, {}, kRules);
  };
  const Decision dropped = decide();
  ASSERT_EQ(dropped.result, Result::kDecided) << dropped.reason;
  EXPECT_THAT(dropped.holders[0], ElementsAre(kB));
  EXPECT_EQ(dropped.first_step, 1) << "no shard that is left has applied the second update";
  ASSERT_EQ(dropped.leases.size(), 1u);
  EXPECT_EQ(dropped.leases[0].samples().begin(), 32);

  // The copy has applied the second update, and no owner has.
  v1::ClockRecord& record = *b.add_copied();
  record = b.clocks(0);
  record.set_clock(2);
  record.mutable_samples()->set_begin(32);
  record.mutable_samples()->set_end(64);
  const Decision kept = decide();
  ASSERT_EQ(kept.result, Result::kDecided) << kept.reason;
  EXPECT_EQ(kept.clocks[0].clock(), 2);
  EXPECT_EQ(kept.first_step, 2);
  EXPECT_EQ(kept.ledger.applied(0).end(), 64);
  EXPECT_EQ(kept.leases[0].samples().begin(), 64);
}

TEST(DecideAsynchronous, DeadShardWithoutWholeCopyIsALoss) {
  const v1::View view = WithCopies(4, 0);
  const Decision decision = DecideAsynchronous(
      FactsWithCopies(), {{kB, Holding(view, {{1, 0}})}, {kC, Holding(view, {{2, 0}})}}, {}, {},
      kRules);
  EXPECT_EQ(decision.result, Result::kLost);
  EXPECT_EQ(decision.reason, "ps-0 is gone, and partition 0 has no whole copy");
}

TEST(DecideAsynchronous, RestOfLeaseMayHaveGaps) {
  Pair replies;
  for (v1::PauseReply* reply : {&replies.a, &replies.b}) {
    AddApplied(reply, 8, 2);
    v1::Range& range = *reply->mutable_ledger()->add_applied();
    range.set_begin(16);
    range.set_end(24);
  }
  AddLease(&replies.a, kWorker, 0, 32);
  const Decision decision =
      DecideAsynchronous(Facts(), {{kA, replies.a}, {kB, replies.b}}, {kWorker}, {}, kRules);
  ASSERT_EQ(decision.leases.size(), 2u);
  EXPECT_EQ(decision.leases[0].samples().begin(), 8);
  EXPECT_EQ(decision.leases[0].samples().end(), 16);
  EXPECT_EQ(decision.leases[1].samples().begin(), 24);
}

TEST(DecideAsynchronous, LedgerIsThatOfCheckpointBeforeFirstView) {
  AttemptFacts facts = Facts();
  facts.base_ledger.add_applied()->set_end(640);
  facts.base_ledger.set_updates(40);
  const Decision decision =
      DecideAsynchronous(facts, {{kA, Ready()}, {kB, Ready()}}, {}, {}, kRules);
  EXPECT_EQ(decision.result, Result::kDecided);
  EXPECT_EQ(decision.ledger.applied(0).end(), 640);
  EXPECT_EQ(decision.first_step, 40);
}

}  // namespace
}  // namespace sluice::coordinator
