#include "services/coordinator/core/facts/membership.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sluice::coordinator {
namespace {

using Kind = Membership::Admission::Kind;
using ::testing::HasSubstr;

const absl::Time kStart = absl::FromUnixSeconds(1'000'000);

Membership::Options Options() {
  Membership::Options options;
  options.job = "ns/job/uid";
  options.suspect = absl::Seconds(1);
  options.heartbeat_timeout = absl::Seconds(5);
  options.workers = options.shards = 16;
  return options;
}

v1::Register Request(v1::Role role, uint32_t index, uint64_t incarnation) {
  v1::Register request;
  request.mutable_process()->set_role(role);
  request.mutable_process()->set_index(index);
  request.mutable_process()->set_incarnation(incarnation);
  request.set_job("ns/job/uid");
  request.set_wire_version(1);
  request.set_pid(incarnation + 1000);
  return request;
}

TEST(Membership, AdmitsNewProcessAndFindsItByStreamAndIncarnation) {
  Membership members(Options());
  const auto admission = members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  EXPECT_EQ(admission.kind, Kind::kNew);
  ASSERT_NE(members.OnStream(1), nullptr);
  EXPECT_EQ(members.OnStream(1)->incarnation(), 7);
  EXPECT_EQ(members.Find(7)->pid, 1007);
  EXPECT_EQ(members.Find(8), nullptr);
}

TEST(Membership, PostponesUnwantedIndexUntilItIsWanted) {
  Membership members(Options());
  members.SetWanted(/*workers=*/2, /*shards=*/1);
  for (const auto& request : {Request(v1::WORKER, 2, 7), Request(v1::SHARD, 1, 8)}) {
    members.Connected(1, kStart);
    const auto admission = members.Register(1, request, kStart);
    EXPECT_EQ(admission.kind, Kind::kLater);
    EXPECT_THAT(admission.why, HasSubstr("may register when the job is scaled"));
  }
  EXPECT_TRUE(members.Living(v1::WORKER).empty());
  members.SetWanted(3, 2);
  EXPECT_EQ(members.Register(2, Request(v1::WORKER, 2, 7), kStart).kind, Kind::kNew);
  members.SetWanted(1, 1);
  EXPECT_EQ(members.Register(3, Request(v1::WORKER, 2, 7), kStart).kind, Kind::kReturned)
      << "it is alive, and ends when its parent ends it";
}

TEST(Membership, AcceptsEveryWireVersionThatItSpeaks) {
  Membership::Options options = Options();
  options.wire_versions = {.oldest = 2, .newest = 3};
  Membership members(options);
  v1::Register request = Request(v1::WORKER, 0, 7);
  request.set_wire_version(2);
  EXPECT_EQ(members.Register(1, request, kStart).kind, Kind::kNew);

  request = Request(v1::WORKER, 1, 8);
  request.set_wire_version(3);
  EXPECT_EQ(members.Register(2, request, kStart).kind, Kind::kNew);
  request = Request(v1::WORKER, 2, 9);
  for (const uint32_t version : {0, 1, 4}) {
    request.set_wire_version(version);
    const v1::Refusal refusal = members.Register(3, request, kStart).refusal;
    EXPECT_EQ(refusal.code(), v1::Refusal::WIRE_VERSION) << version;
    EXPECT_THAT(refusal.reason(), HasSubstr("worker-2 asks for wire version"));
    EXPECT_THAT(refusal.reason(), HasSubstr("speaks 2 to 3"));
  }
  request.set_wire_version(3);
  EXPECT_EQ(members.Register(4, request, kStart).kind, Kind::kNew)
      << "a refused process may register again with another version";
}

TEST(Membership, RefusesOtherJobAndOtherWireVersion) {
  Membership members(Options());
  v1::Register request = Request(v1::WORKER, 0, 7);
  request.set_job("ns/other/uid");
  EXPECT_EQ(members.Register(1, request, kStart).refusal.code(), v1::Refusal::WRONG_JOB);
  request = Request(v1::WORKER, 0, 7);
  request.set_wire_version(2);
  EXPECT_EQ(members.Register(1, request, kStart).refusal.code(), v1::Refusal::WIRE_VERSION);
}

TEST(Membership, SuspectReturnsOnNewStreamWithinASecond) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  members.Disconnected(1, kStart);
  EXPECT_TRUE(members.Find(7)->suspect());
  EXPECT_EQ(members.NextDeadline(), kStart + absl::Seconds(1));
  const absl::Time later = kStart + absl::Milliseconds(999);
  EXPECT_TRUE(members.ExpelOverdue(later).empty());
  EXPECT_EQ(members.Register(2, Request(v1::WORKER, 0, 7), later).kind, Kind::kReturned);
  EXPECT_TRUE(members.ExpelOverdue(later + absl::Seconds(4)).empty());
}

TEST(Membership, ExpelsSuspectThatDoesNotReturnAndNeverReadmitsIt) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  members.Disconnected(1, kStart);
  const auto expelled = members.ExpelOverdue(kStart + absl::Seconds(1));
  ASSERT_EQ(expelled.size(), 1u);
  EXPECT_TRUE(expelled[0].expelled);
  EXPECT_EQ(members.Find(7), nullptr);
  const auto again = members.Register(2, Request(v1::WORKER, 0, 7), kStart + absl::Seconds(2));
  EXPECT_EQ(again.kind, Kind::kRefused);
  EXPECT_EQ(again.refusal.code(), v1::Refusal::EXPELLED);
}

TEST(Membership, ProcessWithManyIncarnationsUsesUpOnlyItsOwnPlace) {
  Membership members(Options());
  uint64_t incarnation = 1000;
  for (size_t i = 0; i < Membership::kMaxExpelledOfPlace; ++i) {
    ASSERT_EQ(members.Register(1, Request(v1::WORKER, 3, ++incarnation), kStart).kind, Kind::kNew);
    members.Leave(incarnation);
  }
  const auto refused = members.Register(1, Request(v1::WORKER, 3, ++incarnation), kStart);
  EXPECT_EQ(refused.kind, Kind::kLater);
  EXPECT_THAT(refused.why, HasSubstr("kMaxExpelledOfPlace"));
  EXPECT_EQ(members.expelled(), Membership::kMaxExpelledOfPlace);
  EXPECT_EQ(members.Register(2, Request(v1::WORKER, 2, 7), kStart).kind, Kind::kNew);
  EXPECT_EQ(members.Register(3, Request(v1::SHARD, 3, 8), kStart).kind, Kind::kNew);
  EXPECT_EQ(members.Register(4, Request(v1::WORKER, 3, 1001), kStart).refusal.code(),
            v1::Refusal::EXPELLED);
}

TEST(Membership, ExpelsSilentProcessAfterTimeoutSinceLastMessage) {
  Membership members(Options());
  members.Register(1, Request(v1::SHARD, 0, 7), kStart);
  members.Answered(7, kStart);
  members.Register(2, Request(v1::SHARD, 1, 8), kStart);
  members.OnMessage(1, kStart + absl::Seconds(3));
  members.OnMessage(2, kStart + absl::Seconds(5));
  members.OnMessage(2, kStart + absl::Seconds(7));
  EXPECT_TRUE(members.ExpelOverdue(kStart + absl::Seconds(7.9)).empty());
  const auto expelled = members.ExpelOverdue(kStart + absl::Seconds(8));
  ASSERT_EQ(expelled.size(), 1u);
  EXPECT_THAT(expelled[0].reason, HasSubstr("sent nothing for 5s"));
}

TEST(Membership, DoesNotExpelProcessThatWaitsForAnswerToRegistration) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  members.Register(2, Request(v1::WORKER, 1, 8), kStart);
  EXPECT_EQ(members.NextDeadline(), absl::InfiniteFuture());
  EXPECT_TRUE(members.ExpelOverdue(kStart + absl::Hours(1)).empty());
  members.Answered(7, kStart + absl::Hours(1));
  EXPECT_EQ(members.NextDeadline(), kStart + absl::Hours(1) + absl::Seconds(5));
  EXPECT_EQ(members.ExpelOverdue(kStart + absl::Hours(2)).size(), 1u);
  members.Disconnected(2, kStart + absl::Hours(2));
  EXPECT_EQ(members.ExpelOverdue(kStart + absl::Hours(3)).size(), 1u) << "its stream is gone";
}

TEST(Membership, NewestStreamOfIncarnationWins) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  const auto admission = members.Register(2, Request(v1::WORKER, 0, 7), kStart);
  EXPECT_EQ(admission.kind, Kind::kReturned);
  EXPECT_EQ(admission.closed_stream, 1);
  EXPECT_EQ(members.Disconnected(1, kStart), nullptr) << "the end of the old stream is ignored";
  EXPECT_FALSE(members.Find(7)->suspect());
}

TEST(Membership, RefusesSecondIncarnationWhileFirstIsConnectedAndReplacesSuspect) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  const auto refused = members.Register(2, Request(v1::WORKER, 0, 8), kStart);
  EXPECT_EQ(refused.refusal.code(), v1::Refusal::DUPLICATE);
  EXPECT_THAT(refused.refusal.reason(), HasSubstr("worker-0"));
  members.Disconnected(1, kStart);
  const auto admitted = members.Register(3, Request(v1::WORKER, 0, 8), kStart);
  EXPECT_EQ(admitted.kind, Kind::kNew);
  ASSERT_TRUE(admitted.displaced.has_value());
  EXPECT_EQ(admitted.displaced->process.incarnation(), 7);
  EXPECT_TRUE(members.IsExpelled(7));
}

TEST(Membership, ReportedDeathExpelsByIncarnationOrByIndexAndProcessId) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  members.Register(2, Request(v1::WORKER, 1, 8), kStart);
  v1::SetDesiredRequest::Death death;
  death.mutable_process()->set_role(v1::WORKER);
  death.mutable_process()->set_index(1);
  death.set_pid(4711);
  EXPECT_FALSE(members.ReportDeath(death).has_value()) << "an earlier process with this index";
  death.set_pid(1008);
  EXPECT_TRUE(members.ReportDeath(death).has_value());
  EXPECT_FALSE(members.ReportDeath(death).has_value()) << "repeated";
  death.mutable_process()->set_incarnation(7);
  EXPECT_TRUE(members.ReportDeath(death).has_value());
  EXPECT_TRUE(members.Living(v1::WORKER).empty());
}

TEST(Membership, DeathReportedBeforeRegistrationKeepsProcessOut) {
  Membership members(Options());
  v1::SetDesiredRequest::Death death;
  death.mutable_process()->set_incarnation(7);
  EXPECT_FALSE(members.ReportDeath(death).has_value());
  EXPECT_EQ(members.Register(1, Request(v1::WORKER, 0, 7), kStart).kind, Kind::kRefused);
}

TEST(Membership, ForgivenTimeDoesNotCountAsSilence) {
  Membership members(Options());
  members.Register(1, Request(v1::WORKER, 0, 7), kStart);
  members.Answered(7, kStart);
  members.ExtendDeadlines(absl::Seconds(20));
  EXPECT_TRUE(members.ExpelOverdue(kStart + absl::Seconds(24)).empty());
  EXPECT_EQ(members.ExpelOverdue(kStart + absl::Seconds(25)).size(), 1u);
}

TEST(Membership, StreamWithoutRegistrationIsOverdueAfterTimeout) {
  Membership members(Options());
  members.Connected(4, kStart);
  EXPECT_EQ(members.NextDeadline(), kStart + absl::Seconds(5));
  EXPECT_TRUE(members.TakeOverdueStreams(kStart + absl::Seconds(4)).empty());
  EXPECT_THAT(members.TakeOverdueStreams(kStart + absl::Seconds(5)), ::testing::ElementsAre(4));
  EXPECT_TRUE(members.TakeOverdueStreams(kStart + absl::Seconds(9)).empty());
}

TEST(Membership, LivingProcessesAreOrderedByIndex) {
  Membership members(Options());
  for (uint32_t index : {2, 0, 1}) {
    members.Register(index + 1, Request(v1::WORKER, index, 50 - index), kStart);
  }
  const auto living = members.Living(v1::WORKER);
  ASSERT_EQ(living.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(living[i]->id.index(), i);
}

TEST(Membership, RemembersBoundedNumberOfDepartures) {
  Membership members(Options());
  for (uint64_t i = 1; i <= 200; ++i) {
    members.Register(i, Request(v1::WORKER, 0, i), kStart);
    members.Leave(i);
  }
  EXPECT_EQ(members.departures().size(), 64u);
  EXPECT_EQ(members.departures().back().process.incarnation(), 200);
  EXPECT_FALSE(members.departures().back().expelled);
}

}  // namespace
}  // namespace sluice::coordinator
